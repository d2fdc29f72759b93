"""The dominating pairs of each event under an adjacency.

This is the complete table of which sampling may be combined with which mechanism; everything else is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import dp_accounting
import numpy as np
from dp_accounting import DpEvent

from tacit._deferred import stats
from tacit.errors import RequestError
from tacit.privacy import events
from tacit.privacy.accountant.averages import LARGEST_SHIFT, Against, AveragePair
from tacit.privacy.accountant.pairs import FixedSizePair, MixturePair, Pair, RevealedPair
from tacit.privacy.events.crowds import CoinSumDpEvent, OnceDpEvent, SharedNoiseDpEvent, ShuffledDpEvent
from tacit.privacy.promises.terms import Adjacency

_GROUPS = 512
"""Most levels of a revealed number of inclusions; with more, neighbours are merged and charged as the worst."""

_MUCH = 0.99
"""An average above this fraction of what the norms allow is treated as unbounded: Lemma A is simpler."""


_COHORTS = 64
"""Most cohort sizes that are treated separately; with more, neighbours are merged and charged as the largest."""


@dataclass(frozen=True)
class Direction:
    """One order of two neighbouring data sets: a joint Gaussian shift, and pairs that compose with it."""

    shift: float
    pairs: tuple[tuple[Pair, int], ...]

    @property
    def pieces(self) -> tuple[tuple[Pair, int], ...]:
        """All pairs, including the joint Gaussian, which is cut into as many equal releases as there are others.

        Its loss then has a range similar to theirs.
        """
        if self.shift == 0:
            return self.pairs
        times = max(1, sum(times for _, times in self.pairs))
        return (*self.pairs, (MixturePair((1.0,), (self.shift / math.sqrt(times),), (1.0,), (0.0,)), times))


def leaves(event: DpEvent, times: int = 1) -> Iterator[tuple[DpEvent, int]]:
    """The single releases of an event, each with the number of times that it happened."""
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        yield from leaves(event.event, times * event.count)
    elif isinstance(event, OnceDpEvent):
        yield from leaves(event.event, times)
    elif isinstance(event, dp_accounting.ComposedDpEvent):
        for part in event.events:
            yield from leaves(part, times)
    else:
        yield event, times


def is_private(event: DpEvent) -> bool:
    """Whether every part of the event has a guarantee at all."""
    return not any(isinstance(leaf, dp_accounting.NonPrivateDpEvent) for leaf, _ in leaves(event))


def splits_noise(event: DpEvent) -> bool:
    """Whether the bound depends on how the analysis divides the noise into two parts."""
    return any(
        isinstance(leaf, events.FixedSizeTwoLevelDpEvent) and leaf.replacement for leaf, _ in leaves(event)
    )


def dominate(
    event: DpEvent, adjacency: Adjacency, *, log_tail: float, split: float = 0.0, rough: bool = False
) -> tuple[Direction, ...]:
    """The directions that together dominate a private event; its epsilon is the largest of theirs.

    `log_tail` is the logarithm of the total probability that may be given up. `split` moves noise from the drawn
    to the full part of fixed-size two-level releases in the analysis, in log-odds relative to the best value for
    many rounds with much noise; every value gives a valid bound. `rough` uses pairs that are faster to compute
    and slightly easier to tell apart, if there are any.
    """
    events.to_dict(event)
    log_tail -= math.log(sum(times for _, times in leaves(event)) or 1)
    squared_shift = 0.0
    forward: dict[Pair, int] = {}
    backward: dict[Pair, int] = {}
    for leaf, times in leaves(event):
        shift, pair, reverse = _release(leaf, adjacency, log_tail, split, rough)
        squared_shift += times * shift * shift
        if pair is not None:
            forward[pair] = forward.get(pair, 0) + times
        if reverse is not None:
            backward[reverse] = backward.get(reverse, 0) + times
    shift = math.sqrt(squared_shift)
    directions = [Direction(shift, tuple(forward.items()))]
    if backward != forward:
        directions.append(Direction(shift, tuple(backward.items())))
    return tuple(directions)


def _release(
    leaf: DpEvent, adjacency: Adjacency, log_tail: float, split: float, rough: bool
) -> tuple[float, Pair | None, Pair | None]:
    """Gaussian shift and dominating pair, in both directions, of one release."""
    sides = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    match leaf:
        case dp_accounting.NoOpDpEvent() | events.InexactNoiseDpEvent():
            # The cost of inexact noise is not a release; `inexact` charges it.
            return 0.0, None, None
        case dp_accounting.GaussianDpEvent(noise_multiplier=z) | events.OnePassDpEvent(noise_multiplier=z):
            return sides / z, None, None
        case dp_accounting.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            return _poisson(rate, inner.noise_multiplier, 1.0, 0.0, rate, adjacency, log_tail, rough)
        case events.TwoLevelDpEvent(rate, z, inside, outside, average):
            return _poisson(rate, z, inside, outside, average, adjacency, log_tail, rough)
        case events.RevealedBatchesDpEvent(rounds, rate, z, inside, outside):
            revealed = _revealed(rounds, rate, sides * inside / z, sides * outside / z, log_tail)
            return 0.0, revealed, revealed
        case SharedNoiseDpEvent(clients, expected, z) if expected == clients:
            return sides * math.sqrt(clients) / z, None, None
        case SharedNoiseDpEvent(clients, expected, z):
            revealed = _shared(clients, expected, sides / z, log_tail)
            return 0.0, revealed, revealed
        case ShuffledDpEvent(records=records, batch=batch, noise_multiplier=z) if batch == records:
            # Treated as if the shuffler revealed the senders; `mixed` takes credit for one that does not.
            return sides / z, None, None
        case CoinSumDpEvent():
            raise RequestError(f"no dominating pair for {leaf!r}: `accounting` handles it separately")
    if adjacency is not Adjacency.REPLACE_ONE:
        kind = events.to_dict(leaf)["kind"]
        raise RequestError(
            f"adjacency {str(adjacency)!r} cannot be used with fixed-size batches ({kind}): if one record is "
            "missing, others take its place. Use 'replace-one', or Poisson sampling"
        )
    match leaf:
        case dp_accounting.SampledWithoutReplacementDpEvent(records, batch, inner):
            return _fixed_size(records, batch, False, 2 / inner.noise_multiplier, log_tail)
        case dp_accounting.SampledWithReplacementDpEvent(records, batch, inner):
            return _fixed_size(records, batch, True, 2 / inner.noise_multiplier, log_tail)
        case ShuffledDpEvent(records=records, batch=batch, noise_multiplier=z):
            return _fixed_size(records, batch, replacement=False, shift=2 / z, log_tail=log_tail)
        case events.FixedSizeTwoLevelDpEvent(records, batch, False, z, difference, full, average) if (
            2 * difference + full <= LARGEST_SHIFT * z or batch == records
        ):
            # Fact C, two levels: the record drawn in this one's place adds a difference, too.
            rate = batch / records
            inside, outside = average + 2 * (1 - rate) * difference, full + rate * difference
            return _poisson(rate, z, inside, outside, average, adjacency, log_tail, rough)
        case events.FixedSizeTwoLevelDpEvent(records, batch, replacement, z, difference, full):
            # The sum of two releases with independent noise reveals no more than both releases do.
            full_odds = math.exp(split) * full / (difference * batch / records)
            drawn_shift = 2 * difference / z * math.sqrt(1 + full_odds)
            full_shift = 2 * full / z * math.sqrt(1 + 1 / full_odds)
            shift, pair, reverse = _fixed_size(records, batch, replacement, drawn_shift, log_tail)
            return math.hypot(shift, full_shift), pair, reverse
        case _:
            raise RequestError(f"no dominating pair for {leaf!r}")


def _poisson(
    rate: float,
    z: float,
    inside: float,
    outside: float,
    average: float,
    adjacency: Adjacency,
    log_tail: float,
    rough: bool,
) -> tuple[float, Pair | None, Pair | None]:
    """Theorem B, with the pair of Lemma A, or of Lemma A' if the average is shorter than Lemma A assumes."""
    sides = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    if rate == 1:
        return sides * min(inside, average) / z, None, None
    most = (1 - rate) * outside + rate * inside
    if average < _MUCH * most and inside <= LARGEST_SHIFT * z:
        # Rounded to steps, so that events that differ only in their number of rounds share a pair.
        tail = 4.0 * math.floor(log_tail / 4)
        in_stds = rate, inside / z, outside / z, average / z
        if adjacency is Adjacency.REPLACE_ONE:
            mirrored = AveragePair(*in_stds, Against.ANOTHER_RECORD, tail, rough)
            return 0.0, mirrored, mirrored
        forward, reverse = (
            AveragePair(*in_stds, way, tail, rough) for way in (Against.NOBODY, Against.NOBODY_REVERSED)
        )
        return 0.0, forward, reverse
    if inside == outside:
        return sides * inside / z, None, None
    weights, shifts = (1 - rate, rate), (outside / z, inside / z)
    if adjacency is Adjacency.REPLACE_ONE:
        pair = MixturePair(weights, shifts, weights, shifts)
        return 0.0, pair, pair
    nobody = ((1.0,), (0.0,))
    return 0.0, MixturePair(weights, shifts, *nobody), MixturePair(*nobody, weights, shifts)


def _fixed_size(
    records: int, batch: int, replacement: bool, shift: float, log_tail: float
) -> tuple[float, Pair | None, Pair | None]:
    """The pair of Fact C. `shift` is the shift caused by one draw of the record."""
    if records == 1:
        return batch * shift if replacement else shift, None, None
    if not replacement:
        if batch == records:
            return shift, None, None
        rate = batch / records
        pair = FixedSizePair((shift,), (rate,), rate)
        return 0.0, pair, pair
    times_drawn = stats.binom(batch, 1 / records)
    most = _least(lambda k: times_drawn.logsf(k) <= log_tail, batch)
    draws = np.arange(1, max(most, 1) + 1)
    weights = times_drawn.pmf(draws)
    kept = weights > 0
    pair = FixedSizePair(
        tuple(float(j * shift) for j in draws[kept]),
        tuple(float(w) for w in weights[kept]),
        -math.expm1(batch * math.log1p(-1 / records)),
        unbounded=float(times_drawn.sf(draws[-1])),
    )
    return 0.0, pair, pair


def _revealed(rounds: int, rate: float, inside: float, outside: float, log_tail: float) -> Pair:
    """The number of inclusions N ~ Bin(rounds, rate) is revealed; shift sqrt(N in^2 + (rounds - N) out^2)."""
    inclusions = stats.binom(rounds, rate)
    low = _least(lambda k: inclusions.logcdf(k) > log_tail, rounds)
    high = _least(lambda k: inclusions.logsf(k) <= log_tail, rounds)
    # A group is charged as its largest member; everything below `low` joins the first group.
    tops = np.unique(np.linspace(low, high, min(_GROUPS, high - low + 1)).astype(int))
    weights = np.diff(inclusions.cdf(tops), prepend=0.0)
    middle = inclusions.pmf(tops)
    exact = np.diff(tops, prepend=-1) == 1
    weights = np.where(exact, middle, weights)
    shifts = np.sqrt(tops * inside**2 + (rounds - tops) * outside**2)
    possible = (weights > 0) & (shifts > 0)
    return RevealedPair(
        tuple(float(w) for w in weights[possible]),
        tuple(float(s) for s in shifts[possible]),
        atom=float(weights[shifts == 0].sum()),
        unbounded=float(inclusions.sf(high)),
    )


def _shared(clients: int, expected: float, shift: float, log_tail: float) -> Pair:
    """With chance q a message of shift sqrt(max(m, r)) in a cohort of m = 1 + Bin(n - 1, q) clients, m told.

    `shift` is that of the whole noise on the sum.
    """
    rate = expected / clients
    others = stats.binom(clients - 1, rate)
    high = _least(lambda k: others.logsf(k) <= log_tail, clients - 1)
    # In a cohort of up to `expected` clients everyone adds the same noise.
    first = min(high, max(0, math.floor(expected) - 1))
    # Merged cohorts are charged as the largest of them.
    tops = np.unique(np.linspace(first, high, min(_COHORTS, high - first + 1)).astype(int))
    chances = np.add.reduceat(others.pmf(np.arange(high + 1)), np.append(0, tops[:-1] + 1))
    kept = chances > 0
    return RevealedPair(
        tuple(float(chance) for chance in rate * chances[kept]),
        tuple(float(size) for size in shift * np.sqrt(np.maximum(tops + 1, expected)[kept])),
        atom=1 - rate,
        unbounded=rate * float(others.sf(high)),
    )


def _least(holds: Callable[[int], bool], most: int) -> int:
    """The smallest whole number, at most `most`, from which a monotone condition holds."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
