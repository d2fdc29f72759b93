"""Accelerated Noisy MB-SGD (AC-SA), Algorithm 1 of ISRL-DP (Lowy & Razaviyayn 2023): parameters and promises.

The paper quotes its rates from Ghadimi & Lan (2012, 2013) and Woodworth et al. (2020) without constants. The
inequality of `accelerated_bound` is their argument for smooth losses with the constants kept. The letters of
the formulas are those of `tacit.theory.isrl_dp`.
"""

from __future__ import annotations

import math

from tacit.errors import RequestError, count, positive
from tacit.theory.isrl_dp.problem import Problem
from tacit.theory.soteriafl.checks import ROUND_OFF, not_negative


def mixing_weight(round_number: int) -> float:
    """alpha_r = 2/(r+1) for r = 1, 2, ...: how much of the new point goes into the output (appendix E.1).

    >>> mixing_weight(1), mixing_weight(3)
    (1.0, 0.5)
    """
    return 2 / (count("round_number", round_number) + 1)


def prox_weight(round_number: int, curvature: float) -> float:
    """eta_r = 4 v/(r (r+1)) for r = 1, 2, ...: how firmly a round holds on to the last point (appendix E.1).

    It is the inverse of a step; v, the `curvature` that a stage reckons with, is at least the loss's own.

    >>> prox_weight(1, 3.0), prox_weight(2, 3.0)
    (6.0, 2.0)
    """
    r = count("round_number", round_number)
    return 4 * positive("curvature", curvature) / (r * (r + 1))


def accelerated_bound(
    *,
    rounds: int,
    curvature: float,
    smoothness: float,
    strong_convexity: float,
    variance: float,
    distance_squared: float,
) -> float:
    """What R rounds of Algorithm 1 promise against any point x: E F(w_R^ag) - F(x).

    2 v ||w_0 - x||^2/(R (R+1)) + V^2 min{ (2R+1)/(12 (v - beta)), 2/(mu (R+1)) } for v >= beta, with the
    `mixing_weight` and `prox_weight` above and unbiased gradients of variance at most V^2.

    Proof. One round gives F(w_r^ag) - F(x) <= (1 - alpha_r)(F(w_{r-1}^ag) - F(x)) + telescoping distances
    + alpha_r <u_r, x - w_r^+> + alpha_r^2 ||u_r||^2/(2 A_r), where u_r is the error of the gradient, w_r^+ is
    known before it, and A_r = mu + eta_r - beta alpha_r^2 is at least mu and at least 4 (v - beta)/(r (r+1)).
    Divide by Gamma_r = 2/(r (r+1)), for which eta_r/Gamma_r = 2v and (1 - alpha_r)/Gamma_r = 1/Gamma_{r-1}, and
    add up.

    >>> accelerated_bound(
    ...     rounds=9, curvature=3.0, smoothness=1.0, strong_convexity=0.0, variance=6.0, distance_squared=15.0)
    5.75
    """
    r, v, beta = count("rounds", rounds), positive("curvature", curvature), positive("smoothness", smoothness)
    mu, v_squared = not_negative("strong_convexity", strong_convexity), not_negative("variance", variance)
    if v < beta * (1 - ROUND_OFF):
        raise RequestError(f"curvature must be at least smoothness = {beta!r}, not {v!r}")
    start = 2 * v * not_negative("distance_squared", distance_squared) / (r * (r + 1))
    if v_squared == 0:
        return start
    by_prox = (2 * r + 1) / (12 * (v - beta)) if v > beta else math.inf
    by_convexity = 2 / (mu * (r + 1)) if mu > 0 else math.inf
    return start + v_squared * min(by_prox, by_convexity)


def theorem_e_1_regularisation(problem: Problem, *, rounds: int, variance: float) -> float:
    """The lambda of the convex case in the proof of Theorem E.1: V/(2 D sqrt(R)).

    Algorithm 1 then runs on f + (lambda/2) ||w - w_0||^2. Lemma E.1 and Theorem F.1 have twice this lambda for
    the same purpose; `best_regularisation` has four times it. All three are of the right order.

    >>> p = Problem(clients=4, records=9, dim=8, epsilon=1.0, delta=0.1)
    >>> theorem_e_1_regularisation(p, rounds=25, variance=4.0)
    0.2
    """
    return math.sqrt(not_negative("variance", variance) / count("rounds", rounds)) / (2 * problem.diameter)


def best_regularisation(problem: Problem, *, rounds: int, variance: float) -> float:
    """The lambda that balances the two terms of `regularised_bound` that it rules: 2 V/(D sqrt(R)).

    >>> p = Problem(clients=4, records=9, dim=8, epsilon=1.0, delta=0.1)
    >>> best_regularisation(p, rounds=25, variance=4.0)
    0.8
    """
    return 4 * theorem_e_1_regularisation(problem, rounds=rounds, variance=variance)


def regularised_bound(problem: Problem, *, rounds: int, variance: float, regularisation: float) -> float:
    """Lemma E.1 with its constants: the excess risk of Algorithm 1 on f + (lambda/2) ||w - w_0||^2, convex f.

    2 (beta + lambda) D^2/(R (R+1)) + 2 V^2/(lambda (R+1)) + lambda D^2/2, with mu = lambda in Algorithm 1 and
    v = beta + lambda: `accelerated_bound` against the minimiser of f itself. With `best_regularisation` that is
    at most 2 beta D^2/R^2 + 2 V D/sqrt(R) + 4 V D/R^(5/2).

    >>> p = Problem(clients=4, records=9, dim=8, epsilon=1.0, delta=0.1, smoothness=9.6)
    >>> round(regularised_bound(p, rounds=24, variance=1.0, regularisation=0.4), 6)
    0.433333
    """
    strength = not_negative("regularisation", regularisation)
    smoothness = problem.smooth + strength
    descent = accelerated_bound(
        rounds=rounds,
        curvature=smoothness,
        smoothness=smoothness,
        strong_convexity=strength,
        variance=variance,
        distance_squared=problem.diameter**2,
    )
    return descent + strength * problem.diameter**2 / 2
