"""Predicts a run's noise and signal from public numbers before it starts, and derives step lengths from them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.federation import Federation
from tacit.models.linear import LinearModel
from tacit.models.model import Model
from tacit.models.persons import model_of_rows
from tacit.privacy.promises.terms import Unit
from tacit.server.self_tuned import Prospect

CLASS_SCORES = 30.0
"""Typical spread of the scores of a good classifier: a public guess, the same for all data."""

TARGET_SCORES = 4.0
"""The same for regression, in units of a typical residual."""

RESIDUAL = 0.15
"""A typical residual of an untrained regression, as a share of the public bound on its targets."""

SHARP = 150.0
"""At this signal-to-noise ratio and above, noise cost real tables about a point at most; below, up to 30
(docs/results/tables.md)."""

NOISY = 100.0
"""Below this ratio, noise on all features of a wide table costs more than farther steps gain
(docs/results/default-rules.md)."""

LONG_TAIL = 1.6
"""Targets that reach farther than this from their usual value, in halves of their range, have a long tail."""

ROOM_FROM, MOST_ROOM = 500.0, 4.0
"""Above this ratio, the room for a long tail grows with it, up to so many times; below `SHARP` it shrinks."""

TABLE_SPREAD = 1.0
"""How far records of a table with a schema typically lie apart: less than their features are long, because ranges
are wider than most values and categories repeat."""

CLIENT_STEP = 10.0
"""Local steps where whole clients are protected, times the squared scale: the mean curvature is far less."""

LOCAL_NOISE = 0.5
"""How far a client's own noise may move scores during the local steps of a round, in residuals."""

NETWORK_SCALE = 3.0
"""Typical change of a network's scores per unit of distance; for a linear model it is the features' norm."""


IN_TARGETS_UNIT = ("rmse", "mae", "pinball loss")
"""Metrics of losses whose scores are predicted targets, in a unit of any size."""


def feature_scale(model: Model, feature_norm: float | None = None) -> float:
    """Typical change of scores per unit of distance in parameters; for linear models, the features' norm.

    Without a public norm, features of about 1/2 each are assumed, which is typical after scaling.
    """
    model = model_of_rows(model)
    if not isinstance(model, LinearModel):
        return NETWORK_SCALE
    squared = model.features / 4 if feature_norm is None else feature_norm**2
    return math.sqrt(squared + model.intercept)


def has_open_steps(algorithm: Algorithm) -> bool:
    """Whether some step length still depends on the noise, which is not known yet."""
    return bool(getattr(algorithm.server, "is_open", False)) or getattr(algorithm.work, "step_size", 1.0) is None


def settle_steps(
    algorithm: Algorithm, federation: Federation, noise_stds: Tensor, noise_multiplier: float, rounds: int
) -> Algorithm:
    """Fills in every open step length, now that the noise is known.

    Guarantee: of what is released, only the length of local steps changes, and no event depends on it.
    """
    work: Any = algorithm.work
    if getattr(work, "step_size", 1.0) is None:
        known = prospect(replace(algorithm, work=replace(work, step_size=1.0)), federation, noise_stds,
                         noise_multiplier, rounds)  # fmt: skip
        step = _local_step(algorithm, federation, known, noise_stds)
        algorithm = replace(algorithm, work=replace(work, step_size=step))
    server: Any = algorithm.server
    if not hasattr(server, "settled"):
        return algorithm
    known = prospect(algorithm, federation, noise_stds, noise_multiplier, rounds)
    return replace(algorithm, server=server.settled(known))


def _local_step(algorithm: Algorithm, federation: Federation, known: Prospect, noise_stds: Tensor) -> float:
    """Noisy local steps cover, in total, the distance that suits the noise, and none is longer than is stable.

    Nor may a client's own noise, which no other client averages out before its last local step, move scores by
    more than a share of a residual. Shorter local steps lose nothing: the server's are longer.
    """
    work: Any = algorithm.work
    scale = feature_scale(work.model, federation.feature_norm)
    bound = work.bound.norm(work.bounded)
    if work.unit is not Unit.RECORD:
        return CLIENT_STEP / scale**2  # only the update as a whole is bounded
    stable = 1 / (scale * min(scale, bound))
    fitting = known.travel() / (known.rounds * work.batches_per_round * min(scale, bound))
    walk = float(noise_stds.square().mean().sqrt()) * math.sqrt(work.batches_per_round * known.dim / work.bounded)
    steady = LOCAL_NOISE * known.distance / (known.score_range * walk) if walk > 0 else math.inf
    return float(min(stable, fitting, steady))


def prospect(
    algorithm: Algorithm, federation: Federation, noise_stds: Tensor, noise_multiplier: float, rounds: int
) -> Prospect:
    """Predicts the noise of the directions, from that of every client's vectors, and their length."""
    work: Any = algorithm.work
    model, dim = work.model, work.model.dim
    cohort = algorithm.participation.typical(federation.clients)
    kept = work.bounded
    scale = feature_scale(model, federation.feature_norm)
    bound = work.bound.norm(kept) if math.isfinite(work.bound.norm(kept)) else scale
    length = bound * math.sqrt(dim / kept)
    if algorithm.trust.charges_everyone:
        std = noise_multiplier * length / cohort
    else:
        weights = 1.0 if federation.weights is None else federation.weights.double()
        std = math.sqrt(float((noise_stds * weights).square().mean()) / cohort)
    # Where clients work on only some coordinates, rand-k drops nothing and only scales up what there is.
    std *= math.sqrt(algorithm.uplink.noise_factor(dim) if kept == dim else dim / kept)
    gradients, noise = work.pace
    length, std = length * gradients, std * noise
    far, lags = model.metric_name in IN_TARGETS_UNIT, algorithm.uplink.lags
    scores = typical_scores(federation)
    known = Prospect(dim, rounds, length, std, 1.0, scores, open_ended=far, lagging=lags)
    return replace(known, distance=_expected_distance(model, federation, bound, known.signal_to_noise))


def _reached(classes: int, ratio: float, apart: float) -> float:
    """How many times as far as two classes of a table suggest steps lead: as far as noise permits.

    Every class has scores of its own, so a good model of k classes is sqrt(k/2) times as far away. But noise
    moves a record's scores by all of its features, not only by what records differ in (`apart`, as a share):
    where noise is large, steps lead no farther than for any other data.
    """
    return max(min(1.0, max(apart, (ratio / NOISY) ** 2)), min(ratio / SHARP, math.sqrt(classes / 2)))


def _expected_distance(model: Model, federation: Federation, bound: float, ratio: float) -> float:
    """D: a guess of how far a good model is from the start, at this signal-to-noise ratio."""
    scale = feature_scale(model, federation.feature_norm)
    if federation.classes is None:
        return TARGET_SCORES * typical_residual(model, federation, bound, ratio) / scale
    if federation.schema is None:
        return CLASS_SCORES / scale
    near = min(scale, feature_scale(model, TABLE_SPREAD))
    apart = feature_scale(model, TABLE_SPREAD) / scale
    return CLASS_SCORES / near * _reached(federation.classes, ratio, apart)


def typical_scores(federation: Federation) -> float:
    """A guess of how far apart the scores of a good model are, in residuals."""
    return TARGET_SCORES if federation.classes is None else CLASS_SCORES


def typical_residual(model: Model, federation: Federation, bound: float, ratio: float) -> float:
    """A guess of how large the residuals of an untrained regression are, at this signal-to-noise ratio.

    Without a public bound on targets, the bound on gradients is taken to be as long as a typical one. For a
    table, half of the target's range is 1, and residuals are larger if the target has a long tail.
    """
    if federation.schema is not None:
        return RESIDUAL * (1 + 3 * long_tail(federation) * tail_room(ratio))
    if federation.target_bound is None:
        return bound / feature_scale(model, federation.feature_norm)
    return RESIDUAL * federation.target_bound


def long_tail(federation: Federation) -> float:
    """How long the tail of a table's target is, between 0 and 1, by how far it reaches from its usual value.

    If the usual value is close to one end of the range, the tail at the other is long, and clipping it pulls all
    predictions towards that end.
    """
    most = 0.0 if federation.schema is None else federation.schema.target.most
    return max(0.0, most - LONG_TAIL) / (2 - LONG_TAIL)


def tail_room(ratio: float) -> float:
    """How much of a long tail the noise leaves room for, by the signal-to-noise ratio.

    Where there is much noise, it costs more than clipping the tail; where there is little, clipping costs more.

    >>> [tail_room(ratio) for ratio in (30, 150, 400, 1000, 5000)]
    [0.2, 1.0, 1.0, 2.0, 4.0]
    """
    return min(1.0, ratio / SHARP) * min(max(1.0, ratio / ROOM_FROM), MOST_ROOM)
