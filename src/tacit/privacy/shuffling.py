"""Amplification by shuffling: what local noise is worth behind a party that mixes the messages of all clients.

These are the bounds:

- Local randomisers that keep epsilon0 for a whole client. Each message of the others has a law
  R >= e^-epsilon0 (P0 + P1)/2, so clones come at the rate e^-epsilon0. The scores are those of randomised
  response. This is the pair of Feldman, McMillan & Talwar (2021), Theorem 3.1.
- Gaussian noise. The same with its own scores, which are far less spread out than those of its worst case; or,
  usually better, the pair of `swaps`, in which a client hides in the places of others. They are events
  (`events.shuffled`), so that the accountant answers for them, and `mixed` has the proof.

What it takes: all messages have the same noise, scale and format; no state, such as a shift, tells clients
apart; they are really mixed. `clients` counts those who do not help the adversary. It takes *whole clients* that
might be taken for another one: noise that hides one of many records hides no client, and two dozen silos gain
little unless each message alone is private already. ISRL-DP (Lowy & Razaviyayn 2023) has the same limit, a local
epsilon of about 1/records, in Theorem D.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent
from scipy import stats

from tacit.errors import RequestError, count, positive
from tacit.privacy import accounting, events
from tacit.privacy.calibrate import calibrate_noise
from tacit.privacy.clones import NEGLIGIBLE, ClonePair, PureScores, clone_pair, clone_range
from tacit.privacy.mixed import SAFE_SIDE, EpsilonAtAtoms, composed_answer
from tacit.privacy.plain_numbers import check_delta
from tacit.privacy.terms import Adjacency

_PASSES, _HEADROOM = 3, 1.02

_LARGEST_EXPONENT = 700.0


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
    def event(self) -> DpEvent:
        """The run as an event."""
        release = events.shuffled(self.clients, self.records, self.records, self.noise_multiplier)
        return events.repeated(release, self.rounds)

    def local_epsilon(self, delta: float) -> float:
        """The epsilon against a server that knows who sent what, for instance because the shuffler tells."""
        return accounting.epsilon(
            events.repeated(events.gaussian(self.noise_multiplier), self.rounds), delta, self.adjacency
        )

    def epsilon(self, delta: float) -> float:
        """The epsilon behind an honest shuffler, never above the local one."""
        return accounting.epsilon(self.event, delta, self.adjacency)


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
    0.11
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
    """The least noise multiplier, to within 0.5% and never below it, that keeps the target behind a shuffler.

    Nobody can check from outside that a shuffler is honest: show `local_epsilon` of the run beside the target.
    """
    return calibrate_noise(
        lambda z: ShuffledGaussian(z, clients, rounds, records, adjacency).event,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
    )


def _both_sides(epsilon: float) -> float:
    """1 + e^epsilon: what a change of both laws in total variation costs; large where it is no double."""
    return 1 + math.exp(min(epsilon, _LARGEST_EXPONENT))


def _composed_epsilon(pair: ClonePair, rounds: int, delta: float) -> float:
    """The epsilon of `rounds` rounds at `delta`; infinite if none can be shown."""
    if delta <= 0:
        return math.inf
    return composed_answer([(pair, rounds)], delta, EpsilonAtAtoms(delta)) * (1 + SAFE_SIDE)


def _least(delta_at: Callable[[float], float], most: float, delta: float) -> float:
    """The smallest epsilon up to `most`, which is known to do, with `delta_at` at most `delta`; rounded up."""
    if delta_at(0.0) <= delta:
        return 0.0
    low, high = 0.0, most
    while high - low > SAFE_SIDE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high
