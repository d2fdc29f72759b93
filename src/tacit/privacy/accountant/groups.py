"""The privacy cost of events for several records of a client together, up to all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import DpEvent

from tacit._deferred import stats
from tacit.errors import RequestError, count
from tacit.privacy import events
from tacit.privacy.accountant.accounting import check_delta, epsilon, log_delta, separate
from tacit.privacy.accountant.dominate import Direction, dominate, is_private, leaves
from tacit.privacy.accountant.grids import EpsilonAt, worst
from tacit.privacy.accountant.inexact import Surcharge
from tacit.privacy.accountant.pairs import FixedSizePair, MixturePair, Pair, RevealedPair
from tacit.privacy.events import from_dict, to_dict
from tacit.privacy.events.crowds import OnceDpEvent, ShuffledDpEvent
from tacit.privacy.promises.terms import Adjacency

_LOG_NEGLIGIBLE = -9.0
"""log of the part of delta that may be spent on the far ends of the loss, and on draws of very many members."""

_ROUNDING = 1e-7
"""Relative allowance for floating point."""

_LEVELS = 64
"""Most levels of the number of drawn members; with more, neighbours are merged and charged as the worst."""

_LEAST_LOG_DELTA = -600.0
_PRECISION = 1e-3

FIXED_SIZE = (
    dp_accounting.SampledWithoutReplacementDpEvent,
    dp_accounting.SampledWithReplacementDpEvent,
    events.FixedSizeTwoLevelDpEvent,
)
"""Releases of a batch of fixed size, which the accountant knows for replace-one only."""


def epsilon_between(event: DpEvent, delta: float, adjacency: Adjacency) -> float:
    """The epsilon of an event under any adjacency, even if the accountant knows it for replace-one only.

    For fixed-size batches, a record that is not used contributes zero, which is within every bound.

    >>> from tacit.privacy.events import without_replacement
    >>> fixed = without_replacement(100, 10, 4.0)
    >>> epsilon_between(fixed, 1e-5, Adjacency.ADD_REMOVE) == epsilon(fixed, 1e-5, Adjacency.REPLACE_ONE)
    True
    """
    if any(isinstance(leaf, FIXED_SIZE) or _is_batch(leaf) for leaf, _ in leaves(event)):
        adjacency = Adjacency.REPLACE_ONE
    return epsilon(event, delta, adjacency)


def group_epsilon(event: DpEvent, size: int, delta: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> float:
    """The epsilon for `size` records of a client that change together; infinite if there is none.

    The members' contributions add up, so in a round that draws j of k members the group counts as one record with
    the bound j in + (k - j) out ("in" when drawn, "out" when not).

    Full batches, one pass: a Gaussian release at k times the shift (in one pass all may be in one batch).
    Poisson: j ~ Binomial(k, q), fresh in every round, so by Lemma A the mixture over j against its mirror image
    (or against nothing) dominates; the proof of Theorem B applies unchanged.
    Sums with coins: k times the reach; in one pass, in each of the up to k rounds that the members may be in.
    Shuffled: as if the shuffler revealed the senders, or one record after the other behind it.
    Fixed-size batches: Fact C, with the number of members drawn in place of the draws of one record.
    Fixed-size batches in two levels: j is revealed (convexity), which leaves a Gaussian release at its shift.
    Two levels, Poisson or fixed-size, if that is less: one record after the other, at the best point of its
    curve (`_one_after_the_other`).
    Revealed batches: j is revealed.

    >>> from tacit.privacy.events import gaussian, poisson, repeated
    >>> run = repeated(poisson(0.01, 1.0), 1000)
    >>> [round(group_epsilon(run, k, 1e-5), 1) for k in (1, 2, 4)]
    [2.8, 6.3, 14.5]
    >>> group_epsilon(gaussian(30.0), 3, 1e-5) == epsilon(gaussian(10.0), 1e-5)
    True
    """
    check_delta(delta)
    adjacency = Adjacency(adjacency)
    if not is_private(event):
        return math.inf
    if count("size", size) == 1:
        return epsilon(event, delta, adjacency)
    return _group_epsilon(json.dumps(to_dict(event)), size, delta, adjacency)


@lru_cache(maxsize=1024)
def _group_epsilon(text: str, size: int, delta: float, adjacency: Adjacency) -> float:
    event = from_dict(json.loads(text))
    coins, rest = separate(event, adjacency)
    if coins:
        each = delta / (len(coins) + (rest is not None))
        others = 0.0 if rest is None else group_epsilon(rest, size, each, adjacency)
        rounds = min(size, _longest_pass(event))
        groups = [replace(noise, reach=size * noise.reach, rounds=rounds * noise.rounds) for noise in coins]
        return sum(noise.epsilon(each) for noise in groups) + others
    surcharge = Surcharge.of(event)
    ideal_delta = surcharge.ideal_delta(delta)
    log_tail = math.log(ideal_delta) + _LOG_NEGLIGIBLE
    # An event that the accountant refuses for one record is also refused for several.
    dominate(event, adjacency, log_tail=log_tail)
    ideal = worst(tuple(_directions(event, size, adjacency, log_tail)), log_tail, EpsilonAt(ideal_delta))
    found = surcharge.real_epsilon(ideal * (1 + _ROUNDING), delta)
    # The bound on the average of two levels (Lemma A') is known for single records only.
    singly = events.TwoLevelDpEvent | events.FixedSizeTwoLevelDpEvent | ShuffledDpEvent
    if any(isinstance(leaf, singly) for leaf, _ in leaves(event)):
        found = min(found, _one_after_the_other(event, size, delta, adjacency, at_most=found))
    return found


def _is_batch(leaf: DpEvent) -> bool:
    return isinstance(leaf, ShuffledDpEvent) and leaf.batch < leaf.records


def _longest_pass(event: DpEvent) -> int:
    """The number of rounds in which the members of a group may be used, if each of them is used once."""
    if isinstance(event, OnceDpEvent):
        return event.rounds
    parts = getattr(event, "events", None) or [getattr(event, "event", None)]
    return max((_longest_pass(part) for part in parts if isinstance(part, DpEvent)), default=1)


class _Known(Enum):
    """What the adversary knows about how many members of a group were drawn."""

    NOTHING = auto()
    """every record has its own coin"""
    LITTLE = auto()
    """others take the places of members that are not drawn: Fact C"""
    ALL = auto()
    """the adversary is told the number"""


@dataclass(frozen=True)
class _Draw:
    """How many members of a group one release draws, and what the group then contributes.

    j members contribute `always + each * j` bounds.
    """

    noise_multiplier: float
    members: Any
    each: float
    always: float
    known: _Known

    def levels(self, log_tail: float) -> tuple[tuple[float, ...], tuple[float, ...], float]:
        """Shifts in noise standard deviations, their chances, and the chance of more than the largest of them."""
        least, most = (int(end) for end in self.members.support())
        possible = np.arange(least, most + 1)
        low = int(np.argmax(self.members.logcdf(possible) > log_tail))
        high = int(np.argmax(self.members.logsf(possible) <= log_tail))
        # Merged levels are charged as the largest of them; everything below `low` joins the first.
        tops = np.unique(np.linspace(low, high, min(_LEVELS, high - low + 1)).astype(int))
        chances = np.add.reduceat(self.members.pmf(possible[: high + 1]), np.append(0, tops[:-1] + 1))
        shifts = (self.always + self.each * possible[tops]) / self.noise_multiplier
        kept = chances > 0
        return (
            tuple(float(shift) for shift in shifts[kept]),
            tuple(float(chance) for chance in chances[kept]),
            float(self.members.sf(possible[high])),
        )


def _directions(event: DpEvent, size: int, adjacency: Adjacency, log_tail: float) -> Iterator[Direction]:
    sides = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    log_tail -= math.log(sum(times * getattr(leaf, "rounds", 1) for leaf, times in leaves(event)) or 1)
    squared_shift = 0.0
    forward: list[tuple[Pair, int]] = []
    backward: list[tuple[Pair, int]] = []
    for leaf, times in leaves(event):
        match leaf:
            case dp_accounting.NoOpDpEvent() | events.InexactNoiseDpEvent():
                continue
            case dp_accounting.GaussianDpEvent(noise_multiplier=z) | events.OnePassDpEvent(noise_multiplier=z):
                squared_shift += times * (sides * size / z) ** 2
                continue
            case ShuffledDpEvent(noise_multiplier=z) if not _is_batch(leaf):
                squared_shift += times * (sides * size / z) ** 2
                continue
            case events.RevealedBatchesDpEvent(rounds=rounds):
                times *= rounds
        draw = _draw(leaf, size)
        pair, reverse = _pairs(*draw.levels(log_tail), sides=sides, known=draw.known)
        forward.append((pair, times))
        backward.append((reverse, times))
    yield Direction(math.sqrt(squared_shift), tuple(forward))
    if backward != forward:
        yield Direction(math.sqrt(squared_shift), tuple(backward))


def _draw(leaf: DpEvent, size: int) -> _Draw:
    match leaf:
        case dp_accounting.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            return _Draw(inner.noise_multiplier, stats.binom(size, rate), 1.0, 0.0, _Known.NOTHING)
        case events.TwoLevelDpEvent(rate, z, inside, outside):
            return _Draw(z, stats.binom(size, rate), inside - outside, size * outside, _Known.NOTHING)
        case events.RevealedBatchesDpEvent(_, rate, z, inside, outside):
            return _Draw(z, stats.binom(size, rate), inside - outside, size * outside, _Known.ALL)
        case dp_accounting.SampledWithoutReplacementDpEvent(records, batch, inner):
            members = _fixed_size(records, batch, False, size)
            return _Draw(inner.noise_multiplier, members, 1.0, 0.0, _Known.LITTLE)
        case dp_accounting.SampledWithReplacementDpEvent(records, batch, inner):
            members = _fixed_size(records, batch, True, size)
            return _Draw(inner.noise_multiplier, members, 1.0, 0.0, _Known.LITTLE)
        case ShuffledDpEvent(records=records, batch=batch, noise_multiplier=z):
            # A client with more records than the event says draws fewer of any group.
            return _Draw(z, _fixed_size(records, batch, False, min(size, records)), 1.0, 0.0, _Known.LITTLE)
        case events.FixedSizeTwoLevelDpEvent(records, batch, replacement, z, difference, full):
            members = _fixed_size(records, batch, replacement, size)
            return _Draw(z, members, difference, size * full, _Known.ALL)
        case _:
            raise RequestError(f"no bound for groups of records is known for {leaf!r}")


def _fixed_size(records: int, batch: int, replacement: bool, size: int) -> Any:
    # Members beyond the records that are drawn from, such as those held back for evaluation, are in no batch.
    size = min(size, records)
    return stats.binom(batch, size / records) if replacement else stats.hypergeom(records, size, batch)


def _pairs(
    shifts: tuple[float, ...], weights: tuple[float, ...], given_up: float, *, sides: float, known: _Known
) -> tuple[Pair, Pair]:
    """Dominating pairs of one release, in both orders of the data sets."""
    if known is not _Known.NOTHING:
        moved = [(weight, sides * shift) for weight, shift in zip(weights, shifts, strict=True) if shift > 0]
        still = sum(weight for weight, shift in zip(weights, shifts, strict=True) if shift == 0)
        chances, distances = tuple(weight for weight, _ in moved), tuple(distance for _, distance in moved)
        if known is _Known.ALL or not still or not moved:
            revealed = RevealedPair(chances, distances, atom=still, unbounded=given_up)
            return revealed, revealed
        hidden = FixedSizePair(distances, chances, 1 - still, unbounded=given_up)
        return hidden, hidden
    # The mass given up in the second law is left out, which makes the two easier to tell apart.
    if sides == 2:
        mirrored = MixturePair(weights, shifts, weights, shifts, unbounded=given_up)
        return mirrored, mirrored
    nobody = ((1.0,), (0.0,))
    return MixturePair(weights, shifts, *nobody, unbounded=given_up), MixturePair(*nobody, weights, shifts)


def _one_after_the_other(
    event: DpEvent, size: int, delta: float, adjacency: Adjacency, *, at_most: float
) -> float:
    """The smallest k e with delta(e) (1 + exp(e) + ... + exp((k-1) e)) <= delta; infinite if above `at_most`."""

    def keeps(each: float) -> bool:
        target = math.log(delta) - log_geometric(each, size)
        return target > _LEAST_LOG_DELTA and log_delta(event, each, adjacency, log_floor=target) <= target

    low, high = epsilon(event, delta, adjacency), at_most / size
    if high <= low or not keeps(high):
        return math.inf
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return size * high


def log_geometric(epsilon: float, size: int) -> float:
    """log(1 + exp(e) + ... + exp((k-1) e)), without overflow.

    >>> round(math.exp(log_geometric(1.0, 3)), 3)
    11.107
    """
    if epsilon == 0:
        return math.log(size)
    return (size - 1) * epsilon + math.log(math.expm1(-size * epsilon) / math.expm1(-epsilon))
