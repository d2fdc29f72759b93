"""Chooses settings from a grid by a few runs, then runs the choice with every seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeVar

from tacit.algorithms.settings import Settings
from tacit.engine.workers import Result
from tacit.experiments.cells import Cell, CellFunction, Runner

Series = TypeVar("Series", bound=Hashable)
Score = Callable[[Result], float]
"""The score that tuning minimises."""
WAVES = 7
"""How often a search with early stops learns the best score so far."""


def tuned(
    runner: Runner,
    work: CellFunction,
    grids: Mapping[Series, Sequence[Settings]],
    *,
    tuning_seeds: Sequence[int],
    seeds: Sequence[int],
    score: Score,
    final: Settings | None = None,
    stops_early: bool = False,
) -> dict[Series, list[Result]]:
    """The runs of every series, one per seed, at the point of its grid with the best mean score.

    Tuning looks at private data once for every point, which no epsilon includes. A series without any finite
    score is left out. `final` overrides settings of the last runs, for example to evaluate more often. With
    `stops_early`, the work reads "hopeless_above" and may stop a run whose score will be larger.
    """
    tried = {
        seed: _tried(runner, work, grids, {"seed": seed}, score, stops_early and len(tuning_seeds) == 1)
        for seed in tuning_seeds
    }
    chosen: dict[Series, int] = {}
    for name, points in grids.items():
        means = [fmean(score(tried[seed][name][k]) for seed in tuning_seeds) for k in range(len(points))]
        if math.isfinite(min(means)):
            chosen[name] = means.index(min(means))
    # Seed by seed, because a process caches the most recent splits. What tuning has run is not run again.
    last = {name: {**grids[name][k], **(final or {})} for name, k in chosen.items()}
    done = [(s, name) for name, k in chosen.items() for s in seeds if s in tried and last[name] == grids[name][k]]
    new = [(seed, name) for seed in seeds for name in chosen if (seed, name) not in done]
    points = [{**last[name], "seed": seed} for seed, name in new]
    shown = dict(zip(new, runner([Cell(work, point) for point in points]), strict=True))
    for seed, name in done:
        shown[seed, name] = {**tried[seed][name][chosen[name]], "settings": {**last[name], "seed": seed}}
    return {name: [shown[seed, name] for seed in seeds] for name in chosen}


def _tried(
    runner: Runner,
    work: CellFunction,
    grids: Mapping[Series, Sequence[Settings]],
    shared: Settings,
    score: Score,
    stops_early: bool,
) -> dict[Series, list[Result]]:
    """The results of all points of every series, in the grid's order.

    If runs may stop early, the points are tried in waves, from the middle of the grid outwards. Later waves know
    the best score so far, and give up a point once it cannot be better: that changes no choice.
    """
    orders = {name: _waves(len(points), WAVES if stops_early else 1) for name, points in grids.items()}
    found: dict[Series, dict[int, Result]] = {name: {} for name in grids}
    for wave in range(max(map(len, orders.values()), default=0)):
        asked = []
        for name, order in orders.items():
            best = min(map(score, found[name].values()), default=math.inf)
            known = {"hopeless_above": best} if stops_early and math.isfinite(best) else {}
            asked += [
                (name, k, {**grids[name][k], **shared, **known}) for k in (order[wave : wave + 1] or [[]])[0]
            ]
        for (name, k, _), result in zip(asked, runner([Cell(work, one) for _, _, one in asked]), strict=True):
            found[name][k] = result
    return {name: [by_place[k] for k in sorted(by_place)] for name, by_place in found.items()}


def _waves(points: int, waves: int) -> list[list[int]]:
    """Places of a grid from the middle outwards, in about this many equal parts.

    >>> _waves(7, 4), _waves(3, 1)
    ([[3, 2], [4, 1], [5, 0], [6]], [[1, 0, 2]])
    """
    order = sorted(range(points), key=lambda k: abs(k - points // 2))
    size = -(-points // waves)
    return [order[k : k + size] for k in range(0, points, size)]


def rehearsed(
    runner: Runner,
    work: CellFunction,
    grids: Mapping[Series, Sequence[Settings]],
    *,
    keep: Sequence[str],
    score: Score,
    stops_early: bool = False,
) -> dict[Series, dict[str, Any]]:
    """The settings named by `keep`, for every series, of the point that did best on a stand-in for the data.

    The work reads "rehearsal" and then uses no private record, so this costs no privacy. A series without any
    finite score keeps the first point's settings. `stops_early` is as in `tuned`.
    """
    results = _tried(runner, work, grids, {"seed": 0, "rehearsal": True}, score, stops_early)
    plans: dict[Series, dict[str, Any]] = {}
    for name, points in grids.items():
        scores = [score(result) for result in results[name]]
        best = points[scores.index(min(scores))]
        plans[name] = {setting: best[setting] for setting in keep}
    return plans


def grid(base: Settings, **axes: Sequence[Any]) -> list[dict[str, Any]]:
    """Every combination of the axes' values, added to a base.

    >>> grid({"rounds": 5}, step=[0.1, 1.0])
    [{'rounds': 5, 'step': 0.1}, {'rounds': 5, 'step': 1.0}]
    """
    points: list[dict[str, Any]] = [dict(base)]
    for name, values in axes.items():
        points = [{**point, name: value} for point in points for value in values]
    return points


def evenly(low: float, high: float, number: int) -> list[float]:
    """Numbers from low to high, evenly spaced in their logarithm, rounded so that their names stay short.

    >>> evenly(0.01, 1.0, 3)
    [0.01, 0.1, 1.0]
    """
    if number == 1:
        return [float(f"{math.sqrt(low * high):.4g}")]
    ratio = math.log(high / low) / (number - 1)
    return [float(f"{low * math.exp(ratio * k):.4g}") for k in range(number)]
