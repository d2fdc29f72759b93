"""The choices of ISRL-DP (Lowy & Razaviyayn 2023) for a run: steps, stages, regularisation and smoothing.

This needs a linear model, a public bound on the features, and a ball that contains the model. The noise in the
formulas is that which the run will really add.
"""

from __future__ import annotations

from typing import Any

from tacit.errors import RequestError
from tacit.theory.asked import Asked
from tacit.theory.isrl_dp.accelerated import (
    best_regularisation,
    fit_stages,
    gradient_variance,
    multi_stage_bound,
)
from tacit.theory.isrl_dp.constants import problem_of
from tacit.theory.isrl_dp.mb_sgd import mb_sgd_step
from tacit.theory.isrl_dp.problem import ConvexProblem
from tacit.theory.isrl_dp.smoothing import model_smoothing

STAND_IN = {"epsilon": 1.0, "delta": 1e-5}
"""Placeholders for runs without a promise: there is no noise, but the formulas need numbers."""


def choose_descent(asked: Asked) -> dict[str, Any]:
    """The step of Noisy MB-SGD that minimises the bound of Lemma D.6 for the actual noise."""
    posed = problem(asked) if asked.is_open("step") else None
    if posed is None:
        return {}
    rounds, batch = _rounds(asked), asked.batch()
    step = mb_sgd_step(posed, rounds=rounds, noise_std=asked.noise_std(rounds, batch))
    return {"rounds": rounds, "step": step}


def choose_accelerated(asked: Asked) -> dict[str, Any]:
    """Stages, and the regularisation of the convex case, for the accelerated algorithm.

    Strongly convex: the stages of appendix E.1 that fit into the rounds, or a single one if its bound is better.
    Convex: one stage on f + (lambda/2) ||w - w_0||^2 with the lambda of Lemma E.1.
    """
    posed = problem(asked) if asked.is_open("step", "stages") else None
    if posed is None:
        return {}
    rounds, batch = _rounds(asked), asked.batch()
    drawn = max(1, round(asked.rate(batch) * posed.records))
    noise = asked.noise_std(rounds, batch)
    variance = gradient_variance(posed, batch=drawn, noise_std=noise, empirical=not asked.one_pass)
    strength = 0.0
    if posed.is_strongly_convex:
        choices = (fit_stages(posed, rounds=rounds, variance=variance), ((rounds, posed.smooth),))
        stages = min(choices, key=lambda stages: multi_stage_bound(posed, stages, variance=variance))
    else:
        strength = best_regularisation(posed, rounds=rounds, variance=variance)
        stages = ((rounds, posed.smooth + strength),)
    return {
        "rounds": rounds,
        "stages": [[length, curvature] for length, curvature in stages],
        "regularisation": strength,
        "step": 1 / stages[0][1],
    }


def _rounds(asked: Asked) -> int:
    """As given; else, in one pass, the number of disjoint batches: R = floor(n / K)."""
    if asked.one_pass and asked.is_open("rounds"):
        return asked.disjoint_batches(asked.batch())
    return int(asked.value("rounds"))


def problem(asked: Asked) -> ConvexProblem | None:
    """The problem that a run poses, or None if its public constants are not known.

    Gradients are assumed to be as long as the bound allows; a bound below the loss's own Lipschitz constant is a
    bias that the theory does not cover.
    """
    if asked.feature_norm is None or asked.diameter is None:
        return None
    try:
        return problem_of(
            asked.model,
            asked.federation,
            epsilon=STAND_IN["epsilon"] if asked.epsilon is None else asked.epsilon,
            delta=STAND_IN["delta"] if asked.delta is None else asked.delta,
            feature_norm=asked.feature_norm,
            diameter=asked.diameter,
            target_bound=asked.target_bound,
            cohort=asked.mean_cohort,
        )
    except RequestError as error:
        if "must be given" in str(error) or "must be a linear model" in str(error):
            return None
        raise


def smoothing(asked: Asked) -> float:
    """The beta that Theorem D.2 (one pass) or F.2 (empirical risk) prescribes for a loss that is not smooth."""
    if asked.feature_norm is None or asked.diameter is None:
        raise RequestError(
            "model.smoothing = 'theory' needs public bounds: feature_norm (or data.unit_norm), and "
            "algorithm.projection = 'ball:RADIUS'"
        )
    return model_smoothing(
        asked.model,
        asked.federation,
        setting="iid" if asked.one_pass else "erm",
        epsilon=STAND_IN["epsilon"] if asked.epsilon is None else asked.epsilon,
        delta=STAND_IN["delta"] if asked.delta is None else asked.delta,
        feature_norm=asked.feature_norm,
        diameter=asked.diameter,
        cohort=asked.mean_cohort,
    )
