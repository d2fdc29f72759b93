"""Releases with three bounds on a record's contribution: when drawn, when not drawn, and on average (Lemma A').

A record adds a vector b to the release when it is drawn, with chance q, and a vector a when it is not. Its
average (1-q) a + q b is often far shorter than b: that of SVRG and SAGA is q times one bounded gradient. Lemma A
knows ||a|| and ||b|| alone; Lemma A' of docs/privacy.md uses the average as well, and halves the noise or better.

What Lemma A' asks for is the function F(k) = sup E(X - k)_+ over all allowed a and b, where X is the density of
(1-q) N(a) + q N(b) over N(0). This module computes an upper bound of F at finitely many k:

- The supremum is over two segments of Gram matrices of (a, b) (`_segments`). They are cut into cells, and every
  cell has one Gram matrix that dominates all of it (`_covers`).
- Along the line through a and b, X is a function m of one normal number; across it, an independent log-normal
  factor M. The law of m is replaced by a discrete one that is larger in convex order (`_along`), for which
  E(M m - k)_+ is a sum of closed forms.
- Between the k, F is replaced by its chords, which lie above it because F is convex.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr, ndtri_exp

from tacit.privacy.accountant.pairs import Array, _log_interval

Flags = NDArray[np.bool_]


class _Grid(NamedTuple):
    """How finely F is bounded: cells of a segment, values of k for each law that shapes F, nodes on a line."""

    cells: int
    knots: int
    nodes: int


_FINE, _ROUGH = _Grid(40, 100, 97), _Grid(10, 60, 49)
"""As a rule, the first exceeds F by as much as 0.3% less noise would, the second by 2%. Both are valid bounds."""

_STRIDE = 4
"""The first pass over a cell uses one in this many nodes."""

_EXTRA = 0.5
"""How far a cell's cover extends beyond the cell, as a fraction of the cell."""

_NARROW = 1.0
"""Densities that are no further apart than this, in standard deviations, share their nodes and knots."""

_LEAST_GAP = 1e-3
"""Knots are at least this much of the average's shift apart, in logarithms."""

LARGEST_SHIFT = 5.0
"""Contributions beyond this many standard deviations of the noise are left to other bounds."""


class Gram(NamedTuple):
    """The Gram matrix of a and b: ||a||^2, <a, b> and ||b||^2."""

    aa: float
    ab: float
    bb: float

    @classmethod
    def of(cls, rate: float, aa: float, bb: float, mm: float) -> Gram:
        """The Gram matrix from ||a||^2, ||b||^2 and ||(1-q) a + q b||^2."""
        p, q = 1 - rate, rate
        return cls(aa, (mm - p * p * aa - q * q * bb) / (2 * p * q), bb)

    def chi_square(self, rate: float) -> float:
        """The chi-square divergence E X^2 - 1."""
        p, q = 1 - rate, rate
        aa, ab, bb = (math.expm1(min(entry, 500.0)) for entry in self)
        return p * p * aa + 2 * p * q * ab + q * q * bb


class Against(Enum):
    """What the law of a release with the record is compared with."""

    ANOTHER_RECORD = "another record"
    NOBODY = "nobody"
    NOBODY_REVERSED = "nobody, in the other order"


@dataclass(frozen=True)
class AveragePair:
    """The dominating pair of Lemma A', as finitely many outcomes. Norms are in units of the noise's std."""

    rate: float
    inside: float
    outside: float
    average: float
    against: Against
    log_tail: float
    rough: bool = False
    atom: float = 0.0

    @property
    def unbounded(self) -> float:
        return _outcomes(self)[3]

    def outcomes(self) -> tuple[Array, Array, Array]:
        """Increasing losses, and the masses of P and Q at each."""
        return _outcomes(self)[:3]

    def loss_range(self, log_tail: float) -> tuple[float, float]:
        losses, upper, _ = self.outcomes()
        tail = math.exp(log_tail)
        first = int(np.searchsorted(np.cumsum(upper), tail))
        last = len(losses) - 1 - int(np.searchsorted(np.cumsum(upper[::-1]), tail))
        return float(losses[min(first, len(losses) - 1)]), float(losses[max(last, 0)])

    def log_cells(self, losses: Array) -> tuple[Array, Array]:
        places, upper, lower = self.outcomes()
        cell = np.searchsorted(losses, places)
        with np.errstate(divide="ignore"):
            return (
                np.log(np.bincount(cell, weights=upper, minlength=len(losses) + 1)),
                np.log(np.bincount(cell, weights=lower, minlength=len(losses) + 1)),
            )


@lru_cache(maxsize=512)
def _outcomes(pair: AveragePair) -> tuple[Array, Array, Array, float]:
    """Losses, masses of P and Q, and the mass of P at an infinite loss."""
    values, masses, beyond = _density(
        pair.rate, pair.inside, pair.outside, pair.average, pair.log_tail, _ROUGH if pair.rough else _FINE
    )
    if pair.against is Against.ANOTHER_RECORD:
        return _mirrored(values, masses, beyond)
    losses, (nothing,) = np.log(values[1:]), masses[:1]
    if pair.against is Against.NOBODY:
        return losses, values[1:] * masses[1:], masses[1:], beyond
    # Here P is the law without the record. Where the density with the record is zero, the loss is infinite.
    return -losses[::-1], masses[:0:-1], (values * masses)[:0:-1], float(nothing) + beyond


def _mirrored(values: Array, masses: Array, beyond: float) -> tuple[Array, Array, Array, float]:
    """P has the density X(t) and Q the density X(1 - t) on [0, 1], X the increasing function with this law."""
    highest, lowest = np.cumsum(masses[::-1]), np.cumsum(masses)
    levels = np.unique(np.concatenate(([0.0], highest[highest < 0.5], lowest[lowest < 0.5], [0.5])))
    widths, middles = np.diff(levels), (levels[1:] + levels[:-1]) / 2
    high = values[::-1][np.searchsorted(highest, middles)]
    low = values[np.searchsorted(lowest, middles)]
    certain = low == 0
    infinite = float((high * widths)[certain].sum()) + beyond
    losses = np.log(high[~certain] / low[~certain])
    more, less = (high * widths)[~certain], (low * widths)[~certain]
    order = np.argsort(losses, kind="stable")
    losses, more, less = losses[order], more[order], less[order]
    return (
        np.concatenate((-losses[::-1], losses)),
        np.concatenate((less[::-1], more)),
        np.concatenate((more[::-1], less)),
        infinite,
    )


@lru_cache(maxsize=256)
def _density(
    rate: float, inside: float, outside: float, average: float, log_tail: float, grid: _Grid
) -> tuple[Array, Array, float]:
    """A law on finitely many values, the first of them zero, with E(X - k)_+ >= F(k) for every k.

    The third number must be added to E(X - k)_+ for every k: P-mass that is not covered by the finite values.
    """
    # Outcomes that are cut off must be unlikely under the law that they are compared with, too.
    far = -float(ndtri_exp(log_tail - math.log(8))) + inside
    average = min(average, (1 - rate) * outside + rate * inside)
    covers = list(_covers(rate, inside, outside, average, grid.cells))
    knots = _knots(rate, inside, outside, average, _spread(far, grid.knots))
    puts, calls = knots[knots <= 1], knots[knots >= 1]
    bound = np.zeros(len(puts) + len(calls))
    strikes = np.concatenate((puts, calls))
    is_call = np.arange(len(strikes)) >= len(puts)
    nodes = _spread(far, grid.nodes)
    rough = np.array([_options(rate, gram, strikes, is_call, nodes[::_STRIDE]) for gram in covers])
    for index in np.argsort(-rough.max(axis=1)):
        # Skip points whose rough upper bound is already below the maximum so far.
        open_ones = rough[index] > bound
        if open_ones.any():
            found = _options(rate, covers[index], strikes[open_ones], is_call[open_ones], nodes)
            bound[open_ones] = np.maximum(bound[open_ones], found)
    below, above = bound[: len(puts)], bound[len(puts) :]
    chances_below = np.diff(below, prepend=0.0) / np.diff(puts, prepend=0.0)
    chances_above = np.append(-np.diff(above) / np.diff(calls), 0.0)
    lower = np.maximum(np.diff(chances_below, prepend=0.0), 0.0)
    upper = np.maximum(-np.diff(chances_above), 0.0)
    middle = max(0.0, 1 - lower.sum() - upper.sum())
    values = np.concatenate(([0.0], puts, calls[1:]))
    masses = np.concatenate((lower, [middle], upper))
    return values, masses, float(above[-1]) + abs(1 - float((values * masses).sum()))


def _segments(rate: float, inside: float, outside: float, average: float) -> Iterator[tuple[bool, float, float]]:
    """Where F is attained: ||(1-q) a + q b|| is the average, and ||a|| = outside or ||b|| = inside.

    On the first segment ||b||^2 runs between the two numbers, on the second ||a||^2 does.
    """
    p, q = 1 - rate, rate
    least, most = abs(average - p * outside) / q, min(inside, (average + p * outside) / q)
    if least <= most:
        yield True, least**2, most**2
    if most == inside:
        least, most = abs(average - q * inside) / p, min(outside, (average + q * inside) / p)
        yield False, min(least, most) ** 2, most**2


def _covers(rate: float, inside: float, outside: float, average: float, cells: int) -> Iterator[Gram]:
    """For every cell of the segments a Gram matrix that dominates all of the cell."""
    for by_inside, low, high in _segments(rate, inside, outside, average):
        # Cells are shorter towards the ends, where the supremum is for most k.
        part = np.linspace(0, 1, cells + 1)
        ends = low + (high - low) * part**2 / (part**2 + (1 - part) ** 2)
        own, other = (rate, 1 - rate) if by_inside else (1 - rate, rate)
        for start, stop in pairwise(ends):
            room = max(stop - start, 0.0)
            # The larger norm of the two ends with the larger inner product dominates, entry by entry. So does a
            # matrix that exceeds all of the cell by positive semidefinite ones.
            far, near = own * math.sqrt((1 + _EXTRA) * room), own * math.sqrt(_EXTRA * room)
            raised, excess = ((far + near) / 2) ** 2, ((far - near) / 2) ** 2
            entrywise = stop, 0.0, own**2 * room
            semidefinite = stop + _EXTRA * room, raised / other**2, excess
            grams = [
                Gram.of(rate, outside**2 + met, grown, average**2 + more)
                if by_inside
                else Gram.of(rate, grown, inside**2 + met, average**2 + more)
                for grown, met, more in (entrywise, semidefinite)
            ]
            yield min(grams, key=lambda gram: gram.chi_square(rate))


def _knots(rate: float, inside: float, outside: float, average: float, outcomes: Array) -> Array:
    """Where F is computed: the values of the densities that shape it, at evenly chosen outcomes, and 1."""
    beside = (average - rate * inside) / (1 - rate)
    laws = [
        [(1.0, average)],
        [(1.0, outside)],
        [(1 - rate, max(-outside, min(outside, beside))), (rate, inside)],
    ]
    logs = [_log_density(outcomes, law) for law in laws]
    if inside > _NARROW:
        logs.append(_log_density(outcomes + inside, laws[2]))
    found = np.unique(np.concatenate(logs))
    apart = _LEAST_GAP * average
    found = found[(np.diff(found, prepend=-np.inf) > apart) & (np.abs(found) > apart)]
    return np.asarray(np.exp(np.sort(np.append(found, 0.0))))


def _spread(far: float, number: int) -> Array:
    """Numbers between -far and far, closer together in the middle."""
    even = np.linspace(-1, 1, number)
    return np.asarray(far * even * (0.4 + 0.6 * even**2))


def _log_density(outcomes: Array, law: list[tuple[float, float]]) -> Array:
    terms = [math.log(weight) + shift * outcomes - shift**2 / 2 for weight, shift in law]
    return np.asarray(np.logaddexp.reduce(terms))


def _along(rate: float, gram: Gram, nodes: Array) -> tuple[float, Array, Array, float, float]:
    """How far the line through a and b is from zero, and a discrete law that dominates the density along it.

    Then the Q- and P-mass of the ends that were cut off.
    """
    p, q = 1 - rate, rate
    aa, ab, bb = gram.aa, gram.ab, gram.bb
    length = math.sqrt(max(aa + bb - 2 * ab, 0.0))
    start = (ab - aa) / length if length > 0 else 0.0
    start = max(-math.sqrt(aa), min(math.sqrt(aa), start))
    stop = start + length
    across = math.sqrt(max(aa - start**2, 0.0))
    places = [nodes]
    if max(abs(start), abs(stop)) > _NARROW:
        places += [nodes + start, nodes + stop]
    if start < 0 < stop:
        # Where the density turns: between two nodes it may only rise or only fall.
        places.append(np.array([math.log(-p * start / (q * stop)) / length + (start + stop) / 2]))
    s = np.unique(np.concatenate(places))
    values = np.exp(_log_density(s, [(p, start), (q, stop)]))
    chances = np.exp(_log_interval(s[:-1], s[1:]))
    means = p * np.exp(_log_interval(s[:-1] - start, s[1:] - start))
    means += q * np.exp(_log_interval(s[:-1] - stop, s[1:] - stop))
    # Mass and mean of every interval go to the values at its two ends: that is larger in convex order.
    rise = np.diff(values)
    share = np.divide(means - chances * values[:-1], rise, out=np.zeros_like(rise), where=rise != 0)
    share = np.clip(share, 0.0, chances)
    weights = np.append(chances - share, 0.0) + np.append(0.0, share)
    log_ends = [log_ndtr(np.array([s[0] - shift, shift - s[-1]])) for shift in (0.0, start, stop)]
    cut, cut_start, cut_stop = (float(np.exp(logs).sum()) for logs in log_ends)
    return across, values, weights, cut, p * cut_start + q * cut_stop


def _options(rate: float, gram: Gram, strikes: Array, is_call: Flags, nodes: Array) -> Array:
    """Upper bounds on E(X - k)_+ where a call is asked for, else on E(k - X)_+."""
    across, values, weights, cut, cut_mean = _along(rate, gram, nodes)
    k = strikes[:, None]
    total = np.where(is_call[:, None], values - k, k - values).clip(min=0.0) @ weights
    if across > 1e-12:
        # The value of an out-of-the-money option by Mills' ratio R, which avoids a difference of large numbers.
        logs = np.log(values) - np.log(k)
        nearness = logs / across - across / 2
        distance = np.abs(logs) / across
        root = math.sqrt(2)
        ratios = erfcx((distance - across / 2) / root) - erfcx((distance + across / 2) / root)
        total = total + (k * np.exp(-(nearness**2) / 2) * ratios / 2) @ weights
    return np.asarray(total + np.where(is_call, cut_mean, strikes * cut))
