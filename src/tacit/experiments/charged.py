"""Tuning with its privacy cost counted: a random number of runs at random points, of which the best is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from dp_accounting import DpEvent

from tacit.algorithms.settings import Settings
from tacit.engine.workers import Result
from tacit.errors import RequestError
from tacit.experiments.cells import Cell, CellFunction, Runner
from tacit.experiments.experiment import Table
from tacit.experiments.tuning import Score, Series
from tacit.privacy import Adjacency
from tacit.privacy.accountant import accounting
from tacit.privacy.accountant.selection import RandomTrials, run_epsilon, selection_epsilon
from tacit.privacy.events import from_dict, repeated
from tacit.privacy.promises.rounding import up_to

_SEEDS_APART = 10_000


def selected(
    runner: Runner,
    work: CellFunction,
    grids: Mapping[Series, Sequence[Settings]],
    *,
    seeds: Sequence[int],
    score: Score,
    final: Settings | None = None,
) -> dict[Series, list[Result]]:
    """A private selection for every series and seed: the best of as many runs, on average, as there are points.

    Guarantee: each run is at a point drawn from the grid with its own noise, the number of runs is random and
    secret, and only the best one is the result, so that `selection_epsilon` holds against anyone who sees only
    that: it is at most the epsilon of a single run at the grid's first point, which the work computes without a
    run if it reads "priced". `score` must use only public records, and every point must release the same: other
    runs are refused. Seeds repeat the whole procedure, for the reader: a promise is about one of them.
    """
    # The records stay the same in all runs of a search.
    asked = [
        (name, {**points[0], "seed": seed, "split": seed, "priced": True})
        for name, points in grids.items()
        for seed in seeds
    ]
    searches: list[tuple[Series, float, list[Cell]]] = []
    probes = runner([Cell(work, one) for _, one in asked])
    for place, ((name, settings), probe) in enumerate(zip(asked, probes, strict=True)):
        points, split = grids[name], settings["split"]
        trials, generator = _trials(len(points)), np.random.default_rng((split, place))
        allowed = _allowed(probe, trials)
        drawn = [
            {
                **points[int(generator.integers(len(points)))],
                **(final or {}),
                "run_epsilon": allowed,
                "seed": _SEEDS_APART * (split + 1) + k,
                "split": split,
            }
            for k in range(trials.draw(generator))
        ]
        searches.append((name, probe["epsilon"], [Cell(work, one) for one in drawn]))
    every = iter(runner([cell for _, _, cells in searches for cell in cells]))
    found: dict[Series, list[Result]] = {}
    for name, epsilon, cells in searches:
        results = [result for result in islice(every, len(cells)) if "error" not in result]
        if results:
            best = min(results, key=score)
            if any(result["events"] != best["events"] for result in results):
                raise RequestError(f"{name}: the best of runs that release different things has no epsilon")
            cost = _cost(best, len(grids[name]))
            if cost["model"] > epsilon:
                raise RequestError(
                    f"{name}: the choice would cost {up_to(cost['model'], 4)}, but {epsilon:.4g} was requested"
                )
            found.setdefault(name, []).append({**best, "tuning": cost})
    return found


def real_epsilon(result: Result) -> float:
    """The epsilon of a result against anyone who sees the chosen model, including tuning if that is charged."""
    return float(result.get("tuning", {}).get("model", result["epsilon"]))


def _allowed(probe: Result, trials: RandomTrials) -> float:
    """The epsilon of one run such that the choice has that of the probe, for every client."""
    adjacency = Adjacency(probe["adjacency"])
    return min(run_epsilon(event, trials, probe["epsilon"], delta, adjacency) for event, delta in _events(probe))


def _events(result: Result) -> list[tuple[DpEvent, float]]:
    return [(from_dict(one["event"]), float(one["delta"])) for one in result["events"]]


def _trials(points: int) -> RandomTrials:
    return RandomTrials(max(2.0, points))


def _cost(result: Result, points: int) -> dict[str, Any]:
    adjacency, trials = Adjacency(result["adjacency"]), _trials(points)
    events = _events(result)
    # The promise about the chosen model requires that the number of runs stays secret. With a probability of at
    # most the smallest delta there are more than this, which adds to the delta against the server.
    most = trials.quantile(min(delta for _, delta in events))
    return {
        "runs": trials.mean,
        "model": max(selection_epsilon(event, trials, delta, adjacency) for event, delta in events),
        "most": most,
        "server": max(accounting.epsilon(repeated(event, most), delta, adjacency) for event, delta in events),
    }


def cost_table(
    found: Mapping[Any, Sequence[Result]], series: Sequence[str] = ("label", "mode", "algorithm")
) -> tuple[Table, ...]:
    """What the selections cost, against whom; empty without selections. `series` names the parts of a key."""
    lines = tuple(
        dict.fromkeys(
            (*name, result["epsilon"], *(result["tuning"][what] for what in ("runs", "model", "most", "server")))
            for name, results in found.items()
            for result in results
            if "tuning" in result
        )
    )
    columns = (
        "epsilon of one run",
        "runs on average",
        "epsilon of the choice",
        "runs at most",
        "epsilon of all runs",
    )
    caption = (
        "What tuning costs: the choice, against anyone who sees only the chosen model (Papernot & Steinke 2022, "
        "Theorem 2); and the most runs there are except with probability delta, against the server, which "
        "sees every message (at twice the delta)"
    )
    return (Table(caption, (*series, *columns), lines),) if lines else ()
