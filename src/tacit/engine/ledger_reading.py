"""A run's ledger, read and checked: what each client has released, and in how many rounds."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from tacit.errors import DataError, RequestError, count, positive
from tacit.privacy import Adjacency, Adversary, Guarantee, Unit, events
from tacit.privacy.accountant.accounting import check_delta


@dataclass(frozen=True)
class Cumulative:
    """The event of all that a client has released, after several numbers of releases, up to the planned one."""

    counts: tuple[int, ...]
    events: tuple[DpEvent, ...]

    @classmethod
    def read(cls, written: Any) -> Cumulative:
        """The events of a group, as the ledger's header has them."""
        counts = tuple(count("number of releases", n, at_least=0) for n, _ in written)
        if not counts or counts[0] or list(counts) != sorted(set(counts)):
            raise RequestError("events must start at 0 releases, and their numbers of releases must increase")
        return cls(counts, tuple(events.from_dict(event) for _, event in written))

    def after(self, releases: int) -> DpEvent:
        """The event of `releases` releases: the first event in the ledger that covers at least as many.

        More releases than planned cannot be charged.
        """
        place = bisect_left(self.counts, releases)
        return self.events[place] if place < len(self.counts) else events.non_private()


@dataclass(frozen=True)
class ClientTerms:
    """What the ledger says of a group of clients: all of them have the same size, noise and budget."""

    events: Cumulative
    beside: Mapping[Adversary, DpEvent]
    """what the whole run is to adversaries who see more than the promise assumes"""
    records: int | None
    """None where the promise protects this number, so that the ledger omits it"""
    released_records: int | None
    """the same with those that are in another release than training, such as that of learned ranges"""
    delta: float
    budget: float
    """the epsilon that a client may spend in this run"""

    @classmethod
    def read(cls, group: Mapping[str, Any]) -> ClientTerms:
        """One group of the ledger's header."""
        if "release" in group:
            raise RequestError("it was written by an earlier version, as one release and a count")
        cumulative = Cumulative.read(group["events"])
        beside = {Adversary(name): events.from_dict(event) for name, event in group.get("beside", {}).items()}
        records = count("records", group["records"]) if "records" in group else None
        released = None if records is None else count("records", group.get("released_records", records))
        delta, budget = check_delta(group["delta"]), positive("epsilon_budget", group["epsilon_budget"])
        return cls(cumulative, beside, records, released, delta, budget)


@dataclass(frozen=True)
class LedgerReading:
    """A ledger that has been read and checked."""

    rounds: int
    adjacency: Adjacency
    unit: Unit
    adversary: Adversary
    colluding: int
    public: tuple[str, ...]
    clients: Mapping[int, ClientTerms]
    """the terms of every client, by its id"""
    taken: Counter[int]
    """how many rounds every client took part in"""

    @classmethod
    def of(cls, path: Path, header: dict[str, Any], rounds: list[dict[str, Any]]) -> LedgerReading:
        """What `read_ledger` found at this path."""
        try:
            clients = _terms(header["groups"])
            taken: Counter[int] = Counter()
            for entry in rounds:
                who = entry["clients"]
                taken.update(list(clients) if who == "all" else _members(entry["round"], who, clients))
            return cls(
                rounds=len(rounds),
                adjacency=Adjacency(header["adjacency"]),
                unit=Unit(header["unit"]),
                adversary=Adversary(header["adversary"]),
                colluding=count("colluding", header.get("colluding", 0), at_least=0),
                public=tuple(header.get("public", Guarantee.public)),
                clients=clients,
                taken=taken,
            )
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{path} is not a ledger of tacit: {reason}") from error

    @property
    def delta(self) -> float:
        """The largest delta of any client."""
        return max(one.delta for one in self.clients.values())

    @property
    def exposed_to(self) -> list[Adversary]:
        """The adversaries who see more than the promise assumes, as far as the ledger covers every client."""
        first, *others = (one.beside for one in self.clients.values())
        return [adversary for adversary in first if all(adversary in seen for seen in others)]

    def event(self, client: int) -> DpEvent:
        """The event of all that a client has released."""
        return self.clients[client].events.after(self.taken[client])

    def guarantee(self) -> Guarantee:
        """The promise: every client is charged for the most rounds that any of them took part in."""
        most = max(self.taken.values(), default=0)
        return self.promise({client: terms.events.after(most) for client, terms in self.clients.items()})

    def promise(self, released: Mapping[int, DpEvent], against: Adversary | None = None) -> Guarantee:
        """What the clients' events promise, against the run's adversary or against one who sees more."""
        told = sorted(released)
        return Guarantee(
            tuple(released[client] for client in told),
            self.delta,
            self.adjacency,
            self.unit,
            against or self.adversary,
            self.public,
            tuple(self.clients[client].delta for client in told),
            0 if against else self.colluding,
        )


def _terms(groups: Any) -> dict[int, ClientTerms]:
    """The terms of every client, by its id; each is in one group."""
    clients: dict[int, ClientTerms] = {}
    for group in groups:
        terms = ClientTerms.read(group)
        for client in group["clients"]:
            if not isinstance(client, int) or client in clients:
                raise RequestError(f"client {client!r} is not a number, or in two groups")
            clients[client] = terms
    if not clients:
        raise RequestError("there are no clients")
    return clients


def _members(round: int, who: Any, known: Collection[int]) -> list[int]:
    if not isinstance(who, list) or len(set(who)) != len(who):
        raise RequestError(f"round {round} must list each of its clients exactly once")
    strangers = [client for client in who if client not in known]
    if strangers:
        raise RequestError(f"round {round} names client {strangers[0]!r}, which is in no group")
    return who
