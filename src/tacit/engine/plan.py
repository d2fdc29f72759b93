"""From a recipe to the things it names, with every open choice made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Privacy, attendance, calibrate, releases
from tacit.algorithms.hybrid import protect_clients
from tacit.algorithms.registry import algorithm_entry
from tacit.algorithms.shuffled import settled
from tacit.algorithms.shuffler import Shuffler, check_target
from tacit.engine.bound_source import find_bound
from tacit.engine.choices import feature_norm, resolved
from tacit.engine.convex import with_theory_smoothing
from tacit.engine.parts import algorithm_of
from tacit.engine.recipe import Recipe
from tacit.engine.records import load_federation, weighted
from tacit.engine.targets import check_promise, client_target, privacy_of
from tacit.errors import RequestError, count
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.models.registry import build_model, default_model
from tacit.noise.randomness import Randomness


@dataclass(frozen=True)
class Plan:
    """All that a run needs; `recipe` has no open choice left and reproduces it."""

    recipe: Recipe
    federation: Federation
    algorithm: Algorithm
    privacy: Privacy
    rounds: int


def make_plan(recipe: Recipe, *, data_dir: Path | None = None, federation: Federation | None = None) -> Plan:
    """Load the data (unless they are given), build the parts, and fill in what the recipe leaves open."""
    count("memory_limit_mb", recipe.memory_limit_mb, at_least=0)
    _check_device(recipe.device)
    entry = algorithm_entry(recipe.algorithm)
    check_promise(recipe, entry.private)
    federation = load_federation(recipe, data_dir) if federation is None else weighted(recipe, federation)
    privacy = privacy_of(recipe, federation)
    recipe = replace(recipe, model=recipe.model or default_model(federation), clients=federation.clients)
    make_model = partial(_model, federation)
    recipe = with_theory_smoothing(recipe, make_model, federation, feature_norm(recipe))
    model = make_model(recipe)
    recipe = resolved(recipe, model, federation, entry, privacy)
    rounds = count("rounds", recipe.rounds or 0)
    recipe, before = find_bound(recipe, model, federation, privacy, data_dir)
    algorithm = algorithm_of(recipe, model, federation, before)
    unit = str(algorithm.work.unit)
    if privacy != "none" and recipe.privacy not in (None, unit):
        raise RequestError(
            f"algorithm {recipe.algorithm!r} protects every {unit}: privacy = {recipe.privacy!r} is not for it"
        )
    recipe = replace(recipe, privacy="none" if privacy == "none" else unit)
    # Whatever the accountant refuses is refused here, before anything is written or run.
    times = releases(algorithm, attendance(algorithm, federation, rounds, Randomness(recipe.seed)))
    if isinstance(algorithm.trust, Shuffler):
        check_target(algorithm.work, privacy)
    if recipe.client_epsilon is not None:
        whole = client_target(recipe.client_epsilon, recipe)
        privacy = protect_clients(algorithm, federation, releases=times, privacy=privacy, clients=whole)
    calibration = calibrate(algorithm, federation, releases=times, privacy=privacy)
    algorithm = settled(algorithm, float(calibration.noise_multipliers[0]))
    return Plan(recipe, federation, algorithm, privacy, rounds)


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RequestError(f"device {device!r} is not available: {str(error).splitlines()[0]}") from error


def _model(federation: Federation, recipe: Recipe) -> Model:
    return build_model(recipe.model or "", federation, recipe.model_settings)
