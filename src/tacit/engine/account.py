"""Privacy accounts: what a recipe will spend, and what a run has spent according to its ledger alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tacit.algorithms.calibrate import Calibration, Group
from tacit.engine.execute import stored_summary
from tacit.engine.ledger import read_ledger
from tacit.engine.ledger_reading import LedgerReading
from tacit.engine.plan import Plan, make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import DataError, RequestError
from tacit.privacy import Guarantee, epsilon
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
    book = LedgerReading.of(directory / "ledger.jsonl", header, rounds)
    spent = tuple(_spent(book, client) for client in sorted(book.clients))
    worst = max(spent, key=lambda one: one.epsilon)
    cost = None
    if worst.rounds:
        cost = cost_after(book.clients[worst.client].events.after, worst.rounds, worst.delta, book.adjacency)
    guarantee = book.promise({client: book.event(client) for client in book.clients})
    beside = tuple(
        book.promise({client: terms.beside[adversary] for client, terms in book.clients.items()}, adversary)
        for adversary in book.exposed_to
    )
    over_budget = [
        f"client {one.client}: epsilon {one.epsilon!r} was spent, but its budget was {one.budget!r}"
        for one in spent
        if one.epsilon > one.budget * (1 + _TOLERANCE)
    ]
    differences = (*over_budget, *(() if summary is None else _differences(book, summary)))
    besides = epsilon(book.clients[worst.client].events.after(0), worst.delta, book.adjacency)
    return RunAccount(
        directory, len(rounds), summary is not None, guarantee, spent, cost, differences, beside, besides
    )


def _spent(book: LedgerReading, client: int) -> ClientSpending:
    """What a client has spent."""
    terms = book.clients[client]
    return ClientSpending(
        client,
        terms.records,
        terms.released_records,
        book.taken[client],
        epsilon(book.event(client), terms.delta, book.adjacency),
        terms.delta,
        terms.budget,
    )


def _differences(book: LedgerReading, summary: dict[str, Any]) -> list[str]:
    """Every value on which the summary and the ledger disagree."""
    sizes = [one.records for one in book.clients.values() if one.records is not None]
    ledger = {
        "rounds": book.rounds,
        "clients": len(book.clients),
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
    promised, claimed = book.guarantee().epsilon, summary.get("epsilon")
    if not isinstance(claimed, int | float) or not math.isclose(promised, claimed, rel_tol=_TOLERANCE):
        differences.append(f"epsilon: recomputed from the ledger {promised!r}, in the summary {claimed!r}")
    return differences


def _worst_group(calibration: Calibration, guarantee: Guarantee, times: int) -> tuple[Group, float]:
    """The clients that spend most, and their delta."""
    deltas = [(group, group.target.delta) for group in calibration.groups if group.target is not None]
    return max(deltas, key=lambda pair: epsilon(calibration.event(pair[0], times), pair[1], guarantee.adjacency))
