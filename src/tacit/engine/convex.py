"""What the theory of convex losses chooses for a recipe, from public numbers: papers/001.

It needs a linear model, a public bound on the features (`feature_norm`, or `data.unit_norm`) and a ball in
which the model must lie (`projection = "ball:RADIUS"`). The noise in the formulas is the one that the run will
really add.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Privacy, attendance, calibrate, releases
from tacit.client.bounds import Bound
from tacit.client.estimators import Minibatch
from tacit.client.sampling import build_sampling
from tacit.client.work import PrivateGradient
from tacit.compress import Direct, Identity
from tacit.engine.recipe import Recipe
from tacit.engine.targets import for_each_client
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.noise.randomness import Randomness
from tacit.server.participation import FixedNumber, Participation, RandomNumber, parse_participation
from tacit.server.projection import parse_projection
from tacit.server.update import Descent
from tacit.theory import isrl_dp as theory

THEORY = "theory"
"""How a recipe asks for the Moreau envelope that the theorem prescribes: model.smoothing = "theory"."""


@dataclass(frozen=True)
class ConvexProblem:
    """A recipe as the theory sees it, and the noise of its messages for given rounds and batch."""

    problem: theory.Problem
    setting: str
    noise_std_at: Callable[[int, float | None], float]


def convex_problem(
    recipe: Recipe,
    model: Model,
    federation: Federation,
    bound: Bound,
    privacy: Privacy,
    feature_norm: float | None,
) -> ConvexProblem | None:
    """The problem that a recipe poses, or None where its public constants are not known.

    Gradients are taken to be as long as the bound lets them be; a bound below the loss's own Lipschitz constant
    is a bias that the theory does not know of.
    """
    diameter = parse_projection(recipe.projection or "none").diameter
    if feature_norm is None or diameter is None:
        return None
    participation = parse_participation(recipe.cohort)
    # Without privacy the noise is none, and epsilon only stands where the theory's formulas want a number.
    epsilons, deltas = _budgets(recipe, federation)
    try:
        problem = theory.problem_of(
            model,
            federation,
            epsilon=min(epsilons),
            delta=min(deltas),
            feature_norm=feature_norm,
            diameter=diameter,
            target_bound=recipe.target_bound,
            cohort=_mean_cohort(participation, federation.clients),
        )
    except RequestError as error:
        if "must be given" in str(error) or "must be a linear model" in str(error):
            return None
        raise

    def noise_std_at(rounds: int, batch: float | None) -> float:
        if privacy == "none":
            return 0.0
        work = PrivateGradient(model, Minibatch(build_sampling(recipe.sampling or "full", batch)), bound)
        algorithm = Algorithm("planned", work, Direct(Identity()), Descent(1.0), participation)
        attended = attendance(algorithm, federation, rounds, Randomness(recipe.seed))
        found = calibrate(algorithm, federation, releases=releases(algorithm, attended), privacy=privacy)
        # Silos add independent noise, so their mean square is what the averaged gradient has.
        return math.sqrt(float(found.noise_stds.square().mean()))

    return ConvexProblem(problem, "non-iid" if recipe.sampling == "one-pass" else "erm", noise_std_at)


def _budgets(recipe: Recipe, federation: Federation) -> tuple[list[float], list[float]]:
    epsilon = 1.0 if recipe.epsilon is None else recipe.epsilon
    delta = 1e-5 if recipe.delta is None else recipe.delta
    return for_each_client("epsilon", epsilon, federation), for_each_client("delta", delta, federation)


def _mean_cohort(participation: Participation, clients: int) -> float | None:
    """M: 1/M is the mean of 1/M_r."""
    if isinstance(participation, FixedNumber):
        return float(participation.number)
    if isinstance(participation, RandomNumber):
        sizes = range(participation.fewest, participation.most + 1)
        return len(sizes) / sum(1 / size for size in sizes)
    return None


def descent_step(posed: ConvexProblem, recipe: Recipe) -> float:
    """The step of Noisy MB-SGD that makes Lemma D.6's bound smallest for the real noise."""
    rounds = recipe.rounds or 1
    noise_std = posed.noise_std_at(rounds, recipe.batch)
    return theory.mb_sgd_step(posed.problem, rounds=rounds, noise_std=noise_std, setting=posed.setting)


def accelerated_choices(posed: ConvexProblem, recipe: Recipe) -> dict[str, Any]:
    """Stages, and the regularisation of the convex case, for the accelerated algorithm.

    Strongly convex: the stages of appendix E.1 that fit into the rounds, or a single one where that has the
    better bound. Convex: one stage on f + (lambda/2) ||w - w_0||^2 with the lambda of Lemma E.1.
    """
    problem, rounds = posed.problem, recipe.rounds or 1
    sampling = build_sampling(recipe.sampling or "full", recipe.batch)
    batch = max(1, round(sampling.rate(problem.records) * problem.records))
    variance = theory.gradient_variance(
        problem,
        batch=batch,
        noise_std=posed.noise_std_at(rounds, recipe.batch),
        empirical=posed.setting == "erm",
    )
    if problem.is_strongly_convex:
        choices = (
            theory.fit_stages(problem, rounds=rounds, variance=variance),
            (theory.Stage(rounds, problem.smooth),),
        )
        stages = min(choices, key=lambda stages: theory.multi_stage_bound(problem, stages, variance=variance))
        return {"stages": [[stage.rounds, stage.curvature] for stage in stages], "regularisation": 0.0}
    strength = theory.best_regularisation(problem, rounds=rounds, variance=variance)
    return {"stages": [[rounds, problem.smooth + strength]], "regularisation": strength}


def with_theory_smoothing(
    recipe: Recipe, make_model: Callable[[Recipe], Model], federation: Federation, feature_norm: float | None
) -> Recipe:
    """The recipe with the beta that Theorem D.2 (one pass) or F.2 (empirical risk) prescribes for its loss."""
    if recipe.model_settings.get("smoothing") != THEORY:
        return recipe
    diameter = parse_projection(recipe.projection or "none").diameter
    if feature_norm is None or diameter is None:
        raise RequestError(
            "model.smoothing = 'theory' needs public bounds: feature_norm (or data.unit_norm), and "
            "projection = 'ball:RADIUS'"
        )
    plain = {name: value for name, value in recipe.model_settings.items() if name != "smoothing"}
    epsilons, deltas = _budgets(recipe, federation)
    beta = theory.model_smoothing(
        make_model(replace(recipe, model_settings=plain)),
        federation,
        setting="iid" if recipe.sampling == "one-pass" else "erm",
        epsilon=min(epsilons),
        delta=min(deltas),
        feature_norm=feature_norm,
        diameter=diameter,
        cohort=_mean_cohort(parse_participation(recipe.cohort), federation.clients),
    )
    return replace(recipe, model_settings={**plain, "smoothing": beta})
