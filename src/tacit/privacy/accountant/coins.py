"""The privacy of a sum of whole numbers whose noise is the number of heads among fair coins.

Each of `dim` coordinates gets the number of heads among `coins` fair coins. One record moves the vector by at
most `reach` (Euclidean) before it is rounded to whole numbers at random, without bias, coordinate by
coordinate.

Guarantee. Round both neighbours with the same uniform numbers, and reveal these to the adversary. A coordinate
that differs by t then differs by a whole number K, one of the two next to t, with mean t. So

- in one dimension, delta is at most the mean over K of max_x P(B + K >= x) - e^epsilon P(B >= x), where
  B ~ Bin(coins, 1/2). It grows with t, so t = reach is the worst, and is attained where reach is whole.
- in general, let m_k(a) be the sum of P(x)^a P(x - k)^(1-a) over the x within a range that B leaves with
  probability `tail`, and m(t) the piecewise linear function through the points (k, m_k). For every order a > 1
  and all l >= 0,

      delta <= dim rounds tail + exp(rounds A(a) - (a-1) epsilon + (a-1) log(a-1) - a log a),
      A(a) = max { sum_j log m(t_j) : sum_j t_j^2 <= reach^2 } <= l reach^2 + dim max_t (log m(t) - l t^2).

  The first line is Markov's inequality (Canonne, Kamath & Steinke 2020, Prop. 12), the second weak duality. The
  other order of the two neighbours is the mirror image of this one.
- also in general, the Gaussian mechanism with a shift of kappa reach sqrt(rounds) is easier to tell apart, except
  for the far ends of the heads (proof in `coin_losses`). Kappa is close to 2/sqrt(coins) if there are many coins,
  so this bound is better from some thousand coins on and in many dimensions; the other one is better for few.

Nothing here is approximated by a Gaussian. The published bound (Agarwal et al. 2018, cpSGD, Theorem 1) needs
about three times as many coins where dim is small and more where it is large; it is kept for comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tacit._deferred import optimize, stats
from tacit.errors import count, positive
from tacit.privacy.accountant import gaussian
from tacit.privacy.accountant.coin_losses import gaussian_shift
from tacit.privacy.accountant.composition import CannotAnswerError
from tacit.privacy.accountant.inexact import Surcharge
from tacit.privacy.accountant.pairs import Array
from tacit.privacy.events.plain_numbers import check_delta

_TAIL_SHARE = 1e-3
"""The part of delta that may be spent on numbers of heads outside the range."""

_SAFE_SIDE = 1e-7
"""Relative allowance for floating point, orders of magnitude above its errors."""

_PASSES = 4

_MOST_EPSILON = 512.0
"""Above this epsilon, the one-dimensional bound reports no guarantee."""

MOST_COINS = 2**34
"""With more coins than this over all clients, the accountant would take too long."""


@dataclass(frozen=True)
class CoinNoise:
    """A whole run of sums with coins as noise, described by the numbers that the accountant needs.

    >>> round(CoinNoise(dim=50, coins=1000 * 191, reach=32.0).epsilon(1e-5), 2)
    0.52
    """

    dim: int
    coins: int
    reach: float
    rounds: int = 1

    def __post_init__(self) -> None:
        for setting in ("dim", "coins", "rounds"):
            object.__setattr__(self, setting, count(setting, getattr(self, setting)))
        positive("reach", self.reach)

    def epsilon(self, delta: float) -> float:
        """An epsilon that is proved for these coins at `delta`; infinite if there are too few of them.

        More than `MOST_COINS` coins are refused.
        """
        if self.coins > MOST_COINS:
            raise _too_many(f"there are {self.coins} coins")
        if self.dim == 1 and self.rounds == 1:
            return _scalar_epsilon(self.coins, self.reach, check_delta(delta))
        return min(_vector_bound(self, check_delta(delta)).epsilon, _gaussian_epsilon(self, delta))

    def log_delta(self, epsilon: float, log_floor: float) -> float:
        """An upper bound on log(delta) at `epsilon`, tight where it is near `log_floor`.

        Coins beyond `MOST_COINS` get no credit: they add noise to a sum that is private without them, so the
        bound for `MOST_COINS` holds. If that bound is above `log_floor`, there is no answer.
        """
        if self.coins > MOST_COINS:
            found = replace(self, coins=MOST_COINS).log_delta(epsilon, log_floor)
            if found > log_floor:
                raise _too_many(f"epsilon = {epsilon:g} at delta = {math.exp(log_floor):g} takes more coins")
            return found
        if self.dim == 1 and self.rounds == 1:
            found = _scalar_delta(self.coins, self.reach, epsilon)
            return math.log(found) + _SAFE_SIDE if found > 0 else -math.inf
        found = _vector_bound(self, math.exp(log_floor)).log_delta(epsilon)
        surcharge, shift = _as_gaussian(self, log_floor, epsilon)
        ideal = gaussian.log_delta([shift], [1.0], max(0.0, epsilon - surcharge.epsilon))
        return min(found, surcharge.real_log_delta(ideal, epsilon) if math.isfinite(shift) else 0.0)


def _too_many(why: str) -> CannotAnswerError:
    return CannotAnswerError(
        f"{why}, and it counts up to {MOST_COINS} of all clients together",
        "this epsilon is too small for so few clients: ask for a larger one, fewer rounds or more clients",
    )


def shifted_delta(coins: int, shift: int, epsilon: float) -> float:
    """The exact delta at `epsilon` between the heads of `coins` fair coins and `shift` more than those.

    >>> shifted_delta(coins=2, shift=1, epsilon=0.0)
    0.5
    """

    def loss(x: int) -> float:
        """log P(x - shift)/P(x), which grows with x."""
        between = np.arange(x - shift + 1, x + 1)
        return float(np.log(between / (coins + 1 - between)).sum())

    low, high = shift, coins + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if loss(middle) > epsilon else (middle + 1, high)
    # The best test is a threshold, because the loss is monotone. Try its neighbours too: a tie may be rounded.
    thresholds = np.arange(low - 1, low + 2)
    moved, still = (stats.binom.sf(thresholds - 1 - by, coins, 0.5) for by in (shift, 0))
    return max(0.0, float((moved - math.exp(epsilon) * still).max()))


def _scalar_delta(coins: int, reach: float, epsilon: float) -> float:
    below = math.floor(reach)
    part = reach - below
    return (1 - part) * shifted_delta(coins, below, epsilon) + part * shifted_delta(coins, below + 1, epsilon)


def _scalar_epsilon(coins: int, reach: float, delta: float) -> float:
    def delta_at(epsilon: float) -> float:
        return _scalar_delta(coins, reach, epsilon)

    if delta_at(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_at(high) > delta:
        low, high = high, 2 * high
        if high > _MOST_EPSILON:
            return math.inf
    return float(optimize.brentq(lambda e: delta_at(e) - delta, low, high, xtol=1e-12)) * (1 + _SAFE_SIDE)


def _as_gaussian(noise: CoinNoise, log_delta: float, most: float) -> tuple[Surcharge, float]:
    """The cost of the far ends, which is small up to an epsilon of `most`, and the Gaussian shift of the rest."""
    log_cut = math.log(_TAIL_SHARE / 2) + log_delta - most
    # An odd coin is dropped: it only adds noise to a sum that is private without it.
    kappa = gaussian_shift(noise.coins - noise.coins % 2, log_cut - math.log(noise.dim * noise.rounds))
    cut = math.exp(log_cut)
    return Surcharge(2 * cut, cut), kappa * noise.reach * math.sqrt(noise.rounds)


def _gaussian_epsilon(noise: CoinNoise, delta: float) -> float:
    most = 1.0
    for _ in range(_PASSES):
        surcharge, shift = _as_gaussian(noise, math.log(delta), most)
        if math.isinf(shift):
            break
        ideal = gaussian.epsilon([shift], [1.0], math.log(surcharge.ideal_delta(delta)))
        if ideal <= most:
            return surcharge.real_epsilon(ideal, delta) * (1 + _SAFE_SIDE)
        # For a smaller tail, kappa is a little larger.
        most = 1.1 * ideal
    return math.inf


@dataclass(frozen=True)
class _VectorBound:
    """The bound at its best order: delta(e) <= tail + spare exp(-(a - 1)(e - exact)) for every e."""

    exact: float
    above_one: float
    spare: float
    tail: float

    @property
    def epsilon(self) -> float:
        return max(0.0, self.exact) * (1 + _SAFE_SIDE)

    def log_delta(self, epsilon: float) -> float:
        if math.isinf(self.exact):
            return 0.0
        moved = math.log(self.spare) - self.above_one * (epsilon / (1 + _SAFE_SIDE) - self.exact)
        return min(0.0, float(np.logaddexp(moved, math.log(self.tail))) if self.tail else moved)


_NO_BOUND = _VectorBound(math.inf, 1.0, 1.0, 0.0)


@lru_cache(maxsize=1024)
def _vector_bound(noise: CoinNoise, delta: float) -> _VectorBound:
    most, heads = math.ceil(noise.reach), stats.binom(noise.coins, 0.5)
    low = max(most, int(heads.ppf(_TAIL_SHARE * delta / (2 * noise.dim * noise.rounds))))
    spare = delta - 2 * noise.dim * noise.rounds * float(heads.cdf(low - 1))
    if 2 * low > noise.coins or spare <= 0:
        return _NO_BOUND
    x = np.arange(low - most, noise.coins - low)
    log_heads = np.append(0.0, np.cumsum(np.log((noise.coins - x) / (x + 1))))

    def bound(log_above_one: float) -> float:
        above_one = math.exp(log_above_one)
        order = 1 + above_one
        moment = noise.rounds * _largest_moment(noise, _log_moments(log_heads, most, above_one))
        return (moment - order * math.log(order) - math.log(spare)) / above_one + math.log(above_one)

    variance = (noise.reach**2 + min(noise.dim / 4, noise.reach * math.sqrt(noise.dim))) * 4 / noise.coins
    guess = math.log(2 * math.log(1 / delta) / (noise.rounds * variance)) / 2
    best = optimize.minimize_scalar(
        bound, bounds=(guess - 2, guess + 2), method="bounded", options={"xatol": 0.02}
    )
    return _VectorBound(float(best.fun), math.exp(float(best.x)), spare, delta - spare)


def _log_moments(log_heads: Array, most: int, above_one: float) -> Array:
    """log m_k for k = 0 .. `most`; `log_heads` begins `most` below the range and is known up to a constant."""
    here = log_heads[most:]
    log_masses = here - here.max()
    # Divided by the mass of the range alone, so a little too large.
    log_masses -= math.log(float(np.exp(log_masses).sum()))
    logs = []
    for k in range(most + 1):
        exponents = log_masses + above_one * (here - log_heads[most - k : len(log_heads) - k])
        top = float(exponents.max())
        logs.append(top + math.log(float(np.exp(exponents - top).sum())))
    return np.maximum.accumulate(np.array(logs))


def _largest_moment(noise: CoinNoise, logs: Array) -> float:
    """A bound on A, at the best l."""
    k = np.arange(len(logs) - 1)
    # m(t) / m_(k+1) = 1 - slope (k + 1 - t) between k and k + 1.
    slope = -np.expm1(logs[:-1] - logs[1:])
    intercept = 1 - (k + 1) * slope

    def dual(log_price: float) -> float:
        price = math.exp(log_price)
        # log m(t) - l t^2 is concave between two whole numbers: where it is flat, or at the nearer end.
        flat = np.divide(
            np.sqrt(intercept**2 + 2 * slope**2 / price) - intercept, 2 * slope, where=slope > 0, out=k + 0.0
        )
        t = np.clip(flat, k, np.minimum(k + 1, noise.reach))
        with np.errstate(divide="ignore"):
            gain = logs[1:] + np.log1p(-slope * (k + 1 - t)) - price * t**2
        return price * noise.reach**2 + noise.dim * max(0.0, float(gain.max()))

    middle = math.log(max(float(logs[-1]), 1e-300)) - 2 * math.log(noise.reach)
    spread = 3 + max(0.0, math.log(math.sqrt(noise.dim) / noise.reach))
    bounds = (middle - spread, middle + spread)
    return float(optimize.minimize_scalar(dual, bounds=bounds, method="bounded", options={"xatol": 1e-3}).fun)
