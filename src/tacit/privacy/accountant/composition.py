"""A pessimistic law of the total privacy loss of many releases, computed by one Fourier transform.

Discretisation. "Connect the dots" (Doroshenko et al. 2022): the P- and Q-mass of a cell of losses goes to
the cell's two ends such that both masses are kept. The discrete pair is at least as easy to tell apart as
the true one.

Composition. The law of the loss is first tilted, p(l) exp(theta l) / M(theta), such that the composed law
has its mean near the epsilon in question. The rounding errors of the transform are then relative to delta
itself, whatever its size, and the transform is no longer than that neighbourhood. Everything that is cut
away is added to delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit._deferred import fft, optimize, signal
from tacit.errors import RequestError
from tacit.privacy.accountant.dominate import Direction
from tacit.privacy.accountant.pairs import Array, Pair

_MOST_POINTS = 2**22
"""Most points of a grid or transform. If more are needed, the accountant refuses to answer."""

_MOST_TILT = 100.0
"""Largest tilt per step of the grid. At this tilt only the largest loss keeps any mass."""

_LOG_CUT = math.log(1e-8)
"""log of the tilted mass that may lie outside the transform, on each side. It wraps around to the other end,
which adds to delta. What the mass above the window contributes is bounded separately and added as well.
"""


class CannotAnswerError(RequestError):
    """The accountant cannot handle the event, and gives no number rather than a wrong one."""

    def __init__(
        self, why: str, advice: str = "take a larger sampling rate, a larger delta, more noise or fewer rounds"
    ) -> None:
        super().__init__(f"the accountant cannot answer for this event: {why}; {advice}")


@dataclass(frozen=True)
class LossLaw:
    """log-masses of P at the losses `step * (first + i)`, and the mass at infinity."""

    step: float
    first: int
    log_masses: Array
    infinite: float

    @property
    def losses(self) -> Array:
        return self.step * np.arange(self.first, self.first + len(self.log_masses), dtype=np.float64)

    def tilted(self, tilt: float) -> tuple[float, Array]:
        """log E exp(tilt * loss) over the finite losses, and the tilted masses, which sum to one."""
        exponents = self.log_masses + tilt * self.losses
        top = float(exponents.max())
        weights = np.exp(exponents - top)
        total = float(weights.sum())
        return top + math.log(total), weights / total


def discretise(pair: Pair, step: float, log_tail: float) -> LossLaw:
    """The pessimistic law of the pair's loss on multiples of `step`."""
    low, high = pair.loss_range(log_tail)
    if (high - low) / step > _MOST_POINTS:
        raise CannotAnswerError(_too_many((high - low) / step))
    first, last = min(math.floor(low / step), -1), max(math.ceil(high / step), 1)
    losses = step * np.arange(first, last + 1, dtype=np.float64)
    log_upper, log_lower = pair.log_cells(losses)
    upper = np.exp(log_upper)
    with np.errstate(invalid="ignore"):
        above = np.clip(log_upper[1:-1] - log_lower[1:-1] - losses[:-1], 0.0, step)
    # Capped at one: two implementations of expm1 may round differently, and a negative mass has no logarithm.
    share = np.minimum(np.nan_to_num(np.expm1(-above) / math.expm1(-step), nan=1.0), 1.0)
    masses = np.zeros(len(losses))
    masses[:-1] += upper[1:-1] * (1 - share)
    masses[1:] += upper[1:-1] * share
    masses[0] += upper[0]
    masses[-first] += pair.atom
    with np.errstate(divide="ignore"):
        return LossLaw(step, first, np.log(masses), float(upper[-1]) + pair.unbounded)


def compose(direction: Direction, step: float, log_tail: float) -> ComposedLoss:
    """Discretise all losses of a direction on one grid."""
    return ComposedLoss(
        tuple(discretise(pair, step, log_tail) for pair, _ in direction.pieces),
        tuple(times for _, times in direction.pieces),
    )


@dataclass(frozen=True)
class ComposedLoss:
    """The sum of independent losses on one grid, each law taken a number of times."""

    laws: tuple[LossLaw, ...]
    times: tuple[int, ...]

    @property
    def infinite(self) -> float:
        """Chance that some release has infinite loss."""
        return -math.expm1(sum(t * math.log1p(-law.infinite) for law, t in self._parts))

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """log E exp(tilt * loss), and mean and variance of the tilted loss."""
        log_moment = mean = variance = 0.0
        for law, times in self._parts:
            log_m, weights = law.tilted(tilt)
            losses = law.losses
            # Plain sums: at this size, starting a threaded dot product costs more than running it.
            centre = float((weights * losses).sum())
            log_moment += times * log_m
            mean += times * centre
            variance += times * float((weights * (losses - centre) ** 2).sum())
        return log_moment, mean, variance

    def tilt_towards(self, mean: float) -> float:
        """The tilt, at least zero, whose composed law has the given mean."""
        return self._root(lambda tilt: self.cumulants(tilt)[1] - mean)

    def tilt_for(self, log_delta: float) -> float:
        """A tilt whose composed law has its mean close to the epsilon that belongs to `log_delta`.

        At the best Chernoff bound exp(M(t) - t e) the mean of the law tilted by t is e itself; the bound
        exceeds delta by a factor of about t (1 + t) sqrt(2 pi variance), which the second pass removes.
        """

        def gap(tilt: float, log_target: float) -> float:
            log_moment, mean, _ = self.cumulants(tilt)
            return tilt * mean - log_moment + log_target

        tilt = self._root(lambda t: gap(t, log_delta))
        excess = math.log(max(1.0, tilt * (1 + tilt) * math.sqrt(2 * math.pi * self.cumulants(tilt)[2])))
        return self._root(lambda t: gap(t, min(log_delta + excess, -1e-3)))

    def near(self, tilt: float) -> TiltedSum:
        """The composed law near its tilted mean."""
        step = self.laws[0].step
        log_moment, mean, variance = self.cumulants(tilt)
        spread = max(math.sqrt(variance), step)
        # If all losses are small, delta is small compared with the masses, so less may be cut.
        log_cut = _LOG_CUT + min(0.0, math.log(spread))
        low, high, complete = self._window(tilt, log_moment, spread, log_cut)
        first = math.floor(low / step)
        length = math.ceil(high / step) - first + 2
        if length > _MOST_POINTS:
            raise CannotAnswerError(_too_many(length))
        length = fft.next_fast_len(length, real=True)
        log_product = np.zeros(length // 2 + 1, dtype=np.complex128)
        error = np.full(length // 2 + 1, 4 + math.log2(length))
        start = 0
        for law, times in self._parts:
            _, weights = law.tilted(tilt)
            centre = int(np.argmax(weights))
            log_spectrum, moved = _log_spectrum(weights, centre, length)
            log_product += times * log_spectrum
            error += times * (np.abs(log_spectrum) + math.log2(length) * moved * np.exp(-log_spectrum.real))
            start += times * (law.first + centre)
        product = np.exp(log_product)
        masses = np.roll(fft.irfft(product, length), start - first)
        # A bound on the rounding error of each mass: the error of the transforms, amplified by the power.
        rounding = np.finfo(float).eps * float(np.mean(np.abs(product) * error))
        return TiltedSum(
            tilt,
            log_moment - tilt * mean,
            mean,
            spread,
            step * (first + np.arange(length)),
            np.maximum(masses, 0.0) + rounding,
            -math.inf if complete else log_cut - tilt * (high - mean),
        )

    def _root(self, increasing: Callable[[float], float]) -> float:
        step = self.laws[0].step
        return _root(increasing, 1 / max(math.sqrt(self.cumulants(0.0)[2]), step), _MOST_TILT / step)

    @property
    def _parts(self) -> tuple[tuple[LossLaw, int], ...]:
        return tuple(zip(self.laws, self.times, strict=True))

    def _window(self, tilt: float, log_moment: float, spread: float, log_cut: float) -> tuple[float, float, bool]:
        """The range that holds all but a negligible part of the tilted sum, by Chernoff bounds.

        Also returns whether nothing at all lies above the range.
        """
        low = sum(t * law.first * law.step for law, t in self._parts)
        high = most = sum(t * (law.first + len(law.log_masses) - 1) * law.step for law, t in self._parts)
        for exponent in (0.1, 0.3, 1.0, 3.0, 6.0, 10.0):
            s = exponent / spread
            high = min(high, (self._log_moment(tilt + s) - log_moment - log_cut) / s)
            low = max(low, -(self._log_moment(tilt - s) - log_moment - log_cut) / s)
        return low, high, high == most

    def _log_moment(self, tilt: float) -> float:
        return sum(times * law.tilted(tilt)[0] for law, times in self._parts)


@dataclass(frozen=True)
class TiltedSum:
    """Tilted masses r of the total loss; the true mass at loss l is exp(log_scale - tilt (l - mean)) r(l)."""

    tilt: float
    log_scale: float
    mean: float
    spread: float
    losses: Array
    masses: Array
    log_beyond: float
    """log of a bound on the mass above the window, in units of `log_scale`"""

    def log_delta(self, epsilon: float, infinite: float) -> float:
        """log of sum_l (1 - exp(epsilon - l))_+ p(l), plus `infinite` and what may lie beyond the window."""
        start = int(np.searchsorted(self.losses, epsilon, side="right"))
        above = self.losses[start:] - epsilon
        total = float(np.sum(-np.expm1(-above) * np.exp(-self.tilt * above) * self.masses[start:]))
        log_total = math.log(total) - self.tilt * (epsilon - self.mean) if total > 0 else -math.inf
        log_finite = np.logaddexp(log_total, self.log_beyond) + self.log_scale
        return float(np.logaddexp(log_finite, math.log(infinite) if infinite > 0 else -math.inf))

    def epsilon(self, log_delta: float) -> float:
        """The smallest epsilon with at most this finite delta, or a larger one if that is below the window."""
        step = float(self.losses[1] - self.losses[0])
        # Sums over the losses from l_k on, each relative to its own l_k so that nothing over- or underflows.
        upper = _discounted(self.masses, math.exp(-self.tilt * step))
        lower = _discounted(self.masses, math.exp(-(1 + self.tilt) * step))
        log_target = log_delta - self.log_scale
        if self.log_beyond >= log_target:
            raise CannotAnswerError("delta is smaller than what its arithmetic must leave out")
        log_target += math.log1p(-math.exp(self.log_beyond - log_target))
        targets = np.exp(np.clip(log_target + self.tilt * (self.losses - self.mean), -745.0, 700.0))
        deltas = np.append((upper[1:] - lower[1:] * math.exp(-step)) * math.exp(-self.tilt * step), 0.0)
        cell = int(np.argmax(deltas <= targets))
        if cell == 0:
            return max(0.0, float(self.losses[0]))
        # Between two losses, delta is upper - exp(epsilon - l_k) lower, with the sums taken from the upper loss.
        return max(0.0, float(self.losses[cell] + np.log((upper[cell] - targets[cell]) / lower[cell])))


def _log_spectrum(weights: Array, centre: int, length: int) -> tuple[NDArray[np.complex128], float]:
    """log of the Fourier transform of weights on a circle of `length` points, `centre` at the origin.

    Also returns the L1 distance between the weights and a point mass at the origin. Only that difference is
    transformed. If few releases move the loss, the difference is small, and so are the rounding errors that the
    many others would multiply.
    """
    places = (np.arange(len(weights)) - centre) % length
    moved = float(weights[:centre].sum() + weights[centre + 1 :].sum())
    difference = weights.copy()
    difference[centre] = -moved
    change = fft.rfft(np.bincount(places, weights=difference, minlength=length))
    real, imaginary = change.real, change.imag
    modulus = np.maximum(np.hypot(1 + real, imaginary), 1e-290)
    near_one = np.log1p(np.maximum(2 * real + real**2 + imaginary**2, -0.99)) / 2
    log_modulus = np.where(modulus > 0.5, near_one, np.log(modulus))
    return log_modulus + 1j * np.arctan2(imaginary, 1 + real), 2 * moved


def _discounted(masses: Array, factor: float) -> Array:
    """sum_{i >= k} factor^(i - k) masses_i for every k."""
    return np.asarray(signal.lfilter([1.0], [1.0, -factor], masses[::-1]))[::-1]


def _root(increasing: Callable[[float], float], scale: float, most: float) -> float:
    """A tilt near the root of an increasing function; zero if it is positive there. Low precision is enough."""
    if increasing(0.0) >= 0:
        return 0.0
    low, high = 0.0, min(scale, most)
    while increasing(high) < 0:
        if high >= most:
            return most
        low, high = high, min(8 * high, most)
    return float(optimize.brentq(increasing, low, high, xtol=1e-3 * scale, rtol=1e-2))


def _too_many(points: float) -> str:
    return f"it would take a grid of {points:.2g} points, more than the limit of {_MOST_POINTS:.2g}"
