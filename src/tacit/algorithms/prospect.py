"""What can be said of a run before it starts, from public numbers alone; and the steps that follow from it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.federation import Federation
from tacit.models.linear import LinearModel
from tacit.models.model import Model
from tacit.privacy.promises.terms import Unit
from tacit.server.participation import FixedNumber, Participation, PoissonClients, RandomNumber
from tacit.server.self_tuned import Prospect

CLASS_SCORES = 30.0
"""How far apart the scores of a good classifier lie: a public guess, the same for all data."""

TARGET_SCORES = 4.0
"""The same for a regression, in residuals at the start."""

NETWORK_SCALE = 3.0
"""About how far a network's scores move for a unit of distance, where a linear model's move by its features."""


def feature_scale(model: Model, feature_norm: float | None = None) -> float:
    """About how far scores move for a unit of distance: the length of a record's features, for linear models.

    Where no public norm is given, features of about 1/2 each are assumed, as scaled ones have.
    """
    if not isinstance(model, LinearModel):
        return NETWORK_SCALE
    squared = model.features / 4 if feature_norm is None else feature_norm**2
    return math.sqrt(squared + model.intercept)


def has_open_steps(algorithm: Algorithm) -> bool:
    """Whether a step waits until the noise is known."""
    return bool(getattr(algorithm.server, "is_open", False)) or getattr(algorithm.work, "step_size", 1.0) is None


def settle_steps(
    algorithm: Algorithm, federation: Federation, noise_stds: Tensor, noise_multiplier: float, rounds: int
) -> Algorithm:
    """The algorithm with every step that was left open, now that the noise is known.

    Guarantee: nothing that is released changes but for the length of local steps, which no event depends on.
    """
    work: Any = algorithm.work
    if getattr(work, "step_size", 1.0) is None:
        known = prospect(replace(algorithm, work=replace(work, step_size=1.0)), federation, noise_stds,
                         noise_multiplier, rounds)  # fmt: skip
        algorithm = replace(algorithm, work=replace(work, step_size=_local_step(algorithm, federation, known)))
    server: Any = algorithm.server
    if not hasattr(server, "settled"):
        return algorithm
    known = prospect(algorithm, federation, noise_stds, noise_multiplier, rounds)
    return replace(algorithm, server=server.settled(known))


def _local_step(algorithm: Algorithm, federation: Federation, known: Prospect) -> float:
    """Noisy steps make, all together, the travel that suits the noise; none is longer than is stable."""
    work: Any = algorithm.work
    scale = feature_scale(work.model, federation.feature_norm)
    bound = work.bound.norm(getattr(work, "kept", work.model.dim))
    if work.unit is not Unit.RECORD:
        return 1 / scale**2  # local gradients are not bounded
    stable = 1 / (scale * min(scale, bound))
    return float(min(stable, known.travel() / (known.rounds * work.batches_per_round * min(scale, bound))))


def prospect(
    algorithm: Algorithm, federation: Federation, noise_stds: Tensor, noise_multiplier: float, rounds: int
) -> Prospect:
    """What is known of the directions: their noise, from that of every client's vectors, and their length."""
    work: Any = algorithm.work
    model, dim = work.model, work.model.dim
    cohort = expected_cohort(algorithm.participation, federation.clients)
    kept = getattr(work, "kept", dim)
    scale = feature_scale(model, federation.feature_norm)
    bound = work.bound.norm(kept) if math.isfinite(work.bound.norm(kept)) else scale
    length = bound * math.sqrt(dim / kept)
    if algorithm.trust.charges_everyone:
        std = noise_multiplier * length / cohort
    else:
        weights = 1.0 if federation.weights is None else federation.weights.double()
        std = math.sqrt(float((noise_stds * weights).square().mean()) / cohort)
    # Where clients work on some coordinates alone, rand-k drops nothing, and scales up what there is.
    std *= math.sqrt(algorithm.uplink.noise_factor(dim) if kept == dim else dim / kept)
    gradients, noise = getattr(work, "pace", (1.0, 1.0))
    length, std = length * gradients, std * noise
    distance, scores = public_guess(model, federation, federation.feature_norm, bound)
    return Prospect(dim, rounds, length, std, distance, scores)


def public_guess(
    model: Model, federation: Federation, feature_norm: float | None, bound: float
) -> tuple[float, float]:
    """About how far a good model is from the start, and how far apart its scores lie, in usual residuals."""
    scale = feature_scale(model, feature_norm)
    if federation.classes is not None:
        return CLASS_SCORES / scale, CLASS_SCORES
    # The bound is about as long as a usual gradient, a residual times the features.
    return TARGET_SCORES * bound / scale**2, TARGET_SCORES


def expected_cohort(participation: Participation, clients: int) -> float:
    """How many clients a direction is the mean of; where that number is random, by the mean of its inverse."""
    if isinstance(participation, PoissonClients):
        return participation.expected
    if isinstance(participation, FixedNumber):
        return float(participation.number)
    if isinstance(participation, RandomNumber):
        sizes = range(participation.fewest, participation.most + 1)
        return len(sizes) / sum(1 / size for size in sizes)
    return float(clients)
