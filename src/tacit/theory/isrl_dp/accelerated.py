"""Accelerated Noisy MB-SGD, Algorithm 1 of ISRL-DP (Lowy & Razaviyayn 2023), and in stages (appendix E.1).

The paper quotes its rates from Ghadimi & Lan (2012, 2013) and Woodworth et al. (2020) without constants. The
inequality of `stage_weights` is their argument for smooth losses with the constants kept. For strongly convex
losses, each stage starts where the last one ended and halves the excess risk. A stage is written (rounds, v),
where v is the curvature that it assumes. The letters of the formulas are those of `tacit.theory.isrl_dp`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tacit.errors import RequestError, count, positive
from tacit.theory.checks import ROUND_OFF, batch_size, not_negative
from tacit.theory.isrl_dp.problem import ConvexProblem

MOST_STAGES = 60
"""This many halvings reach the precision of a double."""

Stages = Sequence[tuple[int, float]]


def variance_terms(problem: ConvexProblem, *, batch_variance: float, noise_std: float) -> dict[str, float]:
    """V^2 of Lemma E.3 by cause: E||g_r - grad F||^2 <= phi^2/(MK) + (N-M)/(N-1) v^2/M + d s^2/M.

    `batch_variance` stands for 1/K. For empirical risk phi and v are those of the records at hand, and a batch of
    all records has no sampling variance. Theorem F.1 has 4 L^2/(MK) for the first two terms together, by a lemma
    on subsets of the pooled records. That is not how batches are drawn: with M < N, the silos that do not take
    part cost v^2/M however large the batch is, so the lemma above is used instead. Poisson batches need phi = L.
    """
    m = problem.reporting
    return {
        "sampling": not_negative("batch_variance", batch_variance) * problem.phi**2 / m,
        "heterogeneity": problem.absence * problem.upsilon**2 / m,
        "privacy": problem.dim * not_negative("noise_std", noise_std) ** 2 / m,
    }


def gradient_variance(problem: ConvexProblem, *, batch: int, noise_std: float, empirical: bool = False) -> float:
    """V^2 of Lemma E.3 (`variance_terms`) for batches of a fixed size.

    >>> p = ConvexProblem(clients=4, records=10, dim=5, epsilon=1, delta=0.1, lipschitz=2.0)
    >>> [gradient_variance(p, batch=10, noise_std=2.0, empirical=erm) for erm in (False, True)]
    [5.1, 5.0]
    """
    k = batch_size(batch, problem.records)
    whole = empirical and k == problem.records
    return sum(variance_terms(problem, batch_variance=0.0 if whole else 1 / k, noise_std=noise_std).values())


def stage_weights(
    rounds: int, curvature: float, smoothness: float, strong_convexity: float
) -> tuple[float, float]:
    """The bound of R rounds of Algorithm 1 against any point x: E F(w_R^ag) - F(x) <= a ||w_0 - x||^2 + b V^2.

    a = 2 v/(R (R+1)) and b = min{ (2R+1)/(12 (v - beta)), 2/(mu (R+1)) } for v >= beta, with alpha_r = 2/(r+1),
    eta_r = 4 v/(r (r+1)) and unbiased gradients of variance at most V^2.

    Proof. One round gives F(w_r^ag) - F(x) <= (1 - alpha_r)(F(w_{r-1}^ag) - F(x)) + telescoping distances
    + alpha_r <u_r, x - w_r^+> + alpha_r^2 ||u_r||^2/(2 A_r), where u_r is the error of the gradient, w_r^+ is
    known before it, and A_r = mu + eta_r - beta alpha_r^2 is at least mu and at least 4 (v - beta)/(r (r+1)).
    Divide by Gamma_r = 2/(r (r+1)), for which eta_r/Gamma_r = 2v and (1 - alpha_r)/Gamma_r = 1/Gamma_{r-1}, and
    add up.

    >>> stage_weights(9, curvature=3.0, smoothness=1.0, strong_convexity=0.0)
    (0.06666666666666667, 0.7916666666666666)
    """
    r, v, beta = count("rounds", rounds), positive("curvature", curvature), positive("smoothness", smoothness)
    mu = not_negative("strong_convexity", strong_convexity)
    if v < beta * (1 - ROUND_OFF):
        raise RequestError(f"curvature must be at least smoothness = {beta!r}, not {v!r}")
    by_prox = (2 * r + 1) / (12 * (v - beta)) if v > beta else math.inf
    by_convexity = 2 / (mu * (r + 1)) if mu > 0 else math.inf
    return 2 * v / (r * (r + 1)), min(by_prox, by_convexity)


def accelerated_terms(
    problem: ConvexProblem, stages: Stages, *, variance: Mapping[str, float], regularisation: float = 0.0
) -> dict[str, float]:
    """The excess risk after the last stage, for the noise that is really added, by cause.

    `stage_weights` stage by stage on f + (lambda/2) ||w - w_0||^2, whose minimiser is no further than ||q_k -
    w||^2 <= min{ D^2, 2 (risk so far)/(mu + lambda) }; lambda D^2/2 is the cost of the regularisation. Where D^2
    is the smaller one, a stage does not depend on what came before it. For one stage, mu = 0: Lemma E.1.
    """
    if not stages:
        raise RequestError("stages must hold at least one stage")
    strength, reach = not_negative("regularisation", regularisation), problem.diameter**2
    mu, beta = problem.strong_convexity + strength, problem.smooth + strength
    terms = {"optimisation": problem.gap, **dict.fromkeys(variance, 0.0)}
    for rounds, curvature in stages:
        start, noise = stage_weights(rounds, curvature, beta, mu)
        if mu * reach > 2 * sum(terms.values()):
            terms = {cause: start * 2 / mu * value for cause, value in terms.items()}
        else:
            terms = {**dict.fromkeys(terms, 0.0), "optimisation": start * reach}
        for cause, value in variance.items():
            terms[cause] += noise * value if value else 0.0
    return {**terms, "optimisation": terms["optimisation"] + strength * reach / 2}


def best_regularisation(problem: ConvexProblem, *, rounds: int, variance: float) -> float:
    """The lambda that balances the two terms of `regularised_bound` that depend on it: 2 V/(D sqrt(R)).

    Lemma E.1 and Theorem F.1 have half of it, the proof of Theorem E.1 a quarter. All are of the right order.

    >>> p = ConvexProblem(clients=4, records=9, dim=8, epsilon=1, delta=0.1)
    >>> best_regularisation(p, rounds=25, variance=4.0)
    0.8
    """
    return 2 * math.sqrt(not_negative("variance", variance) / count("rounds", rounds)) / problem.diameter


def regularised_bound(problem: ConvexProblem, *, rounds: int, variance: float, regularisation: float) -> float:
    """Lemma E.1 with its constants: the excess risk of Algorithm 1 on f + (lambda/2) ||w - w_0||^2, convex f.

    2 (beta + lambda) D^2/(R (R+1)) + 2 V^2/(lambda (R+1)) + lambda D^2/2, with mu = lambda in Algorithm 1 and
    v = beta + lambda (`accelerated_terms`). With `best_regularisation` that is at most
    2 beta D^2/R^2 + 2 V D/sqrt(R) + 4 V D/R^(5/2).

    >>> p = ConvexProblem(clients=4, records=9, dim=8, epsilon=1, delta=0.1, smoothness=9.6)
    >>> round(regularised_bound(p, rounds=24, variance=1.0, regularisation=0.4), 6)
    0.433333
    """
    stage = (rounds, problem.smooth + regularisation)
    return sum(
        accelerated_terms(problem, [stage], variance={"noise": variance}, regularisation=regularisation).values()
    )


def multi_stage_bound(problem: ConvexProblem, stages: Stages, *, variance: float) -> float:
    """The bound of the stages for a strongly convex loss: the sum of `accelerated_terms`.

    With the lengths and scales of appendix E.1, each stage at least halves the risk, to Delta 2^-k. Lemma E.2 as
    printed, Delta exp(-sqrt(mu/beta) R) + V^2/(mu R) up to a constant, claims more than these stages give: a
    halving takes 4 sqrt(2 kappa) rounds, so the exponent is 0.12 sqrt(mu/beta) R.

    >>> p = ConvexProblem(clients=4, records=9, dim=8, epsilon=1, delta=0.1, smoothness=8.0, strong_convexity=1)
    >>> multi_stage_bound(p, fit_stages(p, rounds=48, variance=0.0), variance=0.0) <= p.gap / 8
    True
    """
    positive("strong_convexity", problem.strong_convexity)
    return sum(accelerated_terms(problem, stages, variance={"noise": variance}).values())


def stage_rounds(problem: ConvexProblem, *, stage: int, variance: float) -> float:
    """R_k of appendix E.1 before it is rounded up: max{ 4 sqrt(2 kappa), 128 V^2/(3 mu Delta 2^-(k+1)) }.

    >>> p = ConvexProblem(clients=4, records=9, dim=8, epsilon=1, delta=0.1, smoothness=8.0, strong_convexity=1)
    >>> stage_rounds(p, stage=1, variance=0.0), stage_rounds(p, stage=1, variance=0.375)
    (16.0, 64.0)
    """
    noise = 128 * not_negative("variance", variance) * 2.0 ** (count("stage", stage) + 1)
    quiet = 4 * math.sqrt(2 * problem.condition_number)
    return max(quiet, noise / (3 * problem.strong_convexity * problem.gap))


def stage_curvature(problem: ConvexProblem, *, stage: int, rounds: int, variance: float) -> float:
    """v_k of appendix E.1: max{ 2 beta, sqrt( mu V^2 R_k (R_k+1) (R_k+2) / (3 Delta 2^-(k-1)) ) }.

    The paper prints R_k (R_k+1) (R_k+2) in the denominator. There it would keep v_k at 2 beta and let the noise
    grow with R_k; in the numerator it balances noise and start, and R_k is long enough to halve the risk.

    >>> p = ConvexProblem(clients=4, records=9, dim=8, epsilon=1, delta=0.1, smoothness=1.0, strong_convexity=1)
    >>> stage_curvature(p, stage=1, rounds=8, variance=15.0)
    60.0
    """
    r = count("rounds", rounds)
    risk = problem.gap * 2.0 ** (1 - count("stage", stage))
    balance = problem.strong_convexity * not_negative("variance", variance) * r * (r + 1) * (r + 2) / (3 * risk)
    return max(2 * problem.smooth, math.sqrt(balance))


def fit_stages(problem: ConvexProblem, *, rounds: int, variance: float) -> tuple[tuple[int, float], ...]:
    """The stages of appendix E.1 that fit into this many rounds; the last one takes the remaining rounds.

    If not even the first fits, a single stage of all rounds with v = beta, which needs no minimum length.

    >>> p = ConvexProblem(clients=4, records=9, dim=8, epsilon=1, delta=0.1, smoothness=8.0, strong_convexity=1)
    >>> [length for length, curvature in fit_stages(p, rounds=50, variance=0.0)]
    [16, 16, 18]
    >>> fit_stages(p, rounds=5, variance=0.0)
    ((5, 8.0),)
    """
    left, lengths = count("rounds", rounds), list[int]()
    while len(lengths) < MOST_STAGES:
        needed = math.ceil(stage_rounds(problem, stage=len(lengths) + 1, variance=variance))
        if needed > left:
            break
        lengths.append(needed)
        left -= needed
    if not lengths:
        return ((left, problem.smooth),)
    lengths[-1] += left
    return tuple(
        (length, stage_curvature(problem, stage=k, rounds=length, variance=variance))
        for k, length in enumerate(lengths, start=1)
    )
