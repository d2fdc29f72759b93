"""Watching a run: watchers hear what happens in it, and show it or write it somewhere (`tacit.engine.logs`).

A watcher hears what the promise covers: rounds, epsilon spent, bits sent, and the test metric if the test
records are public. What was measured on the clients' records without noise (`history.MEASURED`) is only for
watchers that ask for it, because logs are often read by people who may not see that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from tacit.engine.history import MEASURED, HistoryRow
from tacit.engine.plan import Plan
from tacit.errors import RequestError


class Watcher(Protocol):
    """Hears what happens in a run. An error in one of its methods ends the run."""

    measured: bool = False
    """whether it also hears what was measured without noise, which the promise does not cover"""

    def on_start(self, facts: Mapping[str, Any]) -> None:
        """Called before the first round, or when a run is resumed.

        Args:
            facts: algorithm, data, clients, parameters, rounds, epsilon and delta (None without privacy), promise
                (a sentence), round (those already done) and resumed.
        """
        ...

    def on_round(self, round: int, numbers: Mapping[str, float]) -> None:
        """Called after every evaluated round.

        Args:
            round: number of finished rounds.
            numbers: what is known by then, by name, such as epsilon and test_metric.
        """
        ...

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Called once, after the last round or when the run stops early.

        Args:
            result: `ended` ("finished", "stopped" or "failed"), `round`, and the last numbers.
        """
        ...


def _check(watchers: Any) -> None:
    """Refuses what is no watcher, before the first round."""
    if not isinstance(watchers, list | tuple):
        raise RequestError(f"watchers must be a list: write watchers=[{type(watchers).__name__}(...)]")
    for one in watchers:
        if isinstance(one, type):
            raise RequestError(
                f"a watcher must be an object, not the class {one.__name__}: write {one.__name__}()"
            )
        missing = [name for name in ("on_start", "on_round", "on_end") if not hasattr(one, name)]
        if missing or not hasattr(one, "measured"):
            raise RequestError(
                f"watcher {type(one).__name__} has no {' and '.join(missing or ['measured'])}: derive it from "
                "tacit.Watcher"
            )


class Watch:
    """Tells the watchers of one run what they may know."""

    def __init__(self, plan: Plan, watchers: Sequence[Watcher]) -> None:
        _check(watchers)
        self._plan, self._watchers = plan, tuple(watchers)
        self._started: list[Watcher] = []
        self._last: HistoryRow | None = None

    def start(self, round: int, *, resumed: bool) -> None:
        """The run starts, or continues after `round` rounds."""
        if not self._watchers:
            return
        plan, guarantee = self._plan, self._plan.calibration.guarantee
        facts = {
            "algorithm": plan.algorithm.name,
            "data": plan.federation.name,
            "clients": plan.federation.clients,
            "parameters": plan.algorithm.work.model.dim,
            "rounds": plan.rounds,
            "epsilon": None if guarantee is None else guarantee.epsilon,
            "delta": None if guarantee is None else guarantee.delta,
            "promise": "no privacy: noise was switched off" if guarantee is None else guarantee.sentence(),
            "round": round,
            "resumed": resumed,
        }
        for watcher in self._watchers:
            watcher.on_start(facts)
            self._started.append(watcher)

    def row(self, row: HistoryRow) -> None:
        """A round was evaluated."""
        self._last = row
        for watcher in self._watchers:
            watcher.on_round(row.round, self._numbers(row, watcher.measured))

    def end(self, how: str) -> None:
        """The run ended: "finished", "stopped" by the user, or "failed"."""
        for watcher in self._started:
            numbers = {} if self._last is None else self._numbers(self._last, watcher.measured)
            watcher.on_end({"ended": how, "round": self._last.round if self._last else 0, **numbers})

    def _numbers(self, row: HistoryRow, measured: bool) -> dict[str, float]:
        """The numbers of a row that a watcher may know. Without a promise there is nothing to keep."""
        own_test = ("test_metric",) if self._plan.federation.test_is_private else ()
        hidden = () if measured or self._plan.calibration.guarantee is None else (*MEASURED, *own_test)
        known = {name: value for name, value in asdict(row).items() if value is not None and name not in hidden}
        del known["round"]
        return known
