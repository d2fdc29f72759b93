"""Dominating pairs: two laws on a line, at least as easy to tell apart as any two neighbouring data sets.

A pair is all that the accountant needs to know about one release (Zhu, Dong & Wang 2022, Def. 7 and Thm
10): products of dominating pairs dominate adaptive compositions. Each pair here answers two questions about
its privacy loss L = log P/Q under P: what its range is, and how much of P and of Q lies in each cell of a grid of
losses. All noise has standard deviation one; shifts are in units of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

Array = NDArray[np.float64]

_FAR = 40.0
"""Standard deviations beyond which a Gaussian's mass, exp(-800), is treated as zero."""

_MOST_STEPS = 60


class Pair(Protocol):
    """A dominating pair (P, Q), seen through its privacy loss."""

    def loss_range(self, log_tail: float) -> tuple[float, float]:
        """Losses outside of which each component of P has at most exp(`log_tail`) on either side."""
        ...

    def log_cells(self, losses: Array) -> tuple[Array, Array]:
        """log of the P- and Q-mass below the first of the increasing `losses`, between, and above the last."""
        ...

    @property
    def atom(self) -> float:
        """Mass, under P and under Q, of outcomes whose loss is exactly zero; not part of the cells."""
        ...

    @property
    def unbounded(self) -> float:
        """Mass of P that is charged as if it revealed the record."""
        ...


@dataclass(frozen=True)
class MixturePair:
    """P = sum_i p_i N(c_i, 1) against Q = sum_k r_k N(-e_k, 1) with all c_i, e_k >= 0 (Lemma A).

    The loss increases in the outcome, because every component of P lies right of every component of Q.
    """

    upper_weights: tuple[float, ...]
    upper_shifts: tuple[float, ...]
    lower_weights: tuple[float, ...]
    lower_shifts: tuple[float, ...]
    atom: float = 0.0
    unbounded: float = 0.0

    def loss(self, outcome: Array) -> Array:
        """The privacy loss log P(x)/Q(x) at each outcome x."""
        upper, _ = _log_mixture(outcome, self.upper_weights, self.upper_shifts)
        lower, _ = _log_mixture(-outcome, self.lower_weights, self.lower_shifts)
        return upper - lower

    def loss_range(self, log_tail: float) -> tuple[float, float]:
        reach = [
            (shift, -float(ndtri_exp(min(log_tail - math.log(weight), math.log(0.5)))))
            for weight, shift in zip(self.upper_weights, self.upper_shifts, strict=True)
            if weight > 0
        ]
        ends = np.array([min(c - r for c, r in reach), max(c + r for c, r in reach)])
        low, high = self.loss(ends)
        return float(low), float(high)

    def log_cells(self, losses: Array) -> tuple[Array, Array]:
        outcomes = self._outcomes(losses)
        edges = np.concatenate(([-np.inf], outcomes, [np.inf]))
        upper = _log_mass(edges, self.upper_weights, self.upper_shifts)
        lower = _log_mass(edges, self.lower_weights, tuple(-shift for shift in self.lower_shifts))
        return upper, lower

    def _outcomes(self, losses: Array) -> Array:
        """The outcome at which the loss has each value; infinite where it never does (within `_FAR`)."""
        left = -max(self.lower_shifts) - _FAR
        right = max(self.upper_shifts) + _FAR
        knots = np.linspace(left, right, 2048)
        table = np.maximum.accumulate(self.loss(knots))
        cell = np.clip(np.searchsorted(table, losses), 1, len(knots) - 1)
        low, high = knots[cell - 1], knots[cell]
        rise = table[cell] - table[cell - 1]
        part = np.divide(losses - table[cell - 1], rise, out=np.full_like(losses, 0.5), where=rise > 0)
        x = low + np.clip(part, 0, 1) * (high - low)
        for _ in range(_MOST_STEPS):
            upper, upper_slope = _log_mixture(x, self.upper_weights, self.upper_shifts)
            lower, lower_slope = _log_mixture(-x, self.lower_weights, self.lower_shifts)
            excess = upper - lower - losses
            low, high = np.where(excess < 0, x, low), np.where(excess < 0, high, x)
            slope = upper_slope + lower_slope
            with np.errstate(over="ignore"):
                trial = x - np.divide(excess, slope, out=np.full_like(x, np.inf), where=slope > 0)
            trial = np.where((trial >= low) & (trial <= high), trial, (low + high) / 2)
            done = np.max(np.abs(trial - x), initial=0.0) <= 1e-13 * (right - left)
            x = trial
            if done:
                break
        return np.where(losses <= table[0], -np.inf, np.where(losses >= table[-1], np.inf, x))


@dataclass(frozen=True)
class FixedSizePair:
    """A fixed-size batch under replace-one, with the number of draws of the record hidden (Fact C).

    The record is drawn j times with chance w_j, and d_j is how far that may move the sum. For g >= 1

        delta(log g) = sum_{j >= 1} w_j E (W_j - max(g, W_j(z)))_+ ,   W_j(x) = exp(d_j x - d_j^2/2), x ~ N(0, 1),

    where z is such that sum_j w_j (W_j(z) - g)_+ = w_0 (g - 1). The bound holds in both directions, so it is the
    profile of a pair that looks, where the loss is positive, like w_0 N(0) + sum_j w_j N(d_j) against N(0), with
    j revealed where the loss at j alone is smaller; where it is negative, like the reverse; the rest of the mass
    has loss zero. Without replacement, j is 0 or 1.
    """

    shifts: tuple[float, ...]
    """d_j for the j >= 1 that count, all positive"""
    weights: tuple[float, ...]
    drawn: float
    """the chance that the record is drawn at all, 1 - w_0"""
    unbounded: float = 0.0

    @property
    def atom(self) -> float:
        upper, lower = self._log_positive_cells(np.zeros(1))
        return max(0.0, 1.0 - self.unbounded - math.exp(upper[-1]) - math.exp(lower[-1]))

    def loss_range(self, log_tail: float) -> tuple[float, float]:
        far = -float(ndtri_exp(min(log_tail, math.log(0.5))))
        drawn_far = -ndtri_exp(np.minimum(log_tail - np.log(self.weights), math.log(0.5)))
        ends = np.array([far, max(far, float(np.max(np.array(self.shifts) + drawn_far)))])
        low, high = np.maximum(self.loss(ends), 0.0)
        return -float(low), float(high)

    def loss(self, outcome: Array) -> Array:
        """The loss where j stays hidden: the largest over sets A of log (w_0 + sum_A w_j W_j)/(w_0 + sum_A w_j).

        With z given, this is the g for which z is right, because sum_A w_j (W_j - g) <= w_0 (g - 1) for every A,
        with equality for the A of the j with W_j > g. That A holds the largest W_j.
        """
        shifts = np.array(self.shifts)[:, None]
        log_ratios = shifts * outcome - shifts**2 / 2
        order = np.argsort(-log_ratios, axis=0)
        log_weights = np.log(self.weights)[:, None] + np.zeros_like(log_ratios)
        above, below = (
            np.logaddexp.accumulate(np.take_along_axis(terms, order, axis=0), axis=0)
            for terms in (log_weights + log_ratios, log_weights)
        )
        still = math.log1p(-self.drawn) if self.drawn < 1 else -math.inf
        return np.asarray((np.logaddexp(still, above) - np.logaddexp(still, below)).max(axis=0))

    def log_cells(self, losses: Array) -> tuple[Array, Array]:
        zero = int(np.searchsorted(losses, 0.0))
        below, above = np.abs(losses[: zero + 1][::-1]), losses[zero:]
        shorter, longer = sorted((below, above), key=len)
        if np.array_equal(shorter, longer[: len(shorter)]):
            # The cells of one side are the first of the other side; everything beyond them joins its last cell.
            long = self._log_positive_cells(longer)
            short = tuple(_log_total_from(cells, len(shorter) - 1) for cells in long)
            (upper, lower), mirrored = (long, short) if len(above) == len(longer) else (short, long)
        else:
            (upper, lower), mirrored = self._log_positive_cells(above), self._log_positive_cells(below)
        # Where the loss is negative, P and Q have changed places.
        mirrored_lower, mirrored_upper = mirrored
        return np.concatenate((mirrored_upper[::-1], upper)), np.concatenate((mirrored_lower[::-1], lower))

    def _log_positive_cells(self, losses: Array) -> tuple[Array, Array]:
        """Masses between and above `losses`, which begin at zero."""
        shifts = np.append(0.0, self.shifts)[:, None]
        alone = losses / shifts[1:] + shifts[1:] / 2
        hidden = self._outcomes(losses, alone)
        edges = np.pad(np.vstack((hidden, np.maximum(alone, hidden))), ((0, 0), (0, 1)), constant_values=np.inf)
        with np.errstate(divide="ignore"):
            log_weights = np.log(np.append(1 - self.drawn, self.weights))[:, None]
        still = _log_interval(edges[:, :-1], edges[:, 1:]) + log_weights
        moved = _log_interval(edges[:, :-1] - shifts, edges[:, 1:] - shifts) + log_weights
        return np.asarray(np.logaddexp.reduce(moved)), np.asarray(np.logaddexp.reduce(still))

    def _outcomes(self, losses: Array, alone: Array) -> Array:
        """z at each loss; `alone` are the outcomes at which each j alone has that loss.

        The sum increases and is convex in z, so Newton's steps from above come down to its root.
        """
        shifts, weights = np.array(self.shifts)[:, None], np.array(self.weights)[:, None]
        target = (1 - self.drawn) * -np.expm1(-losses)
        z = np.min(alone + np.log1p(target / weights) / shifts, axis=0)
        for _ in range(_MOST_STEPS):
            over = np.maximum(shifts * (z - alone), 0.0)
            slope = (weights * shifts * np.exp(over) * (over > 0)).sum(axis=0)
            excess = (weights * np.expm1(over)).sum(axis=0) - target
            step = np.divide(excess, slope, out=np.zeros_like(z), where=(slope > 0) & (excess > 0))
            z = np.maximum(z - step, alone.min(axis=0))
            if np.max(step, initial=0.0) <= 1e-14 * np.max(np.abs(z), initial=1.0):
                break
        return np.asarray(z)


@dataclass(frozen=True)
class RevealedPair:
    """N(s_j, 1) against N(0, 1) with chance w_j; j is revealed: delta(e) = sum_j w_j delta_Gauss(s_j; e)."""

    weights: tuple[float, ...]
    shifts: tuple[float, ...]
    atom: float = 0.0
    unbounded: float = 0.0

    def loss_range(self, log_tail: float) -> tuple[float, float]:
        shifts = np.array(self.shifts)
        reach = -ndtri_exp(np.minimum(log_tail - np.log(self.weights), math.log(0.5)))
        middle, spread = shifts**2 / 2, shifts * reach
        return min(0.0, float(np.min(middle - spread))), max(0.0, float(np.max(middle + spread)))

    def log_cells(self, losses: Array) -> tuple[Array, Array]:
        shifts = np.array(self.shifts)[:, None]
        edges = np.pad(
            losses / shifts + shifts / 2, ((0, 0), (1, 1)), constant_values=((0, 0), (-np.inf, np.inf))
        )
        log_weights = np.log(self.weights)[:, None]
        lower = _log_interval(edges[:, :-1], edges[:, 1:]) + log_weights
        upper = _log_interval(edges[:, :-1] - shifts, edges[:, 1:] - shifts) + log_weights
        return np.asarray(np.logaddexp.reduce(upper)), np.asarray(np.logaddexp.reduce(lower))


def _log_total_from(log_masses: Array, last: int) -> Array:
    """The masses before `last` unchanged, and all from `last` on added up."""
    return np.append(log_masses[:last], np.logaddexp.reduce(log_masses[last:]))


def _log_mixture(x: Array, weights: tuple[float, ...], shifts: tuple[float, ...]) -> tuple[Array, Array]:
    """log of sum_i w_i exp(s_i x - s_i^2/2), the mixture's density relative to N(0, 1), and its slope in x."""
    terms = np.array([math.log(w) + s * x - s * s / 2 for w, s in zip(weights, shifts, strict=True) if w > 0])
    top = terms.max(axis=0)
    parts = np.exp(terms - top)
    total = parts.sum(axis=0)
    slopes = np.array([s for w, s in zip(weights, shifts, strict=True) if w > 0])
    return top + np.log(total), (slopes[:, None] * parts).sum(axis=0) / total


def _log_mass(edges: Array, weights: tuple[float, ...], shifts: tuple[float, ...]) -> Array:
    """log of the mass that sum_i w_i N(s_i, 1) has between neighbouring edges."""
    parts = [
        math.log(weight) + _log_interval(edges[:-1] - shift, edges[1:] - shift)
        for weight, shift in zip(weights, shifts, strict=True)
        if weight > 0
    ]
    return np.asarray(np.logaddexp.reduce(parts))


def _log_interval(low: Array, high: Array) -> Array:
    """log(Phi(high) - Phi(low)) to full relative precision in both tails."""
    with np.errstate(divide="ignore", invalid="ignore"):
        flip = low + high > 0
        a, b = np.where(flip, -high, low), np.where(flip, -low, high)
        log_b = log_ndtr(b)
        gap = np.log(-np.expm1(np.minimum(log_ndtr(a) - log_b, 0.0)))
    return np.where(high > low, log_b + gap, -np.inf)
