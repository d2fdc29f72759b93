"""The multi-stage implementation of Algorithm 1, appendix E.1 of ISRL-DP (Lowy & Razaviyayn 2023).

For strongly convex losses: each stage starts where the last one ended and halves the excess risk. The letters
of the formulas are those of `tacit.theory.isrl_dp`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tacit.errors import RequestError, count, positive
from tacit.theory.isrl_dp.accelerated import accelerated_bound
from tacit.theory.isrl_dp.problem import Problem
from tacit.theory.soteriafl.checks import not_negative

MOST_STAGES = 60
"""So many halvings reach the resolution of a double."""


@dataclass(frozen=True)
class Stage:
    """One run of Algorithm 1: its rounds, and its v (`prox_weight`), which stands for the loss's curvature."""

    rounds: int
    curvature: float


def halving_rounds(problem: Problem) -> int:
    """The rounds in which a stage without noise halves the excess risk: 4 sqrt(2 kappa), rounded up.

    >>> p = Problem(clients=4, records=9, dim=8, epsilon=1.0, delta=0.1, smoothness=8.0, strong_convexity=1.0)
    >>> halving_rounds(p)
    16
    """
    return math.ceil(4 * math.sqrt(2 * problem.condition_number))


def stage_rounds(problem: Problem, *, stage: int, variance: float) -> float:
    """R_k of appendix E.1 before it is rounded up: max{ 4 sqrt(2 kappa), 128 V^2/(3 mu Delta 2^-(k+1)) }.

    >>> p = Problem(clients=4, records=9, dim=8, epsilon=1.0, delta=0.1, smoothness=8.0, strong_convexity=1.0)
    >>> stage_rounds(p, stage=1, variance=0.0), stage_rounds(p, stage=1, variance=0.375)
    (16.0, 64.0)
    """
    noise = 128 * not_negative("variance", variance) * 2.0 ** (count("stage", stage) + 1)
    quiet = 4 * math.sqrt(2 * problem.condition_number)
    return max(quiet, noise / (3 * problem.strong_convexity * problem.gap))


def stage_curvature(problem: Problem, *, stage: int, rounds: int, variance: float) -> float:
    """v_k of appendix E.1: max{ 2 beta, sqrt( mu V^2 R_k (R_k+1) (R_k+2) / (3 Delta 2^-(k-1)) ) }.

    The paper prints R_k (R_k+1) (R_k+2) in the denominator. There it would leave v_k at 2 beta for good and let
    the noise grow with R_k; in the numerator it balances noise and start, and R_k is long enough to halve.

    >>> p = Problem(clients=4, records=9, dim=8, epsilon=1.0, delta=0.1, smoothness=1.0, strong_convexity=1.0)
    >>> stage_curvature(p, stage=1, rounds=8, variance=15.0)
    60.0
    """
    r = count("rounds", rounds)
    risk = problem.gap * 2.0 ** (1 - count("stage", stage))
    balance = problem.strong_convexity * not_negative("variance", variance) * r * (r + 1) * (r + 2) / (3 * risk)
    return max(2 * problem.smooth, math.sqrt(balance))


def fit_stages(problem: Problem, *, rounds: int, variance: float) -> tuple[Stage, ...]:
    """The stages of appendix E.1 that fit into so many rounds; the last one takes the rounds that are left.

    Where not even the first fits, one stage of all rounds with v = beta, which needs no minimum length.

    >>> p = Problem(clients=4, records=9, dim=8, epsilon=1.0, delta=0.1, smoothness=8.0, strong_convexity=1.0)
    >>> [stage.rounds for stage in fit_stages(p, rounds=50, variance=0.0)]
    [16, 16, 18]
    >>> fit_stages(p, rounds=5, variance=0.0)
    (Stage(rounds=5, curvature=8.0),)
    """
    left, lengths = count("rounds", rounds), list[int]()
    while len(lengths) < MOST_STAGES:
        needed = math.ceil(stage_rounds(problem, stage=len(lengths) + 1, variance=variance))
        if needed > left:
            break
        lengths.append(needed)
        left -= needed
    if not lengths:
        return (Stage(left, problem.smooth),)
    lengths[-1] += left
    return tuple(
        Stage(length, stage_curvature(problem, stage=k, rounds=length, variance=variance))
        for k, length in enumerate(lengths, start=1)
    )


def multi_stage_bound(problem: Problem, stages: Sequence[Stage], *, variance: float) -> float:
    """What the stages promise for the noise that is really added: the expected excess risk after the last.

    `accelerated_bound` stage by stage, with ||q_k - w*||^2 <= min{ D^2, 2 (F(q_k) - F*)/mu }. With the lengths
    and scales of appendix E.1 each stage at least halves the risk, to Delta 2^-k.

    Lemma E.2 as printed, Delta exp(-sqrt(mu/beta) R) + V^2/(mu R) up to a constant, is more than these stages
    give: a halving takes 4 sqrt(2 kappa) rounds, so the exponent is 0.12 sqrt(mu/beta) R.

    >>> p = Problem(clients=4, records=9, dim=8, epsilon=1.0, delta=0.1, smoothness=8.0, strong_convexity=1.0)
    >>> multi_stage_bound(p, fit_stages(p, rounds=48, variance=0.0), variance=0.0) <= p.gap / 8
    True
    """
    if not stages:
        raise RequestError("stages must hold at least one stage")
    mu, risk = positive("strong_convexity", problem.strong_convexity), problem.gap
    for stage in stages:
        risk = accelerated_bound(
            rounds=stage.rounds,
            curvature=stage.curvature,
            smoothness=problem.smooth,
            strong_convexity=mu,
            variance=variance,
            distance_squared=min(problem.diameter**2, 2 * risk / mu),
        )
    return risk
