"""Tuning whose privacy cost is counted: a random number of runs at random points, of which the best is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from tacit.errors import RequestError
from tacit.experiments.cells import Cell, Result, Runner, Settings, Work
from tacit.experiments.experiment import Table
from tacit.experiments.tuning import Score, Series
from tacit.privacy import Adjacency, accounting
from tacit.privacy.events import from_dict, repeated
from tacit.privacy.selection import RandomTrials, selection_epsilon

_SEEDS_APART = 10_000


def selected(
    runner: Runner,
    work: Work,
    grids: Mapping[Series, Sequence[Settings]],
    *,
    seeds: Sequence[int],
    score: Score,
    final: Settings | None = None,
) -> dict[Series, list[Result]]:
    """For every series and seed a private selection: the best of as many runs as there are points, on average.

    Guarantee: each run is at a point drawn from the grid with its own noise, their number is random and is not
    told, and the best one is the result, so that `selection_epsilon` holds for who sees that alone. `score` must
    look at public records alone, and every point must release the same: other runs are refused. Seeds repeat the
    whole, for the reader: a promise is about one of them.
    """
    searches: list[tuple[Series, list[Cell]]] = []
    for place, (name, points) in enumerate(grids.items()):
        trials = _trials(len(points))
        for seed in seeds:
            generator = np.random.default_rng((seed, place))
            searches.append(
                (
                    name,
                    [
                        Cell(
                            work,
                            {
                                **points[int(generator.integers(len(points)))],
                                **(final or {}),
                                "seed": _SEEDS_APART * (seed + 1) + k,
                                # The records stay the same from run to run.
                                "split": seed,
                            },
                        )
                        for k in range(trials.draw(generator))
                    ],
                )
            )
    every = iter(runner([cell for _, cells in searches for cell in cells]))
    found: dict[Series, list[Result]] = {}
    for name, cells in searches:
        results = list(islice(every, len(cells)))
        best = min(results, key=score)
        if "error" not in best:
            if any(result.get("events", best["events"]) != best["events"] for result in results):
                raise RequestError(f"{name}: the best of runs that release different things has no epsilon")
            found.setdefault(name, []).append({**best, "tuning": _cost(best, len(grids[name]))})
    return found


def _trials(points: int) -> RandomTrials:
    return RandomTrials(max(2.0, points))


def _cost(result: Result, points: int) -> dict[str, Any]:
    adjacency, trials = Adjacency(result["adjacency"]), _trials(points)
    # Of the mean: the number itself must stay secret for the promise about the chosen model.
    runs = math.ceil(trials.mean)
    events = [(from_dict(one["event"]), float(one["delta"])) for one in result["events"]]
    return {
        "runs": runs,
        "model": max(selection_epsilon(event, trials, delta, adjacency) for event, delta in events),
        "server": max(accounting.epsilon(repeated(event, runs), delta, adjacency) for event, delta in events),
    }


def cost_table(found: Mapping[Any, Sequence[Result]]) -> tuple[Table, ...]:
    """What the selections cost, against whom; nothing without selections."""
    lines = tuple(
        (
            *name,
            result["tuning"]["runs"],
            result["epsilon"],
            result["tuning"]["model"],
            result["tuning"]["server"],
        )
        for name, results in found.items()
        for result in results
        if "tuning" in result
    )
    columns = ("runs on average", "epsilon of one run", "of the choice", "of so many runs")
    caption = (
        "What tuning costs: the choice, against who sees the chosen model alone (Papernot & Steinke 2022, "
        "Theorem 2), and as many runs as there are on average, against the server, who sees every message"
    )
    return (Table(caption, ("label", "mode", "algorithm", *columns), lines),) if lines else ()
