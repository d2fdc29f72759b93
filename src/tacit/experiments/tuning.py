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


def tuned(
    runner: Runner,
    work: CellFunction,
    grids: Mapping[Series, Sequence[Settings]],
    *,
    tuning_seeds: Sequence[int],
    seeds: Sequence[int],
    score: Score,
    final: Settings | None = None,
) -> dict[Series, list[Result]]:
    """The runs of every series, one per seed, at the point of its grid with the best mean score.

    Tuning looks at private data once for every point, which no epsilon includes. A series without any finite
    score is left out. `final` overrides settings of the last runs, for example to evaluate more often.
    """
    tries = [(name, point, seed) for name, points in grids.items() for point in points for seed in tuning_seeds]
    scores: dict[tuple[Series, int], list[float]] = {}
    results = runner([Cell(work, {**point, "seed": seed}) for _, point, seed in tries])
    for (name, point, _), result in zip(tries, results, strict=True):
        scores.setdefault((name, id(point)), []).append(score(result))
    chosen: dict[Series, Settings] = {}
    for name, points in grids.items():
        best = min(points, key=lambda point: fmean(scores[name, id(point)]))
        if math.isfinite(fmean(scores[name, id(best)])):
            chosen[name] = best
    # Seed by seed, because a process caches the most recent splits.
    repeats = [
        (name, {**point, **(final or {}), "seed": seed}) for seed in seeds for name, point in chosen.items()
    ]
    found: dict[Series, list[Result]] = {name: [] for name in chosen}
    for (name, _), result in zip(repeats, runner([Cell(work, point) for _, point in repeats]), strict=True):
        found[name].append(result)
    return found


def rehearsed(
    runner: Runner,
    work: CellFunction,
    grids: Mapping[Series, Sequence[Settings]],
    *,
    keep: Sequence[str],
    score: Score,
) -> dict[Series, dict[str, Any]]:
    """The settings named by `keep`, for every series, of the point that did best on a stand-in for the data.

    The work reads "rehearsal" and then uses no private record, so this costs no privacy. A series without any
    finite score keeps the first point's settings.
    """
    tries = [(name, point) for name, points in grids.items() for point in points]
    results = runner([Cell(work, {**point, "seed": 0, "rehearsal": True}) for _, point in tries])
    best: dict[Series, tuple[float, Settings]] = {}
    for (name, point), result in zip(tries, results, strict=True):
        if name not in best or score(result) < best[name][0]:
            best[name] = score(result), point
    return {name: {setting: point[setting] for setting in keep} for name, (_, point) in best.items()}


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
