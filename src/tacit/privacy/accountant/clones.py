"""The dominating pair of one shuffled round: a message hides among others that could have been the client's own.

Guarantee. One client's message comes from P0 or from P1; the senders of messages are hidden. If every other
client's message is, with probability r, drawn from (P0 + P1)/2 (a clone) and otherwise from anything, then with
C ~ Bin(clients - 1, r) clones, m = C + 1, and the score v = (p0 - p1)/(p0 + p1) of a message,

    delta(epsilon) = (1 + e^epsilon) E (mean of m independent scores under (P0 + P1)/2 - tanh(epsilon/2))_+ .

Proof. Reveal to the adversary which messages are neither clones nor the client's. The m others have the density
1 + mean v relative to m draws from (P0 + P1)/2 if the client's is from P0, and 1 - mean v if it is from P1. So
the loss is 2 artanh(mean v), and delta the mean of (1 + mean v - e^epsilon (1 - mean v))_+. QED

That is the mean of a convex function of the mean score. It can only grow if scores are spread out without
changing their mean, or if there are fewer clones. All approximations below are of these two kinds, hence safe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from tacit._deferred import fft, stats
from tacit.privacy.accountant.pairs import Array

NEGLIGIBLE = 1e-17
"""Probability mass that may be given up in each of a few steps of every round."""

_GROUPS = 64
"""At most this many groups of clone counts; each group is charged as its smallest member."""

_CELLS = 2**16
"""Cells of the grid on which the mean scores of all groups are collected."""

_PER_DEVIATION, _FAR = 12, 12.0
"""Lattice points per standard deviation of a Gaussian score; deviations of the noise that the lattice spans."""

_LARGEST_LOSS = 7.0
"""Losses of a single Gaussian message up to which the lattice of its scores is at most one wide."""

_BLOCK = 32


class Scores(Protocol):
    """The law of the score (p0 - p1)/(p0 + p1) of a message from (P0 + P1)/2: symmetric on [-reach, reach]."""

    @property
    def reach(self) -> float:
        """The largest score."""
        ...

    def means(self, sizes: Iterable[int]) -> Iterator[tuple[Array, Array]]:
        """Values and masses of the mean of that many scores, for each size, or of a more spread-out law."""
        ...


@dataclass(frozen=True)
class GaussianScores:
    """tanh(l/2) of the loss l between Gaussians at distance `shift`, spread out to a lattice of points i/K."""

    shift: float

    @property
    def reach(self) -> float:
        return self._last / self._per_unit

    @property
    def _per_unit(self) -> int:
        # Fine enough for the scores' deviation and, where they crowd near one, for losses up to a few deviations.
        large_loss = min(self.shift * (self.shift / 2 + _FAR / 2), _LARGEST_LOSS)
        return math.ceil(max(_PER_DEVIATION / math.tanh(self.shift / 2), 2 * math.cosh(large_loss / 2) ** 2))

    @property
    def _last(self) -> int:
        return math.ceil(self._per_unit * math.tanh(self.shift * (self.shift / 2 + _FAR) / 2))

    def _masses(self) -> Array:
        """Masses at i/K for i = 0, 1, ...: a cell's goes to its two ends such that mass and mean are kept."""
        edges = np.arange(-self._last, self._last + 1) / self._per_unit
        with np.errstate(divide="ignore"):
            losses = 2 * np.arctanh(edges)
        upper = np.diff(ndtr(losses / self.shift - self.shift / 2))
        lower = np.diff(ndtr(losses / self.shift + self.shift / 2))
        # Under (P0 + P1)/2 a cell has the mass (P0 + P1)/2 and, as v (p0 + p1) = p0 - p1, the moment (P0 - P1)/2.
        mass, moment = (upper + lower) / 2, (upper - lower) / 2
        masses = np.zeros(len(edges))
        masses[:-1] += (edges[1:] * mass - moment) * self._per_unit
        masses[1:] += (moment - edges[:-1] * mass) * self._per_unit
        return np.maximum((masses + masses[::-1]) / 2, 0.0)[self._last :]

    def means(self, sizes: Iterable[int]) -> Iterator[tuple[Array, Array]]:
        sizes = list(sizes)
        length, log_spectrum, sign = self._spectrum(max(sizes))
        steps = np.fft.fftshift(np.fft.fftfreq(length, 1 / length))
        for size in sizes:
            exponents = np.maximum(size * log_spectrum, -1e3)
            power = sign**size * np.exp(exponents)
            # A bound on the error of each mass: that of the transform, and of the power before it.
            rounding = 2.0**-52 * float(np.mean(np.abs(power) * (16 - exponents)))
            law = np.fft.fftshift(fft.irfft(power, length))
            values = np.clip(steps / (size * self._per_unit), -self.reach, self.reach)
            yield values, np.maximum(law, 0.0) + rounding

    def _spectrum(self, largest: int) -> tuple[int, Array, Array]:
        """Length of a transform that is enough for `largest` scores; log-modulus and sign of the spectrum."""
        masses = self._masses()
        indices = np.arange(len(masses))
        # Bernstein's inequality for the sum in lattice steps; what lies outside comes back in at the other end.
        log_tail, variance = math.log(2 / NEGLIGIBLE), 2 * float((masses * indices**2).sum())
        wide = log_tail * self._last / 3
        half = min(wide + math.sqrt(wide**2 + 2 * log_tail * largest * variance), largest * self._last)
        length = fft.next_fast_len(2 * math.ceil(half) + 2, real=True)
        angles = np.pi * np.arange(length // 2 + 1)[:, None] / length
        # 1 - spectrum is a sum of squares, so where the spectrum is near one, and counts, no digit is lost.
        below_one = np.zeros(len(angles))
        for start in range(1, len(indices), _BLOCK):
            part = slice(start, start + _BLOCK)
            below_one += 4 * (np.sin(angles * indices[part]) ** 2 @ masses[part])
        near_one = np.log1p(-np.minimum(below_one, 0.5))
        modulus = np.maximum(np.abs(1 - below_one), 1e-300)
        return length, np.where(below_one < 0.5, near_one, np.log(modulus)), np.where(below_one <= 1, 1.0, -1.0)


@dataclass(frozen=True, eq=False)
class ClonePair:
    """One shuffled round as a dominating pair: (1 + v) and (1 - v) times the masses of the mean score v."""

    scores: Array
    masses: Array
    unbounded: float
    atom: float = 0.0

    @property
    def revealed(self) -> float:
        """The mass of P that identifies P with certainty, or that is given up as if it did."""
        return self.unbounded + 2 * float(self.masses[self.scores == 1].sum())

    def loss_range(self, log_tail: float) -> tuple[float, float]:
        # By symmetry P has above v what Q = P (1 - v)/(1 + v) has below -v, and so at least what P has there.
        above = np.cumsum((self.masses * (1 + self.scores))[::-1])
        losses = self._losses()[::-1]
        reached = (above > math.exp(log_tail)) & np.isfinite(losses)
        # Extended a little, so that rounding cannot put the last grid point below the last loss.
        high = float(losses[int(np.argmax(reached))]) * (1 + 1e-12) if reached.any() else 0.0
        return -high, high

    def log_cells(self, losses: Array) -> tuple[Array, Array]:
        cells = np.searchsorted(losses, self._losses())
        with np.errstate(divide="ignore"):
            return (
                np.log(np.bincount(cells, self.masses * (1 + self.scores), len(losses) + 1)),
                np.log(np.bincount(cells, self.masses * (1 - self.scores), len(losses) + 1)),
            )

    def drawn(self, rate: float) -> ClonePair:
        """The pair of a round for which the record is drawn with probability q; if it is, this is the pair.

        For e >= 0 and e^e' = 1 + q (e^e - 1), delta'(e') = q delta(e), in both directions. Where the loss is
        positive, Q stays and P becomes (1-q) Q + q P; where it is negative, the reverse; the rest of the mass has
        loss zero. In scores: v becomes q v / (1 - (1-q)|v|), its mass is multiplied with that denominator.
        """
        kept = self.scores != 0
        scores, masses = self.scores[kept], self.masses[kept]
        shrink = 1 - (1 - rate) * np.abs(scores)
        left = masses * shrink
        atom = max(0.0, 1.0 - self.unbounded - float(left.sum()))
        return ClonePair(np.clip(rate * scores / shrink, -1.0, 1.0), left, self.unbounded, atom)

    def delta(self, epsilon: float) -> float:
        """The delta of a single round."""
        above = np.maximum(self.scores - math.tanh(epsilon / 2), 0.0)
        return (1 + math.exp(epsilon)) * float((self.masses * above).sum()) + self.unbounded

    def _losses(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(2 * np.arctanh(self.scores))


def clone_pair(scores: Scores, others: int, clone_rate: float) -> ClonePair:
    """The pair of one round among `others` other clients, each a clone with probability `clone_rate`."""
    low, high = clone_range(others, clone_rate)
    fewest = np.unique(np.linspace(low, high, min(_GROUPS, high - low + 1)).astype(int))
    weights = -np.diff(np.append(stats.binom.sf(fewest - 1, others, clone_rate), 0.0))
    masses = np.zeros(_CELLS + 2)
    for weight, (values, law) in zip(weights, scores.means((fewest + 1).tolist()), strict=True):
        place = (values / scores.reach + 1) * (_CELLS / 2)
        cells = np.floor(place).astype(int)
        upper = place - cells
        masses += weight * np.bincount(cells, law * (1 - upper), _CELLS + 2)
        masses += weight * np.bincount(cells + 1, law * upper, _CELLS + 2)
    kept = np.flatnonzero(masses)
    grid = scores.reach * np.clip(2 * kept / _CELLS - 1, -1.0, 1.0)
    # Too few clones, and sums of scores beyond either end; P is at most twice (P0 + P1)/2.
    return ClonePair(grid, masses[kept], 8 * NEGLIGIBLE)


def clone_range(others: int, clone_rate: float) -> tuple[int, int]:
    """The range of the number of clones, up to negligible probability."""
    # The upper end is computed from the number of non-clones, because 1 - NEGLIGIBLE is not a double.
    most = others - int(stats.binom.ppf(NEGLIGIBLE, others, 1 - clone_rate))
    return int(stats.binom.ppf(NEGLIGIBLE, others, clone_rate)), most
