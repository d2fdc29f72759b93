"""How far the numbers of a draft reach: the scales of columns, their limits, and what a target's range cuts off.

Ranges end where most values do, because what is small within its range is learned through more noise. If a few
values far outside decide what can be explained (delays of hours, populations of large cities), they have to count
as they are. This compares columns with the target, so a draft marks it as looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacit.data.encode import Vector
from tacit.data.schema.guess import nice_range, within_reach

ROOMY = 50.0
"""Records over the root of clients times features, from which on noise at epsilon 4 leaves room for long tails.

The signal can then be 20 times the noise, about (docs/results/tables.md)."""

WORTH = 0.01
"""The share of the variance that another scale or limits must tell more of, or ten over the records: more than
chance."""

FACTORS = (2.0, 4.0, 8.0)
"""How many times as wide as its range a column's limits are, at most."""

TAILS = (0.003, 0.001)
"""Shares of a target's values at each end that a wider range need not reach."""

WIDEST, KEPT = 4.0, 0.9
"""A wider range of a target is at most so many times as wide, and is to keep this share of its variance."""


def has_room(records: int, clients: int, features: int) -> bool:
    """Whether there are enough records that the noise on far values costs less than cutting them off."""
    return records >= ROOMY * math.sqrt(clients * features)


@dataclass(frozen=True)
class Goal:
    """The target of every row, to compare columns with."""

    values: Vector
    """numbers, or codes of classes; NaN for gaps"""
    classed: bool

    def told(self, numbers: Vector) -> float:
        """The share of variance that a line in these numbers explains; for classes, that of the numbers by class.

        >>> Goal(np.array([1.0, 2.0, 3.0, np.nan]), False).told(np.array([5.0, 7.0, 9.0, 1.0]))
        1.0
        """
        known = ~np.isnan(numbers) & ~np.isnan(self.values)
        x, y = numbers[known], self.values[known]
        if len(x) < 2 or x.min() == x.max() or y.min() == y.max():
            return 0.0
        if not self.classed:
            return round(float(np.corrcoef(x, y)[0, 1] ** 2), 12)
        codes = y.astype(np.int64)
        sizes = np.bincount(codes)
        means = np.bincount(codes, x - x.mean()) / np.maximum(sizes, 1)
        return float((sizes * means**2).sum() / len(x) / x.var())

    def at(self, rows: Vector) -> Goal:
        """The target of some rows, by their places."""
        return Goal(self.values[rows], self.classed)

    @property
    def _worth(self) -> float:
        return max(WORTH, 10 / len(self.values))

    def follows_line(self, numbers: Vector, low: float, high: float) -> bool:
        """Whether numbers above 0 tell more of the target than their logarithms do."""
        clipped = np.clip(numbers, low, high)
        return self.told(clipped) > self.told(np.log(clipped)) + self._worth

    def limits(self, numbers: Vector, low: float, high: float) -> tuple[float, float] | None:
        """Limits outside of a range up to which numbers tell more of the target; None if it suffices."""
        inside = self.told(np.clip(numbers, low, high))
        tried = {factor: _widened(numbers, low, high, factor) for factor in FACTORS}
        told = {factor: self.told(np.clip(numbers, *ends)) for factor, ends in tried.items()}
        most = max(told.values())
        if most < inside + self._worth:
            return None
        return next(tried[factor] for factor in FACTORS if told[factor] >= most - WORTH / 5)


def _widened(numbers: Vector, low: float, high: float, factor: float) -> tuple[float, float]:
    """The range on a multiple of its width, towards each side no farther than it takes to hold the numbers."""
    width, least, most = high - low, float(np.nanmin(numbers)), float(np.nanmax(numbers))
    start = low - width * _times(low - least, width, factor)
    end = high + width * _times(most - high, width, factor)
    return float(f"{max(start, 0.0) if least >= 0 else start:.12g}"), float(f"{end:.12g}")


def _times(outside: float, width: float, factor: float) -> float:
    """How many widths to add for numbers so far outside; at most one less than the factor."""
    return next(times - 1 for times in (1.0, *FACTORS) if times == factor or outside <= (times - 1) * width)


def kept(numbers: Vector, low: float, high: float) -> float:
    """The share of the variance of a target that is left to explain if it is cut off at a range.

    >>> kept(np.array([1.0, 2.0, 3.0]), 0.0, 5.0)
    1.0
    """
    return Goal(numbers, False).told(np.clip(numbers, low, high))


def wider(numbers: Vector, low: float, high: float, counts: bool) -> tuple[float, float]:
    """A wider range of a target that keeps more of what there is to explain; the same one, if none does."""
    best = low, high
    for tail in TAILS:
        first, last = nice_range(within_reach(numbers, tail), share=0.0)
        if kept(numbers, *best) >= KEPT or last - first > WIDEST * (high - low):
            break
        best = max(first, 0.0) if counts else first, last
    return best
