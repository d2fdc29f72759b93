"""Privacy accounts: what a recipe will spend, and what a run has spent according to its ledger alone."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from tacit.algorithms.calibrate import Calibration, Group
from tacit.engine.execute import stored_summary
from tacit.engine.ledger import read_ledger
from tacit.engine.plan import Plan, make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import DataError, RequestError, count, positive
from tacit.privacy import Adjacency, Adversary, Guarantee, Unit, epsilon, events
from tacit.privacy.accountant.accounting import check_delta
from tacit.privacy.accountant.cost import Cost, cost_after, finite

_TOLERANCE = 1e-6
"""Relative difference below which two computed epsilons count as equal."""


@dataclass(frozen=True)
class RecipeAccount:
    """What the clients of a recipe will have spent by its end."""

    plan: Plan
    guarantee: Guarantee
    cost: Cost
    """cost of the client that spends most"""

    @property
    def records(self) -> list[int]:
        """The number of records of every client that are in a release."""
        return [int(size) for size in self.plan.federation.most_released]


@dataclass(frozen=True)
class ClientSpending:
    """What one client has spent, according to the ledger."""

    client: int
    records: int | None
    """None where the promise protects this number, so that the ledger omits it"""
    released_records: int | None
    """the same with those that are in another release than training, such as that of learned ranges"""
    rounds: int
    epsilon: float
    delta: float
    budget: float
    """the epsilon that the client may spend in this run"""

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {**self.__dict__, "epsilon": finite(self.epsilon)}


@dataclass(frozen=True)
class RunAccount:
    """What the ledger of a run directory says, and where its summary disagrees."""

    directory: Path
    rounds: int
    finished: bool
    guarantee: Guarantee | None
    """what was actually spent; None for a run without privacy"""
    spent: tuple[ClientSpending, ...]
    cost: Cost | None
    """cost of the client that has spent most"""
    differences: tuple[str, ...]
    beside: tuple[Guarantee, ...] = ()
    """what the whole run is worth against adversaries who see more than the promise assumes"""
    besides: float = 0.0
    """the epsilon of what that client released besides its rounds' messages: evaluations, corrections, ranges"""

    @property
    def records(self) -> list[int] | None:
        """The number of records of every client that are in a release, if the ledger contains it."""
        numbers = [one.released_records for one in self.spent if one.released_records is not None]
        return numbers if len(numbers) == len(self.spent) else None

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        guarantee = self.guarantee
        return {
            "run_dir": str(self.directory),
            "finished": self.finished,
            "privacy": "none" if guarantee is None else str(guarantee.unit),
            "promise": "no privacy: noise was switched off" if guarantee is None else guarantee.sentence(),
            **({} if self.cost is None else self.cost.to_dict()),
            "rounds": self.rounds,
            "epsilon": None if guarantee is None else finite(guarantee.epsilon),
            "epsilon_besides_rounds": finite(self.besides),
            "clients": [one.to_dict() for one in self.spent],
            "agrees": self.finished and not self.differences,
            "differences": list(self.differences),
        }


def account_recipe(recipe: Recipe, *, data_dir: Path | None = None) -> RecipeAccount:
    """What a run of the recipe will spend, computed before it runs."""
    if recipe.privacy == "none":
        raise RequestError("privacy = 'none' in the recipe: there is nothing to account for")
    plan = make_plan(recipe, data_dir=data_dir, look=False)
    guarantee, times = plan.guarantee, plan.releases
    assert guarantee is not None, "a recipe with privacy has one"
    worst, delta = _worst_group(plan.calibration, guarantee, times)
    cost = cost_after(partial(plan.calibration.event, worst), times, delta, guarantee.adjacency)
    return RecipeAccount(plan, guarantee, cost)


def account_run(directory: Path) -> RunAccount:
    """Recomputes every client's epsilon from the ledger, and compares it with the summary if there is one.

    Only two things are read from the ledger: the cumulative event of a client after n releases, and the rounds in
    which it took part. Differences are reported, not repaired.
    """
    if not (directory / "ledger.jsonl").is_file():
        raise DataError(
            f"{directory} has no ledger.jsonl: it is not a run directory, or nothing was released yet"
        )
    header, rounds = read_ledger(directory / "ledger.jsonl")
    summary = stored_summary(directory)
    if header.get("privacy") == "none":
        told = [] if summary is None or summary.get("epsilon") is None else ["the ledger has no privacy"]
        return RunAccount(directory, len(rounds), summary is not None, None, (), None, tuple(told))
    book = _ReadLedger.read(directory / "ledger.jsonl", header, rounds)
    spent = tuple(book.spent(client) for client in sorted(book.events))
    worst = max(spent, key=lambda one: one.epsilon)
    cost = None
    if worst.rounds:
        cost = cost_after(book.events[worst.client].after, worst.rounds, worst.delta, book.adjacency)
    promise = partial(
        Guarantee,
        delta=book.delta,
        deltas=tuple(one.delta for one in spent),
        adjacency=book.adjacency,
        unit=book.unit,
        public=book.public,
    )
    guarantee = promise(
        tuple(book.event(one.client) for one in spent), adversary=book.adversary, colluding=book.colluding
    )
    beside = tuple(
        promise(tuple(book.beside[one.client][adversary] for one in spent), adversary=adversary)
        for adversary in book.exposed_to
    )
    over_budget = [
        f"client {one.client}: epsilon {one.epsilon!r} was spent, but its budget was {one.budget!r}"
        for one in spent
        if one.epsilon > one.budget * (1 + _TOLERANCE)
    ]
    differences = (*over_budget, *(() if summary is None else _differences(book, summary)))
    besides = epsilon(book.events[worst.client].after(0), worst.delta, book.adjacency)
    return RunAccount(
        directory, len(rounds), summary is not None, guarantee, spent, cost, differences, beside, besides
    )


@dataclass(frozen=True)
class _Cumulative:
    """The event of all that a client has released, after several numbers of releases, up to the planned one."""

    counts: tuple[int, ...]
    events: tuple[DpEvent, ...]

    @classmethod
    def read(cls, written: Any) -> _Cumulative:
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
class _ReadLedger:
    """A ledger that has been read and checked."""

    rounds: int
    delta: float
    adjacency: Adjacency
    unit: Unit
    adversary: Adversary
    colluding: int
    public: tuple[str, ...]
    events: dict[int, _Cumulative]
    beside: dict[int, dict[Adversary, DpEvent]]
    records: dict[int, int | None]
    released: dict[int, int | None]
    deltas: dict[int, float]
    budgets: dict[int, float]
    taken: Counter[int]

    @classmethod
    def read(cls, path: Path, header: dict[str, Any], rounds: list[dict[str, Any]]) -> _ReadLedger:
        try:
            spent: dict[int, _Cumulative] = {}
            beside: dict[int, dict[Adversary, DpEvent]] = {}
            records: dict[int, int | None] = {}
            released: dict[int, int | None] = {}
            deltas: dict[int, float] = {}
            budgets: dict[int, float] = {}
            for group in header["groups"]:
                if "release" in group:
                    raise RequestError("it was written by an earlier version, as one release and a count")
                cumulative = _Cumulative.read(group["events"])
                seen = {
                    Adversary(name): events.from_dict(event) for name, event in group.get("beside", {}).items()
                }
                size = count("records", group["records"]) if "records" in group else None
                every = None if size is None else count("records", group.get("released_records", size))
                delta, budget = check_delta(group["delta"]), positive("epsilon_budget", group["epsilon_budget"])
                for client in group["clients"]:
                    if not isinstance(client, int) or client in spent:
                        raise RequestError(f"client {client!r} is not a number, or in two groups")
                    spent[client], records[client], released[client] = cumulative, size, every
                    deltas[client], budgets[client], beside[client] = delta, budget, seen
            if not spent:
                raise RequestError("there are no clients")
            taken: Counter[int] = Counter()
            for entry in rounds:
                who = entry["clients"]
                taken.update(list(spent) if who == "all" else _members(entry["round"], who, spent))
            return cls(
                rounds=len(rounds),
                delta=max(deltas.values()),
                adjacency=Adjacency(header["adjacency"]),
                unit=Unit(header["unit"]),
                adversary=Adversary(header["adversary"]),
                colluding=count("colluding", header.get("colluding", 0), at_least=0),
                public=tuple(header.get("public", Guarantee.public)),
                events=spent,
                beside=beside,
                records=records,
                released=released,
                deltas=deltas,
                budgets=budgets,
                taken=taken,
            )
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{path} is not a ledger of tacit: {reason}") from error

    @property
    def exposed_to(self) -> list[Adversary]:
        """The adversaries who see more than the promise assumes, as far as the ledger covers every client."""
        first, *others = self.beside.values()
        return [adversary for adversary in first if all(adversary in seen for seen in others)]

    def event(self, client: int) -> DpEvent:
        """The event of all that a client has released."""
        return self.events[client].after(self.taken[client])

    def spent(self, client: int) -> ClientSpending:
        """What a client has spent."""
        delta = self.deltas[client]
        cost = epsilon(self.event(client), delta, self.adjacency)
        return ClientSpending(
            client,
            self.records[client],
            self.released[client],
            self.taken[client],
            cost,
            delta,
            self.budgets[client],
        )

    def promised(self) -> float:
        """The promised epsilon: every group is charged for the most rounds that any client took part in."""
        most = max(self.taken.values(), default=0)
        distinct = {(id(one), self.deltas[client]): one for client, one in self.events.items()}
        return max(epsilon(one.after(most), delta, self.adjacency) for (_, delta), one in distinct.items())


def _members(round: int, who: Any, known: Collection[int]) -> list[int]:
    if not isinstance(who, list) or len(set(who)) != len(who):
        raise RequestError(f"round {round} must list each of its clients exactly once")
    strangers = [client for client in who if client not in known]
    if strangers:
        raise RequestError(f"round {round} names client {strangers[0]!r}, which is in no group")
    return who


def _differences(book: _ReadLedger, summary: dict[str, Any]) -> list[str]:
    """Every value on which the summary and the ledger disagree."""
    sizes = [size for size in book.records.values() if size is not None]
    ledger = {
        "rounds": book.rounds,
        "clients": len(book.events),
        "records_per_client": [min(sizes), max(sizes)] if sizes else None,
        "delta": book.delta,
        "adjacency": str(book.adjacency),
        "unit": str(book.unit),
        "adversary": str(book.adversary),
    }
    differences = [
        f"{name}: the ledger says {value!r}, but the summary says {summary.get(name)!r}"
        for name, value in ledger.items()
        if summary.get(name) != value
    ]
    promised, claimed = book.promised(), summary.get("epsilon")
    if not isinstance(claimed, int | float) or not math.isclose(promised, claimed, rel_tol=_TOLERANCE):
        differences.append(f"epsilon: recomputed from the ledger {promised!r}, in the summary {claimed!r}")
    return differences


def _worst_group(calibration: Calibration, guarantee: Guarantee, times: int) -> tuple[Group, float]:
    """The clients that spend most, and their delta."""
    deltas = [(group, group.target.delta) for group in calibration.groups if group.target is not None]
    return max(deltas, key=lambda pair: epsilon(calibration.event(pair[0], times), pair[1], guarantee.adjacency))
