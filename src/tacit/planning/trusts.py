"""What trust buys: the noise and the predicted result of one promise, by how messages travel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tacit.algorithms.registry import algorithm_entry
from tacit.engine.choices import feature_norm
from tacit.engine.defaults import CHEAP
from tacit.engine.outlook import outlook
from tacit.engine.plan import Plan
from tacit.engine.recipe import Recipe
from tacit.engine.records import load_federation
from tacit.engine.simulate import simulate
from tacit.errors import RequestError, TacitError
from tacit.federation import Federation
from tacit.planning.rehearsal import synthetic_like
from tacit.planning.shape import plan_unseen


@dataclass(frozen=True)
class TrustRow:
    """One way for messages to travel."""

    travel: str
    relies_on: str
    algorithm: str
    noise_std: float | None = None
    """noise on every coordinate of the mean of a round's messages"""
    signal_to_noise: float | None = None
    """how far the signal of the whole run can exceed the noise"""
    predicted_metric: float | None = None
    """metric on synthetic records of the same shape; None if that would take long"""
    metric_name: str | None = None
    own_epsilon: float | None = None
    """what one client's messages are worth if the assumption fails"""
    refused: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)


def what_trust_buys(
    recipe: Recipe, *, algorithm: str, federation: Federation | None = None, data_dir: Path | None = None
) -> tuple[TrustRow, ...]:
    """The same promise with messages seen one by one, shuffled, summed under masks, and in one trusted place.

    No record is used: noise follows from public numbers, and results are predicted by runs on synthetic records.
    """
    real = load_federation(recipe, data_dir, look=False) if federation is None else federation
    entry = algorithm_entry(algorithm)
    if entry.client_coins:
        raise RequestError(f"{algorithm!r} protects whole clients; this table is about records")
    base = replace(recipe.for_algorithm(algorithm), trust=None, quorum=None, colluding=None)
    if real.schema is None:
        # A shuffler's messages cannot be charged for what is learned, and noise is compared in the same unit.
        base = replace(base, target_bound=recipe.public_target_bound or 0.0)
    width = math.prod(real.feature_shape)
    # Made-up rows of persons would be no persons.
    tried = real.records * width * (real.classes or 1) <= CHEAP and not real.by_person
    # Without a public norm, features of about 1/2 each are assumed, as by the defaults.
    norm = feature_norm(recipe) or math.sqrt(width) / 2
    made_up = (
        synthetic_like(real, norm, seed=recipe.seed, target_bound=recipe.public_target_bound) if tried else real
    )
    return tuple(_rows(base, recipe, made_up, tried))


def _rows(base: Recipe, asked: Recipe, records: Federation, tried: bool) -> Iterator[TrustRow]:
    summed = replace(base, trust="sum", quorum=asked.quorum, colluding=asked.colluding)
    yield _row("one by one", "nobody", base, records, tried)
    yield _row("shuffled", "a shuffler", _shuffled(base, records), records, tried)
    yield _row("summed", "enough silos", summed, records, tried)
    whole = replace(
        records, sizes=records.sizes.sum()[None], ids=torch.zeros(1, dtype=torch.int64), names=None, weights=None
    )
    yield _row("one place", "that place", replace(base, clients=1, weights=None), whole, tried)


def _shuffled(base: Recipe, records: Federation) -> Recipe:
    """The recipe behind a shuffler, with the largest batches for which there is a proof, unless they are given.

    Its own default is small batches, which need more noise than messages that are seen one by one.
    """
    recipe = base.for_algorithm("shuffled-mb-sgd")
    if {"sampling", "batch"} & recipe.algorithm_settings.keys():
        return recipe
    batch = float(records.sizes.min())
    return recipe.with_algorithm_settings(sampling="without-replacement", batch=batch)


def _row(travel: str, relies_on: str, recipe: Recipe, records: Federation, tried: bool) -> TrustRow:
    try:
        plan = plan_unseen(recipe, records)
        metric = _tried(plan) if tried else None
    except TacitError as error:
        return TrustRow(travel, relies_on, recipe.algorithm, refused=str(error))
    beside, seen = plan.calibration.beside, outlook(plan)
    return TrustRow(
        travel,
        relies_on,
        recipe.algorithm,
        noise_std=_mean_noise(plan),
        signal_to_noise=None if seen is None else seen.signal_to_noise,
        predicted_metric=metric,
        metric_name=plan.algorithm.work.model.metric_name,
        own_epsilon=beside[0].epsilon if beside else None,
    )


def _tried(plan: Plan) -> float:
    run = simulate(plan, evaluate_every=plan.rounds)
    return plan.algorithm.work.model.metric(run.parameters, plan.federation.batch(None))


def _mean_noise(plan: Plan) -> float:
    weights = plan.federation.weights
    stds = plan.calibration.noise_stds if weights is None else plan.calibration.noise_stds * weights.double()
    cohort = plan.algorithm.participation.typical(plan.federation.clients)
    return math.sqrt(float(stds.square().mean()) / cohort)
