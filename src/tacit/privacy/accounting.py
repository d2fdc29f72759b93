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
from typing import Protocol

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

_RESOLUTION = 2.5e-3
"""Refinement stops when finer grids can improve epsilon by at most this part of it."""

_LEAST_EPSILON = 1e-2
"""Below this epsilon the tolerance is absolute."""

_LOG_NEGLIGIBLE = -9.0
"""log of the part of delta that may be spent on the far ends of the loss."""

_ROUNDING = 1e-7
"""Relative allowance for floating point, orders of magnitude above its errors."""

_FIRST_LOG_FLOOR, _LAST_LOG_FLOOR = math.log(1e-9), math.log(1e-300)

_TYPICAL_SPLIT, _SETTLED = -1.0, 0.02

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
    # What may be cut away depends on the answer: begin generously, and cut less if it turns out smaller.
    log_floor, found = _FIRST_LOG_FLOOR, math.inf
    while True:
        found = min(found, log_delta(event, epsilon, adjacency, log_floor=log_floor))
        if found >= log_floor or log_floor <= _LAST_LOG_FLOOR:
            return math.exp(min(0.0, max(found, _LAST_LOG_FLOOR)))
        log_floor = max(1.1 * max(found, 2 * log_floor) - 2, _LAST_LOG_FLOOR)


def log_delta(
    event: DpEvent, epsilon: float, adjacency: Adjacency, *, log_floor: float, rough: bool = False
) -> float:
    """An upper bound on the logarithm of delta, tight only above `log_floor` and, if not `rough`, there to about 1%."""
    if isinstance(epsilon, bool) or not (math.isfinite(epsilon) and epsilon >= 0):
        raise RequestError(f"epsilon must be a finite number of at least 0, not {epsilon!r}")
    return _log_delta(json.dumps(to_dict(event)), float(epsilon), Adjacency(adjacency), log_floor, rough)


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
        raise RequestError(
            f"delta must be a number above 0 and below 1, not {value!r}; well below 1/records is usual"
        )
    return float(value)


@lru_cache(maxsize=4096)
def _epsilon(text: str, at_delta: float, adjacency: Adjacency) -> float:
    event = from_dict(json.loads(text))
    if not is_private(event):
        return math.inf
    log_tail = math.log(at_delta) + _LOG_NEGLIGIBLE

    def bounds(direction: Direction) -> Iterator[float]:
        told = _told(direction)
        if told is None:
            return _refined(direction, log_tail, _EpsilonAt(at_delta))
        return iter([gaussian.epsilon(told.shifts, told.weights, math.log(at_delta - told.unbounded))])

    return _largest(event, adjacency, log_tail, bounds) * (1 + _ROUNDING)


@lru_cache(maxsize=4096)
def _log_delta(text: str, at_epsilon: float, adjacency: Adjacency, log_floor: float, rough: bool) -> float:
    event = from_dict(json.loads(text))
    if not is_private(event):
        return 0.0
    log_tail = log_floor + _LOG_NEGLIGIBLE

    def bounds(direction: Direction) -> Iterator[float]:
        told = _told(direction)
        if told is None:
            values = _refined(direction, log_tail, _LogDeltaAt(at_epsilon))
            return islice(values, 1) if rough else values
        finite = gaussian.log_delta(told.shifts, told.weights, at_epsilon)
        return iter([_log_sum(finite, told.unbounded)])

    return _largest(event, adjacency, log_tail, bounds, rough=rough) + _ROUNDING


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
    event: DpEvent,
    adjacency: Adjacency,
    log_tail: float,
    bounds: Callable[[Direction], Iterator[float]],
    rough: bool = False,
) -> float:
    """The largest of the directions' values, refining only the one that is in the lead."""

    def running(split: float) -> list[Iterator[float]]:
        return [bounds(direction) for direction in dominate(event, adjacency, log_tail=log_tail, split=split)]

    split = _TYPICAL_SPLIT
    if splits_noise(event) and not rough:
        # The choice decides how tight the bound is, not whether it holds; a rough value is good enough to choose by.
        search = optimize.minimize_scalar(
            lambda x: max(_settled(values) for values in running(x)),
            bounds=(-5.0, 0.5),
            method="bounded",
            options={"xatol": 0.1, "maxiter": 8},
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


def _settled(values: Iterator[float]) -> float:
    """The first of ever tighter values that differs little from the one before."""
    previous = next(values)
    for value in values:
        if abs(previous - value) <= _SETTLED * abs(value):
            return value
        previous = value
    return previous


class _Question(Protocol):
    """What is asked of a composed loss."""

    def aim(self, composed: ComposedLoss) -> float:
        """A tilt that puts the composed law where the answer is."""
        ...

    def answer(self, composed: ComposedLoss, tilt: float) -> tuple[float, float]:
        """An upper bound, and the change in it that does not matter."""
        ...


@dataclass(frozen=True)
class _EpsilonAt:
    delta: float

    def aim(self, composed: ComposedLoss) -> float:
        return composed.tilt_for(math.log(self.delta - composed.infinite))

    def answer(self, composed: ComposedLoss, tilt: float) -> tuple[float, float]:
        target = math.log(self.delta - composed.infinite)
        near = composed.near(tilt)
        found = near.epsilon(target)
        for _ in range(8):
            if near.tilt == 0 or found > near.mean - 4 * near.spread:
                break
            # So far from the tilted mean, the rounding errors that are added to delta weigh more than they need to.
            near = composed.near(min(composed.tilt_towards(found), near.tilt / 2))
            found = min(found, near.epsilon(target))
        return found, _RESOLUTION * max(found, _LEAST_EPSILON)


@dataclass(frozen=True)
class _LogDeltaAt:
    epsilon: float

    def aim(self, composed: ComposedLoss) -> float:
        return composed.tilt_towards(self.epsilon)

    def answer(self, composed: ComposedLoss, tilt: float) -> tuple[float, float]:
        # log(delta) falls by `tilt` per unit of epsilon.
        matters = max(4.0, tilt * max(self.epsilon, _LEAST_EPSILON))
        return composed.near(tilt).log_delta(self.epsilon, composed.infinite), _RESOLUTION * matters


def _refined(direction: Direction, log_tail: float, question: _Question) -> Iterator[float]:
    """Ever tighter upper bounds, on grids each four times finer, until they stand still.

    The error falls in proportion to the step at first and to its square in the end. What is left of it is at most a third
    of the last change, and less when the changes have begun to shrink faster than that.
    """
    log_tail -= math.log(sum(times for _, times in direction.pieces))
    ranges = [pair.loss_range(log_tail) for pair, _ in direction.pieces]
    step = max(max(high, 0.0) - min(low, 0.0) for low, high in ranges) / _FEWEST_CELLS
    composed = compose(direction, step, log_tail)
    best, _ = question.answer(composed, question.aim(composed))
    change = math.inf
    yield best
    while True:
        step /= 4
        # The coarser law tells well enough where to aim, at a quarter of the price.
        tilt = question.aim(composed)
        composed = compose(direction, step, log_tail)
        value, resolution = question.answer(composed, tilt)
        shrinking = (best - value) / change
        change, best = best - value, min(best, value)
        yield best
        if change * min(1 / 3, shrinking / (1 - shrinking) if 0 < shrinking < 1 else 1 / 3) <= resolution:
            return


def _log_sum(log_value: float, other: float) -> float:
    """log(exp(log_value) + other)."""
    return float(np.logaddexp(log_value, math.log(other))) if other > 0 else log_value
