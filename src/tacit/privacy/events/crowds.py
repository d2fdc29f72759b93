"""Releases that hide in a crowd: a client's message among those of all others, or as a part of their sum."""

from __future__ import annotations

from dataclasses import dataclass, replace

import dp_accounting
from dp_accounting import DpEvent

from tacit.errors import RequestError, positive
from tacit.privacy.events.plain_numbers import batch_of, keep_numbers, keep_whole


@dataclass(frozen=True)
class ShuffledDpEvent(DpEvent):  # type: ignore[misc]
    """One Gaussian release, mixed by a shuffler with similar ones of `clients - 1` others.

    Every client draws a batch of exactly `batch` of its records without replacement, this one from `records`,
    adds up what they contribute, at most one bound each, and adds Gaussian noise of `noise_multiplier` bounds.
    """

    clients: int
    records: int
    batch: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        keep_whole(self, "clients", "records", "batch")
        keep_numbers(self, "noise_multiplier")
        batch_of(self.records, self.batch, replacement=False)
        positive("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class CoinSumDpEvent(DpEvent):  # type: ignore[misc]
    """One sum of integer vectors over `clients`, each of whom adds the heads of `coins` fair coins.

    Each client does so on every one of `dim` coordinates and keeps the coins secret. Before rounding, the sum
    moves by at most `reach` (Euclidean) if a record is replaced, and by half of that if it is left out.
    """

    dim: int
    clients: int
    coins: int
    reach: float

    def __post_init__(self) -> None:
        keep_whole(self, "dim", "clients", "coins")
        keep_numbers(self, "reach")
        positive("reach", self.reach)


@dataclass(frozen=True)
class SharedNoiseDpEvent(DpEvent):  # type: ignore[misc]
    """One round of a randomly drawn cohort that shares the noise, against someone who sees every message.

    Each of `clients` takes part with probability `expected / clients`. In a cohort of m, each message has noise
    of `noise_multiplier / sqrt(max(m, expected))` bounds. The adversary knows who took part, so a client is
    protected only by its own share of the noise and by its chance of not taking part.
    """

    clients: int
    expected: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        keep_whole(self, "clients")
        keep_numbers(self, "expected", "noise_multiplier")
        positive("noise_multiplier", self.noise_multiplier)
        if positive("expected", self.expected) > self.clients:
            raise RequestError(f"expected must be at most the {self.clients} clients, not {self.expected!r}")


@dataclass(frozen=True)
class OnceDpEvent(DpEvent):  # type: ignore[misc]
    """A whole run over disjoint batches, chosen without looking at the data. Each record is used in one round.

    That round is an `event`; the other rounds only post-process its result, or do not depend on the record.
    """

    event: DpEvent
    rounds: int

    def __post_init__(self) -> None:
        keep_whole(self, "rounds")
        if not isinstance(self.event, ShuffledDpEvent | CoinSumDpEvent):
            raise RequestError(f"once is for a shuffled release or a coin-sum, not for {self.event!r}")


def alone(event: DpEvent) -> DpEvent:
    """The same event against someone who can tell the client's messages from all others: no crowd to hide in.

    >>> alone(OnceDpEvent(CoinSumDpEvent(dim=5, clients=100, coins=3, reach=1.0), 7)).event.clients
    1
    """
    match event:
        case ShuffledDpEvent() | CoinSumDpEvent():
            return replace(event, clients=1)
        case OnceDpEvent(event=one, rounds=rounds):
            return OnceDpEvent(alone(one), rounds)
        case dp_accounting.SelfComposedDpEvent(event=one, count=times):
            return dp_accounting.SelfComposedDpEvent(alone(one), times)
        case dp_accounting.ComposedDpEvent(events=parts):
            return dp_accounting.ComposedDpEvent([alone(part) for part in parts])
        case _:
            return event
