"""What events cost: the smallest epsilon that can be proved for them, rounded to the safe side.

Gaussian releases alone have a closed form. Everything else is composed numerically from the dominating pairs of its
releases; the grid of losses is refined until the answer stands still. Every value on the way is a valid upper bound.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

import numpy as np
from dp_accounting import DpEvent
from scipy import optimize

from tacit.errors import RequestError
from tacit.privacy import gaussian
from tacit.privacy.composition import ComposedLoss, compose
from tacit.privacy.dominate import Direction, dominate, is_private, splits_noise
from tacit.privacy.events import from_dict, repeated, to_dict
from tacit.privacy.pairs import RevealedPair
from tacit.privacy.terms import Adjacency

_TOLERANCE = 1e-3
"""The part of epsilon that discretisation is meant to cost."""

_RESOLUTION = 2.5e-3
"""Refinement stops when finer grids can improve epsilon by at most this part of it."""

_LEAST_EPSILON = 1e-2
"""Below this epsilon the tolerance is absolute."""

_LOG_NEGLIGIBLE = -14.0
"""log of the part of delta that may be spent on the far ends of the loss."""

_ROUNDING = 1e-7
"""Relative allowance for floating point, orders of magnitude above its errors."""

_FEWEST_CELLS = 256
"""Cells of the first and coarsest grid over the loss of one release."""


def epsilon(event: DpEvent, delta: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> float:
    """The epsilon that an event provably keeps at `delta`: never below the true one, infinite if there is none.

    It exceeds the epsilon of the event's dominating pairs by at most 0.5% (by 1e-5 if that is below 0.01).

    >>> from tacit.privacy.events import poisson, repeated
    >>> round(epsilon(repeated(poisson(0.01, 1.0), 1000), 1e-5, Adjacency.ADD_REMOVE), 2)
    1.83
    >>> round(epsilon(repeated(poisson(0.01, 1.0), 1000), 1e-5), 2)
    2.84
    """
    return _epsilon(json.dumps(to_dict(event)), check_delta(delta), Adjacency(adjacency))


def delta(event: DpEvent, epsilon: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> float:
    """The delta that an event provably keeps at `epsilon`: never below the true one, one if there is no guarantee.

    >>> from tacit.privacy.events import gaussian
    >>> round(delta(gaussian(2.0), 1.0), 4)
    0.1269
    """
    return math.exp(min(0.0, max(log_delta(event, epsilon, adjacency), -744.0)))


def log_delta(event: DpEvent, epsilon: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> float:
    """The natural logarithm of `delta`, also where delta is too small for a floating point number."""
    if isinstance(epsilon, bool) or not (math.isfinite(epsilon) and epsilon >= 0):
        raise RequestError(f"epsilon must be a finite number of at least 0, not {epsilon!r}")
    return _log_delta(json.dumps(to_dict(event)), float(epsilon), Adjacency(adjacency))


def epsilon_curve(
    event: DpEvent, rounds: Sequence[int], delta: float, adjacency: Adjacency = Adjacency.REPLACE_ONE
) -> tuple[float, ...]:
    """The epsilon after each of the given numbers of repetitions of one round's event; zero after none.

    >>> from tacit.privacy.events import gaussian
    >>> [round(e, 3) for e in epsilon_curve(gaussian(10.0), [0, 1, 4], 1e-5)]
    [0.0, 0.727, 1.556]
    """
    return tuple(epsilon(repeated(event, t), delta, adjacency) if t else 0.0 for t in rounds)


def check_delta(value: float) -> float:
    """The value, if it can be a delta."""
    if isinstance(value, bool) or not 0 < value < 1:
        raise RequestError(f"delta must be a number above 0 and below 1, not {value!r}; well below 1/records is usual")
    return float(value)


def rough_log_delta(event: DpEvent, epsilon: float, adjacency: Adjacency) -> float:
    """An upper bound on `log_delta` from one coarse grid: to find one's way, not to promise anything."""
    return _log_delta(json.dumps(to_dict(event)), epsilon, adjacency, rough=True)


@lru_cache(maxsize=4096)
def _epsilon(text: str, at_delta: float, adjacency: Adjacency) -> float:
    event = from_dict(json.loads(text))
    if not is_private(event):
        return math.inf
    log_tail = math.log(at_delta) + _LOG_NEGLIGIBLE

    def bounds(direction: Direction) -> Iterator[float]:
        told = _told(direction)
        if told is None:
            return _epsilon_bounds(direction, at_delta, log_tail)
        return iter([gaussian.epsilon(told.shifts, told.weights, math.log(at_delta - told.unbounded))])

    return _largest(event, adjacency, log_tail, bounds) * (1 + _ROUNDING)


@lru_cache(maxsize=4096)
def _log_delta(text: str, at_epsilon: float, adjacency: Adjacency, rough: bool = False) -> float:
    event = from_dict(json.loads(text))
    if not is_private(event):
        return 0.0

    def bounds(direction: Direction) -> Iterator[float]:
        told = _told(direction)
        if told is None:
            values = _log_delta_bounds(direction, at_epsilon, log_tail)
            return islice(values, 1) if rough else values
        finite = gaussian.log_delta(told.shifts, told.weights, at_epsilon)
        return iter([_log_sum(finite, told.unbounded)])

    # What may be cut away depends on the answer: begin generously, and cut less if it turns out smaller.
    log_tail = -30.0
    while True:
        found = _largest(event, adjacency, log_tail, bounds)
        if rough or log_tail <= found + _LOG_NEGLIGIBLE or log_tail < -700:
            return found + _ROUNDING
        log_tail = min(2 * log_tail, found + 2 * _LOG_NEGLIGIBLE)


def _told(direction: Direction) -> RevealedPair | None:
    """The direction as Gaussian releases whose shift is told, if that is all it is; there is a closed form for it."""
    if not direction.pairs:
        return RevealedPair((1.0,), (direction.shift,))
    match direction.pairs:
        case ((RevealedPair() as pair, 1),):
            return replace(
                pair,
                weights=(*pair.weights, pair.atom),
                shifts=tuple(math.hypot(shift, direction.shift) for shift in (*pair.shifts, 0.0)),
                atom=0.0,
            )
    return None


def _largest(
    event: DpEvent, adjacency: Adjacency, log_tail: float, bounds: Callable[[Direction], Iterator[float]]
) -> float:
    """The largest of the directions' values, refining only the one that is in the lead."""

    def running(split: float) -> list[Iterator[float]]:
        return [bounds(direction) for direction in dominate(event, adjacency, log_tail=log_tail, split=split)]

    split = 0.0
    if splits_noise(event):
        search = optimize.minimize_scalar(
            lambda x: max(next(values) for values in running(x)),
            bounds=(-4.0, 1.0),
            method="bounded",
            options={"xatol": 0.2, "maxiter": 8},
        )
        split = float(search.x)
    iterators = running(split)
    values = [next(iterator) for iterator in iterators]
    while True:
        lead = max(range(len(values)), key=values.__getitem__)
        tighter = next(iterators[lead], None)
        if tighter is None:
            return values[lead]
        values[lead] = tighter


@dataclass(frozen=True)
class _Reading:
    """An upper bound, the change in it that does not matter, the epsilon it is about, and the tilt that served."""

    value: float
    resolution: float
    epsilon: float
    tilt: float


def _epsilon_bounds(direction: Direction, at_delta: float, log_tail: float) -> Iterator[float]:
    def measure(composed: ComposedLoss, tilt: float | None) -> _Reading:
        target = math.log(at_delta - composed.infinite)
        near = composed.near(composed.tilt_for(target) if tilt is None else tilt)
        found = near.epsilon(target)
        while near.tilt > 0 and found < near.mean - 4 * near.spread:
            # So far from the tilted mean, the rounding errors that are added to delta weigh more than they need to.
            near = composed.near(min(composed.tilt_towards(found), near.tilt / 2))
            found = min(found, near.epsilon(target))
        return _Reading(found, _RESOLUTION * max(found, _LEAST_EPSILON), found, near.tilt)

    return _refined(direction, log_tail, _FEWEST_CELLS, measure)


def _log_delta_bounds(direction: Direction, at_epsilon: float, log_tail: float) -> Iterator[float]:
    def measure(composed: ComposedLoss, tilt: float | None) -> _Reading:
        near = composed.near(composed.tilt_towards(at_epsilon) if tilt is None else tilt)
        found = near.log_delta(at_epsilon, composed.infinite)
        # log(delta) falls by `tilt` per unit of epsilon.
        resolution = _RESOLUTION * max(4.0, near.tilt * max(at_epsilon, _LEAST_EPSILON))
        return _Reading(found, resolution, at_epsilon, near.tilt)

    per_release = _step_for(at_epsilon, direction.releases)
    cells = _loss_width(direction, log_tail) / per_release
    return _refined(direction, log_tail, min(max(cells, _FEWEST_CELLS), 16 * _FEWEST_CELLS), measure)


def _refined(
    direction: Direction,
    log_tail: float,
    first_cells: float,
    measure: Callable[[ComposedLoss, float | None], _Reading],
) -> Iterator[float]:
    """Ever tighter upper bounds, on ever finer grids, until they stand still.

    What is left of the error falls in proportion to the step, or faster, which bounds it by the last change.
    """
    log_tail -= math.log(direction.releases)
    step = _loss_width(direction, log_tail) / first_cells
    reading = measure(compose(direction, step, log_tail), None)
    best = reading.value
    yield best
    while True:
        finer = min(max(_step_for(reading.epsilon, direction.releases), step / 64), step / 4)
        reading = measure(compose(direction, finer, log_tail), reading.tilt)
        change, best = best - reading.value, min(best, reading.value)
        yield best
        if change / (step / finer - 1) <= reading.resolution:
            return
        step = finer


def _step_for(at_epsilon: float, releases: int) -> float:
    """The step at which discretisation, about step^2/12 per release in the mean loss, costs the tolerance."""
    return math.sqrt(12 * _TOLERANCE * max(at_epsilon, _LEAST_EPSILON) / releases)


def _loss_width(direction: Direction, log_tail: float) -> float:
    ranges = [pair.loss_range(log_tail) for pair, _ in direction.pairs]
    return max(high - low for low, high in ranges)


def _log_sum(log_value: float, other: float) -> float:
    """log(exp(log_value) + other)."""
    return float(np.logaddexp(log_value, math.log(other))) if other > 0 else log_value
