"""Noisy MB-SGD, Algorithm 2 of ISRL-DP (Lowy & Razaviyayn 2023): steps, weights, and the bound of Lemma D.6.

The letters of the formulas are those of `tacit.theory.isrl_dp`.
"""

from __future__ import annotations

import math

from tacit.errors import RequestError, count, positive
from tacit.theory.checks import ROUND_OFF, not_negative
from tacit.theory.isrl_dp.problem import ConvexProblem


def second_moment(problem: ConvexProblem, noise_std: float) -> float:
    """c of Lemma D.6: E||g_r||^2 <= L^2 + d s^2/M, for batches of fixed size (Poisson batches add L^2/(MK)).

    The proofs of Theorems D.1 and G.1 divide L^2 by M as well. But the silos' gradients are not independent
    noise, and their mean can be as long as one of them.

    >>> second_moment(ConvexProblem(clients=4, records=9, dim=8, epsilon=1.0, delta=0.1), 1.0)
    3.0
    """
    noise = problem.dim * not_negative("noise_std", noise_std) ** 2
    return problem.lipschitz**2 + noise / problem.reporting


def stability(problem: ConvexProblem, *, step: float, rounds: int) -> float:
    """How much one record can move the loss (Lemma D.2): a bound on population risk minus empirical risk.

    Convex, averaged with equal weights: L^2 step (R-1)/(nM). Strongly convex, any weights: 4 L^2/(mu (nM-1)).
    This holds for like silos and steps up to 1/beta. The lemma states 2 L^2 R step/(nM); its own sum gives half
    of that, over the R - 1 iterates that can differ.

    >>> stability(ConvexProblem(clients=4, records=25, dim=8, epsilon=1.0, delta=0.1), step=0.5, rounds=21)
    0.1
    """
    positive("step", step)
    pooled = problem.records * problem.reporting
    if not problem.is_strongly_convex:
        return problem.lipschitz**2 * step * (count("rounds", rounds) - 1) / pooled
    if pooled <= 1:
        raise RequestError("records times cohort must be above 1: one record does not generalise")
    return 4 * problem.lipschitz**2 / (problem.strong_convexity * (pooled - 1))


def longest_step(problem: ConvexProblem) -> float:
    """The longest step that Lemmas D.2 and D.6 allow: 1/beta, or 1/(2 beta) if strongly convex.

    Only the stability of Lemma D.2 needs a smooth loss. Without beta there is no limit, or, for strongly convex
    losses, the limit 1/(2 mu), which keeps the weights positive.

    >>> longest_step(ConvexProblem(clients=4, records=9, dim=8, epsilon=1.0, delta=0.1, smoothness=4.0))
    0.25
    """
    if problem.smoothness is not None:
        return 1 / (2 * problem.smooth) if problem.is_strongly_convex else 1 / problem.smooth
    return 1 / (2 * problem.strong_convexity) if problem.is_strongly_convex else math.inf


def mb_sgd_step(problem: ConvexProblem, *, rounds: int, noise_std: float) -> float:
    """The constant step of Noisy MB-SGD for the noise that is really added.

    Convex: the step that minimises `mb_sgd_bound`. Strongly convex: the step of Lemma D.5 (Stich 2019) as used in
        Lemma D.6, min{1/(2 beta), ln(max{2, mu^2 D^2 R^2/c}) / (mu R)} with c = `second_moment`.

    >>> p = ConvexProblem(clients=4, records=9, dim=8, epsilon=1.0, delta=0.1, smoothness=0.1)
    >>> mb_sgd_step(p, rounds=300, noise_std=1.0)
    0.03333333333333333
    """
    r, c, limit = count("rounds", rounds), second_moment(problem, noise_std), longest_step(problem)
    if problem.is_strongly_convex:
        scale = problem.strong_convexity * r
        return min(limit, math.log(max(2.0, (scale * problem.diameter) ** 2 / c)) / scale)
    return min(limit, problem.diameter / math.sqrt(r * c))


def mb_sgd_bound(problem: ConvexProblem, *, rounds: int, step: float, noise_std: float) -> float:
    """The expected excess risk of Noisy MB-SGD's averaged point, for the noise that is really added.

    Lemma D.6 with its constants: (mu D^2/2) / ((1 - mu step)^-R - 1) + (step/2) c, which is D^2/(2 step R) +
    (step/2) c for mu = 0; c is `second_moment`. This bounds the empirical risk, or with a single pass over the
    records the population risk. If records are drawn again, the population risk of like silos is higher by
    `stability`.

    >>> p = ConvexProblem(clients=4, records=25, dim=8, epsilon=1.0, delta=0.1, smoothness=1.0)
    >>> mb_sgd_bound(p, rounds=100, step=0.1, noise_std=1.0)
    0.2
    """
    return sum(mb_sgd_terms(problem, rounds=rounds, step=step, noise_std=noise_std).values())


def mb_sgd_terms(
    problem: ConvexProblem,
    *,
    rounds: int,
    step: float,
    noise_std: float,
    batch_variance: float = 0.0,
) -> dict[str, float]:
    """The bound by cause. `batch_variance` is what random batch sizes add to the second moment, over L^2."""
    limit = longest_step(problem)
    if positive("step", step) > limit * (1 + ROUND_OFF):
        raise RequestError(f"step must be at most {limit:.6g} for Lemmas D.2 and D.6 to hold, not {step!r}")
    drawn = step / 2 * not_negative("batch_variance", batch_variance) * problem.lipschitz**2 / problem.reporting
    return {
        "optimisation": _weighted_start(problem, step, count("rounds", rounds)) + step / 2 * problem.lipschitz**2,
        "sampling": drawn,
        "privacy": step / 2 * problem.dim * not_negative("noise_std", noise_std) ** 2 / problem.reporting,
    }


def _weighted_start(problem: ConvexProblem, step: float, rounds: int) -> float:
    if not problem.is_strongly_convex:
        return problem.diameter**2 / (2 * step * rounds)
    decay = -rounds * math.log1p(-problem.strong_convexity * step)
    return problem.strong_convexity * problem.diameter**2 / 2 * math.exp(-decay) / -math.expm1(-decay)
