"""The parts of an algorithm, from a recipe whose choices are all made."""

from __future__ import annotations

import math
from collections.abc import Callable

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.registry import algorithm_entry, build_algorithm
from tacit.algorithms.trust import Aggregator, Nobody
from tacit.client.bounds import Bound, ClipEachCoordinate, ClipNorm, Normalise
from tacit.client.estimators import DIFFERENCE_BOUND
from tacit.client.sampling import build_sampling
from tacit.compress import parse_compressor
from tacit.engine.bound_source import check_paid
from tacit.engine.crowd import shuffler_for
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError, positive, unknown_name
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.noise.additive import build_noise
from tacit.noise.randomness import Randomness
from tacit.privacy.side import SideRelease
from tacit.schedules import parse_schedule
from tacit.server.accelerated import Stage
from tacit.server.participation import PoissonClients, parse_participation
from tacit.server.projection import parse_projection
from tacit.server.update import parse_output

BOUNDS: dict[str, Callable[[float], Bound]] = {
    "clip-norm": ClipNorm,
    "normalise": Normalise,
    "clip-each-coordinate": ClipEachCoordinate,
}


def bound_of(recipe: Recipe) -> Bound:
    """What makes one record's, or one client's, influence finite."""
    if recipe.bound not in BOUNDS:
        raise unknown_name("bound", recipe.bound, BOUNDS)
    return BOUNDS[recipe.bound](recipe.clip_norm)


def _growth(strong_convexity: float, step: float) -> float:
    """Lemma D.6: later points weigh 1/(1 - mu step) more in a strongly convex problem."""
    if not 0 <= strong_convexity < math.inf:
        raise RequestError(f"strong_convexity must be a finite number of at least 0, not {strong_convexity!r}")
    if strong_convexity * step >= 1:
        raise RequestError(
            f"step = {step:g} is too long for strong_convexity = {strong_convexity:g}: take less than its inverse"
        )
    return 1 / (1 - strong_convexity * step)


def _stages(stages: int | list[list[float]], rounds: int, step: float) -> tuple[Stage, ...]:
    """The stages as given, or the rounds cut into stages as equal as they can be, of first curvature 1/step."""
    if isinstance(stages, list):
        if not all(isinstance(stage, list) and len(stage) == 2 for stage in stages):
            raise RequestError(f"stages must be a number, or [rounds, curvature] for each stage, not {stages!r}")
        made = tuple(Stage(_whole(length), curvature) for length, curvature in stages)
        if sum(stage.rounds for stage in made) != rounds:
            raise RequestError(
                f"stages have {sum(stage.rounds for stage in made)} rounds in all, the recipe {rounds}"
            )
        return made
    if not 1 <= stages <= rounds:
        raise RequestError(f"stages must be between 1 and the {rounds} rounds, not {stages}")
    lengths = [rounds // stages + (k < rounds % stages) for k in range(stages)]
    return tuple(Stage(length, 1 / step) for length in lengths)


def _whole(rounds: float) -> int:
    if not isinstance(rounds, int | float) or rounds != rounds // 1:
        raise RequestError(f"the rounds of a stage must be a whole number, not {rounds!r}")
    return int(rounds)


def algorithm_of(
    recipe: Recipe, model: Model, federation: Federation, before: SideRelease[float] | None = None
) -> Algorithm:
    """The algorithm of a recipe; `before` is what finding its bound has cost, if it was looked for privately."""
    check_paid(recipe, before)
    positive("step", recipe.step or 0.0)
    mu, step, rounds = recipe.strong_convexity or 0.0, recipe.step or 0.0, recipe.rounds or 1
    entry = algorithm_entry(recipe.algorithm)
    central = entry.client_coins and recipe.adversary != "server"
    participation = _client_coins(recipe, federation) if central else parse_participation(recipe.cohort)
    settings = {
        "bound": bound_of(recipe),
        "before": before,
        "clip_norm": _plain_size(recipe),
        "sampling": build_sampling(recipe.sampling, recipe.batch) if recipe.sampling is not None else None,
        "compressor": parse_compressor(recipe.compressor) if recipe.compressor is not None else None,
        "step": recipe.step,
        "shift_step": recipe.shift_step,
        "snapshot_probability": recipe.snapshot_probability,
        "difference_bound": DIFFERENCE_BOUND if recipe.difference_bound is None else recipe.difference_bound,
        "projection": parse_projection(recipe.projection or "none"),
        "growth": _growth(mu, step),
        "stages": _stages(1 if recipe.stages is None else recipe.stages, rounds, step),
        "strong_convexity": mu,
        "regularisation": recipe.regularisation or 0.0,
        "local_steps": recipe.local_steps,
        "local_step": recipe.local_step,
        "schedule": parse_schedule(recipe.step_schedule or "constant"),
        "momentum": recipe.momentum,
        "beta_1": recipe.beta_1,
        "beta_2": recipe.beta_2,
        "kappa": recipe.kappa,
        "bits": recipe.bits,
        "rotate": recipe.rotate,
        "output": parse_output(recipe.output or "last", rounds, Randomness(recipe.seed)),
        "trust": Aggregator(participation.expected) if isinstance(participation, PoissonClients) else Nobody(),
        "shuffler": shuffler_for(participation, federation) if "shuffler" in entry.settings else None,
        "noise": build_noise(recipe.noise),
        "participation": participation,
    }
    return build_algorithm(recipe.algorithm, model, settings)


def _plain_size(recipe: Recipe) -> float:
    """The size of the bound, for algorithms that have their own kind of it."""
    if "clip_norm" in algorithm_entry(recipe.algorithm).settings and recipe.bound != Recipe.bound:
        raise RequestError(
            f"algorithm {recipe.algorithm!r} bounds in its own way: leave out bound = {recipe.bound!r}"
        )
    return recipe.clip_norm


def _client_coins(recipe: Recipe, federation: Federation) -> PoissonClients:
    """Every client by a secret coin, `cohort` of them on average."""
    try:
        return PoissonClients(float(federation.clients if recipe.cohort is None else recipe.cohort))
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"cohort must be a number of clients here, not {recipe.cohort!r}") from error
