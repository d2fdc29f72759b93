"""Amplification by shuffling: what local noise is worth behind a party that mixes the messages of all clients.

Every bound is the dominating pair of `clones` with clones and scores of its own:

- Local randomisers that keep epsilon0 for a whole client. Each message of the others has a law
  R >= e^-epsilon0 (P0 + P1)/2, so clones come at the rate e^-epsilon0. The scores are those of randomised
  response. This is the pair of Feldman, McMillan & Talwar (2021), Theorem 3.1.
- Gaussian noise. The same with its own scores, which are far less spread out than those of its worst case.
  Its loss is not bounded, so R >= e^-e (P0 + P1)/2 fails, by a mass of at most e^-e delta_Gauss(s; e) with s the
  shift between two clients. Moving that mass changes a run of T rounds in total variation by at most
  slip = T (n - 1) e^-e delta_Gauss(s; e), and delta by (1 + e^epsilon) slip, for any e; a part of delta pays.

What it takes: all messages have the same noise, scale and format; no state, such as a shift, tells clients
apart; they are really mixed. `clients` counts those who do not help the adversary. A clone is a *whole client*
that looks like another one, so the number to look at is clients e^-(local epsilon of a whole client): noise
that hides one of many records leaves no clones, and two dozen silos have hardly any unless each message alone
is private already. ISRL-DP (Lowy & Razaviyayn 2023) has the same limit, a local epsilon of about 1/records, in
Theorem D.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import optimize, stats

from tacit.errors import RequestError, count, positive
from tacit.privacy import events, gaussian
from tacit.privacy.accounting import check_delta
from tacit.privacy.calibrate import calibrate_noise
from tacit.privacy.clones import NEGLIGIBLE, ClonePair, GaussianScores, PureScores, clone_pair, clone_range
from tacit.privacy.composition import CannotAnswerError, ComposedLoss
from tacit.privacy.dominate import Direction
from tacit.privacy.refine import EpsilonAt, worst
from tacit.privacy.terms import Adjacency

_SLIP_SHARE = 0.25
"""The part of delta that pays for messages that are not quite clones. It decides how tight, not whether."""

_PASSES, _HEADROOM = 3, 1.02
_LOG_NEGLIGIBLE = -9.0
_SAFE_SIDE = 1e-7
"""Relative allowance for floating point."""

_LARGEST_EXPONENT = 700.0

_PRECISION, _STRIDE, _MOST_NUDGES = 2e-3, 0.5, 20


def shuffled_epsilon(
    local_epsilon: float, clients: int, delta: float, *, local_delta: float = 0.0, rounds: int = 1
) -> float:
    """The epsilon behind a shuffler if each message hides its whole client within (local_epsilon, local_delta).

    Guarantee: for every such randomiser, and never above the epsilon without the shuffler; infinite if
    `local_delta` uses up `delta`. One round of pure randomisers is the exact value of the clone pair. With
    d0 = local_delta > 0, the client's two laws are made pure by moving u = d0/(1 + e^epsilon0) of their mass,
    and then the other messages are made to have clones by moving e^-epsilon0 (d0 + u) of each. All that was
    moved adds to delta, 1 + e^epsilon times. Feldman, McMillan & Talwar (2021), Theorem 3.8, add more than
    that: (1 + e^epsilon)(1 + e^-epsilon0/2) n d0.

    >>> [round(shuffled_epsilon(1.0, clients, 1e-6), 2) for clients in (25, 100, 1000)]
    [1.0, 0.64, 0.18]
    """
    positive("local_epsilon", local_epsilon)
    check_delta(delta)
    others, rounds = count("clients", clients) - 1, count("rounds", rounds)
    if not 0 <= local_delta < 1:
        raise RequestError(f"local_delta must be at least 0 and below 1, not {local_delta!r}")
    if rounds * local_delta >= delta:
        return math.inf
    clone_rate = math.exp(-local_epsilon)
    moved = local_delta / _both_sides(local_epsilon)
    slip = rounds * (moved + others * clone_rate * (local_delta + moved))
    if rounds == 1:
        return _least(
            lambda e: one_round_delta(local_epsilon, clients, e) + _both_sides(e) * slip, local_epsilon, delta
        )
    scores = PureScores(local_epsilon)
    alone = _composed_epsilon(clone_pair(scores, 0, 1.0), rounds, delta - rounds * local_delta)
    local = min(alone, float(rounds * local_epsilon))
    pair = clone_pair(scores, others, clone_rate)
    cap = _composed_epsilon(pair, rounds, delta)
    for _ in range(_PASSES if slip else 0):
        # An epsilon holds if it is not above the cap that its slip was weighed with.
        cap = min(local, _HEADROOM * cap)
        found = _composed_epsilon(pair, rounds, delta - _both_sides(cap) * slip)
        if found <= cap:
            return found
        cap = found
    return local if slip else min(local, cap)


def one_round_delta(local_epsilon: float, clients: int, epsilon: float) -> float:
    """The delta at `epsilon` of one shuffled round of pure randomisers: a closed term for every number of clones.

    With c clones, B ~ Bin(c, 1/2), and k the least number of ones among c + 1 whose loss exceeds epsilon, it is
    (1 - e^(epsilon - epsilon0))/(1 + e^-epsilon0) P(B = k-1) - (e^epsilon - 1) P(B >= k).
    """
    if epsilon >= local_epsilon:
        return 0.0
    others, clone_rate = clients - 1, math.exp(-local_epsilon)
    low, high = clone_range(others, clone_rate)
    c = np.arange(low, high + 1)
    part = math.expm1(-epsilon - local_epsilon) / math.expm1(-local_epsilon) / (1 + math.exp(-epsilon))
    # All ones have the loss epsilon0, whatever the rounding of `part` says.
    k = np.minimum(np.floor((c + 1) * part), c) + 1
    above = -math.expm1(epsilon - local_epsilon) / (1 + clone_rate) * stats.binom.pmf(k - 1, c, 0.5)
    below = math.expm1(min(epsilon, _LARGEST_EXPONENT)) * stats.binom.sf(k - 1, c, 0.5)
    return float((stats.binom.pmf(c, others, clone_rate) * np.maximum(above - below, 0.0)).sum()) + 2 * NEGLIGIBLE


@dataclass(frozen=True)
class ShuffledGaussian:
    """A whole run of Gaussian releases behind a shuffler, as an accountant sees it.

    In each of `rounds` rounds every client sends, as it is or processed further, a sum of at most `records`
    contributions of at most one bound each, plus Gaussian noise of `noise_multiplier` bounds. With one
    contribution, a client's whole update, the promise is to the client.
    """

    noise_multiplier: float
    clients: int
    rounds: int = 1
    records: int = 1
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        positive("noise_multiplier", self.noise_multiplier)
        for setting in ("clients", "rounds", "records"):
            object.__setattr__(self, setting, count(setting, getattr(self, setting)))
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))

    @property
    def shift(self) -> float:
        """How far one record moves a message, in standard deviations of the noise."""
        return (2.0 if self.adjacency is Adjacency.REPLACE_ONE else 1.0) / self.noise_multiplier

    def local_epsilon(self, delta: float) -> float:
        """The epsilon against a server that knows who sent what, for instance because the shuffler tells."""
        return gaussian.epsilon([math.sqrt(self.rounds) * self.shift], [1.0], math.log(check_delta(delta)))

    def epsilon(self, delta: float) -> float:
        """The epsilon behind an honest shuffler, never above the local one."""
        return _shuffled_gaussian_epsilon(self, check_delta(delta))


@lru_cache(maxsize=1024)
def _shuffled_gaussian_epsilon(run: ShuffledGaussian, delta: float) -> float:
    local, others = run.local_epsilon(delta), run.clients - 1
    if others == 0 or local == 0:
        return local
    # However the differing record is adjacent, other clients may differ in everything.
    client_shift = 2 * run.records / run.noise_multiplier

    def at(cap: float) -> float:
        """An epsilon that holds if it is not above the cap that its slip is weighed with."""
        log_slip = math.log(_SLIP_SHARE * delta) - np.logaddexp(0.0, cap) - math.log(run.rounds * others)
        clone_epsilon = _clone_epsilon(client_shift, float(log_slip))
        if clone_epsilon > math.log(others) + 3:
            return math.inf
        pair = clone_pair(GaussianScores(run.shift), others, math.exp(-clone_epsilon))
        return _composed_epsilon(pair, run.rounds, (1 - _SLIP_SHARE) * delta)

    best = local
    for _ in range(_PASSES):
        found = at(best)
        if found >= best:
            break
        best = found
    return best


def shuffled_gaussian_epsilon(
    noise_multiplier: float,
    clients: int,
    rounds: int,
    delta: float,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    *,
    records: int = 1,
) -> float:
    """The epsilon of a `ShuffledGaussian` run.

    >>> round(shuffled_gaussian_epsilon(4.0, clients=1000, rounds=1, delta=1e-6), 2)
    0.26
    >>> round(ShuffledGaussian(4.0, clients=1000).local_epsilon(1e-6), 2)
    2.25
    """
    return ShuffledGaussian(noise_multiplier, clients, rounds, records, adjacency).epsilon(delta)


def shuffled_noise_multiplier(
    epsilon: float,
    delta: float,
    clients: int,
    rounds: int,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    *,
    records: int = 1,
) -> float:
    """The least noise multiplier, to within 1% and never below it, that keeps (epsilon, delta) behind a shuffler.

    Nobody can check from outside that a shuffler is honest: show `local_epsilon` of the run beside the target.
    """
    rounds = count("rounds", rounds)
    local = calibrate_noise(
        lambda z: events.repeated(events.gaussian(z), rounds), epsilon=epsilon, delta=delta, adjacency=adjacency
    )

    def excess(log_noise: float) -> float:
        run = ShuffledGaussian(math.exp(log_noise), clients, rounds, records, adjacency)
        # Bounded below, because an epsilon of zero has no logarithm.
        return math.log(max(run.epsilon(delta) / epsilon, 1e-3))

    low = high = math.log(local)
    while excess(low) <= 0:
        low, high = low - _STRIDE, low
    if low == high:
        return local
    root = float(optimize.brentq(excess, low, high, xtol=_PRECISION, rtol=1e-12)) + _PRECISION
    for nudge in range(_MOST_NUDGES):
        noise = root + nudge * _PRECISION
        if noise >= math.log(local):
            break
        if excess(noise) <= 0:
            return math.exp(noise)
    return local


def _both_sides(epsilon: float) -> float:
    """1 + e^epsilon: what a change of both laws in total variation costs; large where it is no double."""
    return 1 + math.exp(min(epsilon, _LARGEST_EXPONENT))


def _clone_epsilon(shift: float, log_slip: float) -> float:
    """The least e with e^-e delta_Gauss(shift; e) at most exp(`log_slip`), rounded up."""

    def excess(e: float) -> float:
        return gaussian.log_delta([shift], [1.0], e) - e - log_slip

    if excess(0.0) <= 0:
        return 0.0
    high = shift * (1 + shift)
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-9)) * (1 + _SAFE_SIDE) + 1e-8


@dataclass(frozen=True)
class _EpsilonAt(EpsilonAt):
    """For laws with atoms: where the largest loss alone has more than delta, the usual aim sees nothing else."""

    def answer(self, composed: ComposedLoss, tilt: float) -> tuple[float, float]:
        found, resolution = super().answer(composed, tilt)
        wider = composed.near(composed.tilt_towards(0.9 * found))
        return min(found, wider.epsilon(self._log_target(composed))), resolution


def _composed_epsilon(pair: ClonePair, rounds: int, delta: float) -> float:
    """The epsilon of `rounds` rounds at `delta`; infinite if none can be shown."""
    if delta <= 2 * rounds * pair.revealed:
        return math.inf
    direction = Direction(0.0, ((pair, rounds),))
    try:
        return worst([direction], math.log(delta) + _LOG_NEGLIGIBLE, _EpsilonAt(delta)) * (1 + _SAFE_SIDE)
    except CannotAnswerError:
        # There is still what holds without the shuffler.
        return math.inf


def _least(delta_at: Callable[[float], float], most: float, delta: float) -> float:
    """The smallest epsilon up to `most`, which is known to do, with `delta_at` at most `delta`; rounded up."""
    if delta_at(0.0) <= delta:
        return 0.0
    low, high = 0.0, most
    while high - low > _SAFE_SIDE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high
