"""CDP-SGD, direct compression, Theorem 1 of SoteriaFL (Li et al. 2022): rounds, step, utility.

The letters of the formulas are those of `tacit.theory.soteriafl`.
"""

from __future__ import annotations

import math

from tacit.errors import RequestError, count, positive
from tacit.theory.checks import ROUND_OFF, not_negative
from tacit.theory.soteriafl.problem import Problem


def cdp_rounds(problem: Problem, *, noise_rate: float) -> float:
    """The rounds of CDP-SGD (eq. 47), as a real number.

    max{ sqrt(n L D / ((1+w) d r)), G^2 / (d r) } with r = s^2/T, in the paper c G^2 ln1d / (m epsilon)^2.

    >>> cdp_rounds(Problem(clients=9, records=10, dim=4, omega=0.0, epsilon=1.0, delta=0.1), noise_rate=0.01)
    25.0
    """
    rate = problem.dim * positive("noise_rate", noise_rate)
    descent = problem.clients * problem.smoothness * problem.loss_gap / ((1 + problem.omega) * rate)
    return max(math.sqrt(descent), problem.gradient_bound**2 / rate)


def cdp_step(problem: Problem, *, noise_rate: float) -> float:
    """The step of CDP-SGD (after eq. 47): min{ 1/L, sqrt(n D d r / ((1+w) L)) / G^2 } with r = s^2/T.

    >>> cdp_step(Problem(clients=9, records=10, dim=4, omega=0.0, epsilon=1.0, delta=0.1), noise_rate=0.01)
    0.6
    """
    noise = problem.clients * problem.loss_gap * problem.dim * positive("noise_rate", noise_rate)
    bound = math.sqrt(noise / ((1 + problem.omega) * problem.smoothness)) / problem.gradient_bound**2
    return min(1 / problem.smoothness, bound)


def cdp_terms(
    problem: Problem, *, step: float, rounds: int, batch_variance: float, noise_std: float
) -> dict[str, float]:
    """The bound of CDP-SGD's analysis (eq. 46, first line), by cause, for the noise really added; step <= 1/L.

    Their sum is 2D / (step T) + (L step / n) [w G^2 + (1+w) (v G^2 + d s^2)], where v, `batch_variance`, is the
    variance of a batch's mean gradient over G^2: (1-q)/b, for example.

    >>> p = Problem(clients=10, records=10, dim=4, omega=0.0, epsilon=1.0, delta=0.1)
    >>> sum(cdp_terms(p, step=1.0, rounds=20, batch_variance=0.0, noise_std=0.5).values())
    0.2
    """
    if positive("step", step) * problem.smoothness > 1 + ROUND_OFF:
        raise RequestError(f"step must be at most 1/smoothness = {1 / problem.smoothness:.6g}, not {step!r}")
    g_squared = problem.gradient_bound**2
    weight = problem.smoothness * step / problem.clients
    terms = {
        "optimisation": 2 * problem.loss_gap / (step * count("rounds", rounds)),
        "sampling": weight * not_negative("batch_variance", batch_variance) * g_squared,
        "privacy": weight * problem.dim * not_negative("noise_std", noise_std) ** 2,
    }
    sent = g_squared * (1 + batch_variance) + problem.dim * noise_std**2
    return {**terms, "compression": weight * problem.omega * sent}
