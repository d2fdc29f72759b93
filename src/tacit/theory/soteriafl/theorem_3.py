"""SoteriaFL (Li et al. 2022) with any estimator, Theorem 3: step, utility, rounds.

The letters of the formulas are those of `tacit.theory.soteriafl`.
"""

from __future__ import annotations

import math

from tacit.errors import RequestError, count, positive
from tacit.theory.checks import ROUND_OFF, not_negative
from tacit.theory.soteriafl.estimators import EstimatorConstants
from tacit.theory.soteriafl.problem import Problem


def variance_weight(constants: EstimatorConstants, *, beta: float, omega: float, smoothness: float) -> float:
    """The weight alpha of the estimator's variance in the potential: 3 beta C_1 / (2 (1+w) theta L^2).

    >>> from tacit.theory.soteriafl import sgd_constants
    >>> whole = sgd_constants(records=9, batch=9, gradient_bound=1.0)
    >>> variance_weight(whole, beta=1.0, omega=0.0, smoothness=1.0)
    0.0
    """
    scale = 2 * (1 + not_negative("omega", omega)) * constants.theta * positive("smoothness", smoothness) ** 2
    return 3 * positive("beta", beta) * constants.c_1 / scale


def largest_step(
    constants: EstimatorConstants, *, beta: float, clients: int, omega: float, smoothness: float
) -> float:
    """The largest step that Theorem 3 allows.

    With S = 1 + 2 alpha C_4 + 4 beta (1+w):
    min{ 1 / ((S + 2 alpha C_3/step^2) L), sqrt(beta n) / (sqrt(S) (1+w) L) }.
    This is not circular: in Lemma 1, C_3/step^2 does not depend on the step.

    >>> from tacit.theory.soteriafl import sgd_constants
    >>> whole = sgd_constants(records=9, batch=9, gradient_bound=1.0)
    >>> largest_step(whole, beta=0.25, clients=4, omega=0.0, smoothness=1.0)
    0.5
    """
    alpha = variance_weight(constants, beta=beta, omega=omega, smoothness=smoothness)
    base = 1 + 2 * alpha * constants.c_4 + 4 * beta * (1 + omega)
    descent = 1 / (base + 2 * alpha * constants.c_3_per_step_squared)
    contraction = math.sqrt(beta * count("clients", clients) / base) / (1 + omega)
    return min(descent, contraction) / smoothness


def initial_potential(loss_gap: float, *, beta: float, smoothness: float, shift_gap_squared: float) -> float:
    """Phi_0 of Theorem 3: D + (beta/L) mean_i ||grad f_i(x^0) - s_i^0||^2.

    `shift_gap_squared` is that mean: at most G^2 if the shifts start at zero. The third term, alpha L Delta^0, is
    zero for all four estimators, whose snapshots start at x^0.

    >>> initial_potential(1.0, beta=0.5, smoothness=2.0, shift_gap_squared=4.0)
    2.0
    """
    shift = positive("beta", beta) / positive("smoothness", smoothness)
    return not_negative("loss_gap", loss_gap) + shift * not_negative("shift_gap_squared", shift_gap_squared)


def smallest_beta(
    constants: EstimatorConstants, *, step: float, clients: int, omega: float, smoothness: float
) -> float | None:
    """The beta with the best bound of Theorem 3 for a step; None if no beta allows the step.

    The bound grows with beta, so this is the least beta with step <= sqrt(beta n) / (sqrt(S) (1+w) L): with k =
    (step L (1+w))^2 and S = 1 + c beta, beta = k / (n - c k). The other limit of `largest_step` must hold.

    >>> from tacit.theory.soteriafl import sgd_constants
    >>> whole = sgd_constants(records=9, batch=9, gradient_bound=1.0)
    >>> round(smallest_beta(whole, step=0.5, clients=4, omega=0.0, smoothness=1.0), 6)
    0.083333
    """
    per_beta = variance_weight(constants, beta=1.0, omega=omega, smoothness=smoothness)
    growth = 2 * per_beta * constants.c_4 + 4 * (1 + omega)
    k = (positive("step", step) * smoothness * (1 + omega)) ** 2
    if clients <= growth * k:
        return None
    beta = k / (clients - growth * k)
    limit = largest_step(constants, beta=beta, clients=clients, omega=omega, smoothness=smoothness)
    return beta if step <= limit * (1 + ROUND_OFF) else None


def longest_step(constants: EstimatorConstants, *, clients: int, omega: float, smoothness: float) -> float:
    """The longest step that Theorem 3 allows with any beta: where `smallest_beta` ends, to within 1e-9."""
    low, high = 0.0, 1 / smoothness
    for _ in range(60):
        middle = (low + high) / 2
        found = smallest_beta(constants, step=middle, clients=clients, omega=omega, smoothness=smoothness)
        low, high = (low, middle) if found is None else (middle, high)
    return low


def theorem_3_terms(
    constants: EstimatorConstants, problem: Problem, *, step: float, rounds: int, noise_std: float
) -> dict[str, float]:
    """The bound of Theorem 3 by cause, for the noise that is really added; no compression term yet.

    2 Phi_0 / (step T) + 3 beta / ((1+w) L step) (C_2 + d s^2): eq. 26 before the paper's s^2 is inserted, at
    `smallest_beta`, with shifts that start at zero. It needs the shift step `shift_step(omega)`. A step beyond
    `longest_step` is refused.
    """
    beta = smallest_beta(
        constants, step=step, clients=problem.clients, omega=problem.omega, smoothness=problem.smoothness
    )
    if beta is None:
        raise RequestError(f"step = {step!r} is longer than Theorem 3 allows with any beta")
    start = initial_potential(
        problem.loss_gap, beta=beta, smoothness=problem.smoothness, shift_gap_squared=problem.gradient_bound**2
    )
    weight = 3 * beta / ((1 + problem.omega) * problem.smoothness * step)
    return {
        "optimisation": 2 * start / (step * count("rounds", rounds)),
        "sampling": weight * constants.c_2,
        "privacy": weight * problem.dim * not_negative("noise_std", noise_std) ** 2,
    }


def balancing_rounds(
    constants: EstimatorConstants,
    *,
    noise_rate: float,
    potential: float,
    beta: float,
    dim: int,
    omega: float,
    smoothness: float,
) -> float:
    """The rounds after which more noise outweighs more descent (eq. 5), as a real number.

    With r = s^2/T (`noise_rate`: private noise needs a variance proportional to T, exactly so in eq. 4):
    max{ sqrt(2 (1+w) L Phi_0 / (3 beta d r)), C_2 / (d r) }.

    >>> from tacit.theory.soteriafl import sgd_constants
    >>> whole = sgd_constants(records=9, batch=9, gradient_bound=1.0)
    >>> balancing_rounds(whole, noise_rate=0.01, potential=6.0, beta=1.0, dim=4, omega=0.0, smoothness=1.0)
    10.0
    """
    rate = count("dim", dim) * positive("noise_rate", noise_rate)
    gain = 2 * (1 + not_negative("omega", omega)) * positive("smoothness", smoothness)
    return max(
        math.sqrt(gain * not_negative("potential", potential) / (3 * positive("beta", beta) * rate)),
        constants.c_2 / rate,
    )
