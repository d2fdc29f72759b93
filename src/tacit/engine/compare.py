"""Compares algorithms on the same data at the same privacy: a grid of runs, each done only once.

A point of the grid is a recipe. Its run directory is named by a digest of the recipe and of everything else that
its result depends on. So a killed comparison continues where it stopped, a finished point is never run again, and
results of other code or other user files are never reused.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tacit.algorithms.registry import algorithm_entry
from tacit.data.files import existing
from tacit.engine.execute import execute
from tacit.engine.files import write_atomically
from tacit.engine.history import History
from tacit.engine.identity import own_stream, result_digest
from tacit.engine.lock import held
from tacit.engine.logs import parse_watcher
from tacit.engine.recipe import Recipe
from tacit.engine.records import load_federation, names_files
from tacit.engine.workers import Result, Workers, read_result
from tacit.errors import DivergedError, RequestError, unknown_name
from tacit.federation import Federation

SELECTORS = ("grad_norm_sq_mean", "train_loss", "test_metric")
"""The criteria for a grid's best point."""

ENDED = ("diverged.json", "summary.json")
"""The last file written to a point's directory: it says how the run ended."""

MORE_IS_BETTER = frozenset(["accuracy"])
"""Test metrics where more is better; for all other numbers less is better."""


@dataclass(frozen=True)
class Point:
    """One recipe of the comparison, and where it runs."""

    algorithm: str
    tuned: tuple[tuple[str, Any], ...]
    recipe: Recipe
    place: Path
    """its run directory"""
    data_dir: Path | None = None
    logs: tuple[str, ...] = ()
    """as `parse_watcher` reads them; `log_name` tells the runs apart"""
    log_measured: bool = False
    endings = ENDED

    def log_name(self) -> str:
        """The name of its log. Others read logs, so it must not hold a digest of the user's own files."""
        if not names_files(self.recipe):
            return self.place.name
        return f"{self.algorithm}-{hashlib.sha256(self.recipe.to_toml().encode()).hexdigest()[:16]}"

    def named(self) -> str:
        """The name of its directory: the algorithm, and a digest of everything that the result depends on."""
        return f"{self.algorithm}-{result_digest(self.recipe)[:16]}"

    def at(self, place: Path) -> Point:
        """The same point in another directory."""
        return replace(self, place=place)

    def stored(self) -> Result | None:
        """The summary of a finished point, or {"diverged": why}; None if it has not ended."""
        return next((found for name in ENDED if (found := read_result(self.place / name)) is not None), None)

    def run(self) -> Result:
        """Runs the point. Divergence is a result: one step that is too large must not end the comparison."""
        recipe, federation = self.recipe, None
        try:
            # Files are read each time, because they may have changed.
            if not names_files(recipe):
                settings = json.dumps(recipe.data_settings)
                federation = _records(recipe.data, recipe.clients, recipe.partition, settings, self.data_dir)
            watchers = [parse_watcher(log, run=self.log_name(), measured=self.log_measured) for log in self.logs]
            return execute(
                recipe, self.place, resume=True, data_dir=self.data_dir, federation=federation, watchers=watchers
            )
        except DivergedError as error:
            result = {"diverged": str(error)}
            write_atomically(self.place / "diverged.json", json.dumps(result).encode())
            return result


@dataclass(frozen=True)
class Outcome:
    """One algorithm at its best point, over all seeds."""

    algorithm: str
    """its name"""
    tuned: dict[str, Any]
    """the settings of the best point"""
    summaries: list[dict[str, Any]]
    """empty if every point diverged, or if any seed diverged at the best point: the others would look too good"""
    histories: list[History]
    """one for every seed"""
    points: tuple[Path, ...] = ()
    """the directories of all its runs"""
    diverged: tuple[Point, ...] = ()
    """the points that diverged"""


def points(
    base: Recipe,
    algorithms: Sequence[str],
    grid: dict[str, list[Any]],
    seeds: Iterable[int],
    out: Path,
    data_dir: Path | None = None,
) -> list[Point]:
    """Every algorithm at every point of the grid with every seed."""
    made = []
    for algorithm, values, seed in itertools.product(algorithms, itertools.product(*grid.values()), seeds):
        tuned = dict(zip(grid, values, strict=True))
        recipe = base.with_settings({**tuned, "seed": seed}).for_algorithm(algorithm)
        if not algorithm_entry(algorithm).private:
            # Shown beside private algorithms as a baseline for the cost of privacy; marked wherever it is shown.
            recipe = replace(recipe, privacy="none", epsilon=None, delta=None)
        if not names_files(recipe):
            # The data do not change with the seed: a comparison averages over the algorithms' randomness.
            recipe = replace(recipe, data_settings={"seed": base.seed, **recipe.data_settings})
        # With the same seed, all runs share the start and public coins, but no noise: what two of them release
        # together is protected as two releases are.
        recipe = own_stream(recipe)
        point = Point(algorithm, tuple(tuned.items()), recipe, out, data_dir)
        made.append(point.at(out / "points" / point.named()))
    return made


def compare(
    base: Recipe,
    algorithms: Sequence[str],
    *,
    out: Path,
    grid: dict[str, list[Any]] | None = None,
    seeds: int = 1,
    select: str = "grad_norm_sq_mean",
    data_dir: Path | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    logs: Sequence[str] = (),
    log_measured: bool = False,
) -> list[Outcome]:
    """Runs every algorithm at every grid point (first seed only), then at its best point with all seeds.

    The best point of an algorithm is the one with the best `select` at the end. Choosing it looks at private data
    several times, which is not part of any printed epsilon. Points that have finished or diverged in `out` are
    not run again.

    Args:
        base: the recipe of every run, except for what follows.
        algorithms: names of algorithms; each runs with those settings of `base` that it takes.
        out: the directory of the comparison; a killed one continues there.
        grid: settings to try, such as {"algorithm.step": [0.1, 1.0]}; all combinations are tried.
        seeds: number of seeds for the best point of each algorithm, starting from that of `base`.
        select: criterion for the best point: one of SELECTORS.
        data_dir: where data sets are stored; by default the user's cache directory.
        workers: maximum number of processes; by default one per core.
        cluster: the address of a Dask scheduler, whose workers run the points instead.
        progress: called with the number of finished runs and the total.
        logs: a log for each run: "csv:FILE", "tensorboard:DIRECTORY" or "mlflow:URI".
        log_measured: whether logs also hold what was measured without noise, which no promise covers.
    """
    _check_asked(base, select, seeds, cluster, logs)
    grid, seed_numbers = grid or {}, range(base.seed, base.seed + seeds)

    def logged(seeds: Iterable[int]) -> list[Point]:
        made = points(base, algorithms, grid, seeds, out, data_dir)
        return [replace(point, logs=tuple(logs), log_measured=log_measured) for point in made]

    tried = logged(seed_numbers[:1])
    runs = len({point.place for point in tried}) + len(algorithms) * (seeds - 1)
    report = None if progress is None else lambda ended, _: progress(ended, runs)
    alone = held(out, "another comparison is running there: wait for it, or choose another --out")
    with alone, Workers(workers, report, cluster) as run_all:
        done = dict(zip((p.place for p in tried), run_all(tried), strict=True))
        best = {name: _best([p for p in tried if p.algorithm == name], done, select) for name in algorithms}
        repeats = [
            point
            for point in logged(seed_numbers[1:])
            if (found := best[point.algorithm]) is not None and point.tuned == found.tuned
        ]
        done |= zip((p.place for p in repeats), run_all(repeats), strict=True)
    outcomes = []
    for name in algorithms:
        mine = [p for p in (*tried, *repeats) if p.algorithm == name]
        chosen = [p for p in mine if p is best[name] or p in repeats]
        outcomes.append(_outcome(name, mine, chosen, done))
    if not any(outcome.summaries for outcome in outcomes):
        first = done[outcomes[0].diverged[0].place]["diverged"]
        raise DivergedError(f"nothing is left to compare: {outcomes[0].algorithm}: {first}")
    return outcomes


def _check_asked(base: Recipe, select: str, seeds: int, cluster: str | None, logs: Sequence[str]) -> None:
    """Refuses a comparison that cannot be made, before anything is run."""
    if select not in SELECTORS:
        raise unknown_name("select", select, SELECTORS)
    if seeds < 1:
        raise RequestError(f"seeds must be at least 1, not {seeds}")
    if cluster is not None and base.noise == "lattice":
        raise RequestError(
            "noise = 'lattice' cannot be drawn again, and a cluster starts a lost worker's task a second time, "
            "which would be a second release: leave out --cluster, or use noise = 'gaussian'"
        )
    if names_files(base):
        for path in base.data.split(","):
            existing(Path(path))
    for log in logs:
        parse_watcher(log).check(resumed=True)


def _outcome(algorithm: str, mine: list[Point], chosen: list[Point], done: dict[Path, Result]) -> Outcome:
    """What an algorithm's points came to: `mine` are all of them, `chosen` the best one with every seed."""
    diverged = tuple(point for point in mine if "diverged" in done[point.place])
    usable = [] if any(point in diverged for point in chosen) else chosen
    return Outcome(
        algorithm,
        dict(chosen[0].tuned) if chosen else {},
        [done[point.place] for point in usable],
        [History.read(point.place / "history.csv") for point in usable],
        points=tuple(point.place for point in mine),
        diverged=diverged,
    )


def _best(candidates: list[Point], done: dict[Path, dict[str, Any]], select: str) -> Point | None:
    """The point with the best finite number, or None if all of them diverged."""
    ended = [p for p in candidates if "diverged" not in done[p.place]]
    usable = [p for p in ended if (number := done[p.place][select]) is not None and math.isfinite(number)]
    if ended and not usable:
        raise RequestError(f"{ended[0].algorithm}: select = {select!r} is missing from all of its points")
    if not ended:
        return None
    more = select == "test_metric" and done[usable[0].place]["test_metric_name"] in MORE_IS_BETTER
    return (max if more else min)(usable, key=lambda p: done[p.place][select])


@lru_cache(maxsize=1)
def _records(data: str, clients: int | None, partition: str, settings: str, data_dir: Path | None) -> Federation:
    """The records of a point. All points share them, so every process reads them once."""
    recipe = Recipe(data=data, clients=clients, partition=partition, data_settings=json.loads(settings))
    return load_federation(recipe, data_dir)
