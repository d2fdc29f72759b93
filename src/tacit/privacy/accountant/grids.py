"""Epsilon or delta of a composed loss, on finer and finer grids until the number no longer changes.

Every intermediate number is already an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import numpy as np

from tacit.privacy.accountant import gaussian
from tacit.privacy.accountant.composition import ComposedLoss, compose
from tacit.privacy.accountant.dominate import Direction
from tacit.privacy.accountant.pairs import RevealedPair

_RESOLUTION = 2.5e-3
"""Refinement stops when finer grids can improve epsilon by at most this fraction of it."""

_LEAST_EPSILON = 1e-2
"""Below this epsilon the resolution is absolute."""

_FEWEST_CELLS = 256
"""Cells of the first and coarsest grid over the loss of one release."""

_SETTLED = 0.02


class Question(Protocol):
    """A number to compute for a composed loss; a larger number means less privacy."""

    def exact(self, revealed: RevealedPair) -> float:
        """The exact number for Gaussian releases whose shift is revealed."""
        ...

    def aim(self, composed: ComposedLoss) -> float:
        """A tilt that centres the composed law near the answer."""
        ...

    def answer(self, composed: ComposedLoss, tilt: float) -> tuple[float, float]:
        """An upper bound, and the size of a change in it that is negligible."""
        ...


@dataclass(frozen=True)
class EpsilonAt:
    """Which epsilon belongs to this delta?"""

    delta: float

    def exact(self, revealed: RevealedPair) -> float:
        return gaussian.epsilon(revealed.shifts, revealed.weights, math.log(self.delta - revealed.unbounded))

    def aim(self, composed: ComposedLoss) -> float:
        return composed.tilt_for(self._log_target(composed))

    def answer(self, composed: ComposedLoss, tilt: float) -> tuple[float, float]:
        near = composed.near(tilt)
        found = near.epsilon(self._log_target(composed))
        for _ in range(8):
            if near.tilt == 0 or found > near.mean - 4 * near.spread:
                break
            # This far from the tilted mean, the rounding errors added to delta weigh more than necessary.
            near = composed.near(min(composed.tilt_towards(found), near.tilt / 2))
            found = min(found, near.epsilon(self._log_target(composed)))
        return found, _RESOLUTION * max(found, _LEAST_EPSILON)

    def _log_target(self, composed: ComposedLoss) -> float:
        return math.log(self.delta - composed.infinite)


@dataclass(frozen=True)
class LogDeltaAt:
    """Which log(delta) belongs to this epsilon?"""

    epsilon: float

    def exact(self, revealed: RevealedPair) -> float:
        finite = gaussian.log_delta(revealed.shifts, revealed.weights, self.epsilon)
        return float(np.logaddexp(finite, math.log(revealed.unbounded))) if revealed.unbounded > 0 else finite

    def aim(self, composed: ComposedLoss) -> float:
        return composed.tilt_towards(self.epsilon)

    def answer(self, composed: ComposedLoss, tilt: float) -> tuple[float, float]:
        # log(delta) falls by `tilt` per unit of epsilon.
        matters = max(4.0, tilt * max(self.epsilon, _LEAST_EPSILON))
        return composed.near(tilt).log_delta(self.epsilon, composed.infinite), _RESOLUTION * matters


def worst(directions: Sequence[Direction], log_tail: float, question: Question, *, rough: bool = False) -> float:
    """The largest answer over all directions; `rough` uses only the coarsest grid."""
    # Only the direction with the largest bound is refined; the others' bounds are good enough.
    running = [islice(_bounds(d, log_tail, question), 1 if rough else None) for d in directions]
    values = [next(bounds) for bounds in running]
    while True:
        lead = max(range(len(values)), key=values.__getitem__)
        tighter = next(running[lead], None)
        if tighter is None:
            return values[lead]
        values[lead] = tighter


def settled(directions: Sequence[Direction], log_tail: float, question: Question) -> float:
    """An answer that is accurate enough to compare bounds."""
    values = []
    for direction in directions:
        bounds = _bounds(direction, log_tail, question)
        value, change = next(bounds), math.inf
        while change > _SETTLED * abs(value) and (tighter := next(bounds, None)) is not None:
            value, change = tighter, value - tighter
        values.append(value)
    return max(values)


def _bounds(direction: Direction, log_tail: float, question: Question) -> Iterator[float]:
    """The answer if there is a closed form; otherwise ever tighter upper bounds, on grids each four times finer.

    The error falls in proportion to the step at first and to its square in the end. The remaining error is at
    most a third of the last change, and less once the changes shrink faster than that.
    """
    revealed = _revealed(direction)
    if revealed is not None:
        yield question.exact(revealed)
        return
    log_tail -= math.log(sum(times for _, times in direction.pieces))
    ranges = [pair.loss_range(log_tail) for pair, _ in direction.pieces]
    step = max(max(high, 0.0) - min(low, 0.0) for low, high in ranges) / _FEWEST_CELLS
    composed = compose(direction, step, log_tail)
    best, _ = question.answer(composed, question.aim(composed))
    change = math.inf
    yield best
    while True:
        step /= 4
        # The coarser law is accurate enough to find the tilt, at a quarter of the cost.
        tilt = question.aim(composed)
        composed = compose(direction, step, log_tail)
        value, resolution = question.answer(composed, tilt)
        shrinking = (best - value) / change
        change, best = best - value, min(best, value)
        yield best
        if change * min(1 / 3, shrinking / (1 - shrinking) if 0 < shrinking < 1 else 1 / 3) <= resolution:
            return


def _revealed(direction: Direction) -> RevealedPair | None:
    """The direction as Gaussian releases whose shift is revealed, or None if it contains anything else."""
    match direction.pairs:
        case ():
            return RevealedPair((1.0,), (direction.shift,))
        case ((RevealedPair() as pair, 1),):
            shifts = tuple(math.hypot(shift, direction.shift) for shift in (*pair.shifts, 0.0))
            return replace(pair, weights=(*pair.weights, pair.atom), shifts=shifts, atom=0.0)
    return None
