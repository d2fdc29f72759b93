"""The privacy cost of rounds of one kind: by both accountants, as a function of the rounds and of delta."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import dp_accounting
from dp_accounting import DpEvent

from tacit.errors import RequestError, count, probability, unknown_name
from tacit.privacy import events
from tacit.privacy.accountant.accounting import check_delta, epsilon
from tacit.privacy.accountant.composition import CannotAnswerError
from tacit.privacy.accountant.rdp import rdp_epsilon
from tacit.privacy.events.crowds import OnceDpEvent
from tacit.privacy.promises.terms import Adjacency

_POINTS = 12
"""Points of the curve over rounds."""

_DELTAS = tuple(10.0**-power for power in range(2, 11))

SAMPLINGS = ("poisson", "without-replacement", "with-replacement", "full", "one-pass")


@dataclass(frozen=True)
class Cost:
    """The cost of a number of rounds, and how it grows with the rounds."""

    event: DpEvent
    rounds: int
    delta: float
    adjacency: Adjacency
    epsilon: float
    """by privacy loss distributions; quote this one"""
    rdp_epsilon: float
    """by Renyi divergences; a second opinion that is never smaller"""
    first_round: float
    """epsilon after one round"""
    last_round: float
    """by how much the last round raised epsilon"""
    by_rounds: tuple[tuple[int, float], ...]
    """(rounds, epsilon) at intermediate rounds, at the same delta"""
    by_delta: tuple[tuple[float, float], ...]
    """(delta, epsilon) at the end; a delta for which there is no answer is left out"""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON. JSON has no infinity, so None means that there is no guarantee."""
        return {
            "rounds": self.rounds,
            "delta": self.delta,
            "adjacency": str(self.adjacency),
            "epsilon": finite(self.epsilon),
            "rdp_epsilon": finite(self.rdp_epsilon),
            "cost_per_round": {
                "mean": finite(self.epsilon / self.rounds),
                "first": finite(self.first_round),
                "last": finite(self.last_round),
            },
            "epsilon_by_rounds": [[rounds, finite(value)] for rounds, value in self.by_rounds],
            "epsilon_by_delta": [[delta, finite(value)] for delta, value in self.by_delta],
            "event": events.to_dict(self.event),
        }


def marks(rounds: int) -> list[int]:
    """The numbers of rounds, up to this one, at which to report what was spent.

    A small number of rounds is reported in full. Epsilon grows like a square root, so marks are denser early on.

    >>> marks(4), marks(1000)
    ([1, 2, 3, 4], [1, 7, 28, 62, 111, 174, 250, 340, 444, 562, 694, 840, 999, 1000])
    """
    if rounds <= _POINTS:
        return list(range(1, rounds + 1))
    steps = (max(1, round(rounds * (k / _POINTS) ** 2)) for k in range(1, _POINTS + 1))
    return sorted({1, rounds - 1, *steps})


def cost_of(release: DpEvent, rounds: int, delta: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> Cost:
    """The cost of `rounds` rounds, each of which is a `release`.

    >>> spent = cost_of(events.poisson(0.01, 1.1), 1000, 1e-5, Adjacency.ADD_REMOVE)
    >>> round(spent.epsilon, 2), round(spent.rdp_epsilon, 2), round(spent.first_round, 2)
    (1.52, 1.71, 0.14)
    """
    return cost_after(partial(over, release), rounds, delta, adjacency)


def cost_after(
    event_after: Callable[[int], DpEvent],
    rounds: int,
    delta: float,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
) -> Cost:
    """The cost of `rounds` rounds, where `event_after(n)` is everything that the first n of them release."""
    adjacency = Adjacency(adjacency)
    event = event_after(count("rounds", rounds))
    check_delta(delta)
    curve = {rounds: epsilon(event, delta, adjacency)}
    for mark in reversed(marks(rounds)[:-1]):
        # Fewer rounds cost no more than more rounds, so a bound for more rounds also holds for fewer.
        curve[mark] = min(_bound(event_after(mark), delta, adjacency), *curve.values())
    return Cost(
        event=event,
        rounds=rounds,
        delta=delta,
        adjacency=adjacency,
        epsilon=curve[rounds],
        rdp_epsilon=rdp_epsilon(event, delta, adjacency),
        first_round=curve[1],
        last_round=_rise(curve.get(rounds - 1, 0.0), curve[rounds]),
        by_rounds=tuple(sorted(curve.items())),
        by_delta=tuple(
            (at, bound)
            for at in sorted({*_DELTAS, delta}, reverse=True)
            if math.isfinite(bound := _bound(event, at, adjacency))
        ),
    )


def over(release: DpEvent, rounds: int) -> DpEvent:
    """The event of `rounds` rounds of a release. One pass over the data stays one pass for any number of rounds.

    >>> over(events.one_pass(2.0, 1), 30)
    OnePassDpEvent(noise_multiplier=2.0, rounds=30)
    """
    match release:
        case events.OnePassDpEvent(noise_multiplier=z, rounds=already):
            return events.one_pass(z, already * rounds)
        case events.RevealedBatchesDpEvent(already, rate, z, inside, outside):
            return events.revealed_batches(already * rounds, rate, z, inside, outside)
        case OnceDpEvent(event=one, rounds=already):
            return events.once(one, already * rounds)
        case dp_accounting.ComposedDpEvent(events=parts):
            return events.composed(over(part, rounds) for part in parts)
        case _:
            return events.repeated(release, rounds)


def release_of(
    sampling: str,
    noise_multiplier: float,
    *,
    rounds: int,
    rate: float | None = None,
    records: int | None = None,
    batch: int | None = None,
) -> DpEvent:
    """The event of one round, from plain numbers; missing, contradictory or out-of-range settings are refused.

    >>> release_of("without-replacement", 1.1, rounds=1000, rate=0.01)
    Traceback (most recent call last):
    tacit.errors.RequestError: sampling 'without-replacement' needs records and batch: ...
    """
    if sampling not in SAMPLINGS:
        raise unknown_name("sampling", sampling, SAMPLINGS)
    if rate is not None:
        probability("rate", rate)
    if records is not None and batch is not None:
        rate = _agreed_rate(sampling, rate, count("records", records), count("batch", batch))
    match sampling:
        case "full":
            if rate not in (None, 1.0):
                raise RequestError(f"sampling 'full' takes all records, a rate of 1, not {rate!r}; leave it out")
            return events.gaussian(noise_multiplier)
        case "poisson":
            if rate is None:
                raise RequestError("sampling 'poisson' needs a rate, or records and batch")
            return events.poisson(rate, noise_multiplier)
        case "one-pass":
            if records is not None and batch is not None and rounds > records // batch:
                raise RequestError(
                    f"rounds = {rounds!r}, but one pass over {records} records in batches of {batch} has only "
                    f"{records // batch}"
                )
            return events.one_pass(noise_multiplier, 1)
    if records is None or batch is None:
        raise RequestError(
            f"sampling {sampling!r} needs records and batch: a batch of fixed size is a number of records, and a "
            "rate alone does not say which"
        )
    make = events.with_replacement if sampling == "with-replacement" else events.without_replacement
    return make(records, batch, noise_multiplier)


def finite(value: float) -> float | None:
    """The value, or None for infinity and NaN, which JSON does not have."""
    return value if math.isfinite(value) else None


def _agreed_rate(sampling: str, rate: float | None, records: int, batch: int) -> float:
    if batch > records and sampling != "with-replacement":
        raise RequestError(f"batch must be at most the {records} records, not {batch!r}")
    if rate is not None and not math.isclose(rate, batch / records, rel_tol=1e-6):
        raise RequestError(
            f"rate = {rate!r} contradicts a batch of {batch} of {records} records, a rate of "
            f"{batch / records:g}; leave one of them out"
        )
    return batch / records


def _rise(before: float, after: float) -> float:
    return 0.0 if math.isinf(before) else after - before


def _bound(event: DpEvent, delta: float, adjacency: Adjacency) -> float:
    """The event's epsilon, or infinity (still a valid bound) if the accountant cannot answer."""
    try:
        return epsilon(event, delta, adjacency)
    except CannotAnswerError:
        return math.inf
