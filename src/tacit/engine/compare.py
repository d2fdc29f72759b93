"""Several algorithms on the same data at the same privacy: a grid of runs, each of which is done once.

A point of the grid is a recipe; its run directory is named by a digest of it, so that a comparison that was
killed goes on where it was and a finished point is never run again.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tacit.algorithms.registry import algorithm_entry
from tacit.engine.choices import OPTIONAL_SETTINGS, recipe_names
from tacit.engine.execute import execute, stored_summary
from tacit.engine.history import History, Row
from tacit.engine.recipe import Recipe
from tacit.engine.records import names_files, unweighted
from tacit.errors import DataError, RequestError, TacitError, unknown_name
from tacit.federation import Federation

SELECTORS = ("grad_norm_sq_mean", "train_loss", "test_metric")
"""What a grid's best point may be judged by."""

MORE_IS_BETTER = frozenset(["accuracy"])
"""Test metrics of which more is better; of all other numbers less is."""


@dataclass(frozen=True)
class Point:
    """One recipe of the comparison, and where it is run."""

    algorithm: str
    tuned: tuple[tuple[str, Any], ...]
    recipe: Recipe
    directory: Path


@dataclass(frozen=True)
class Outcome:
    """One algorithm at its best point, over all seeds."""

    algorithm: str
    tuned: dict[str, Any]
    summaries: list[dict[str, Any]]
    histories: list[History]


def recipe_for(algorithm: str, base: Recipe) -> Recipe:
    """The recipe with another algorithm, and without the settings which that one does not take."""
    entry = algorithm_entry(algorithm)
    dropped: dict[str, Any] = {
        name: None for name in (*OPTIONAL_SETTINGS, "strong_convexity") if name not in recipe_names(entry)
    }
    return replace(base, algorithm=algorithm, **dropped)


def points(
    base: Recipe, algorithms: Sequence[str], grid: dict[str, list[Any]], seeds: Iterable[int], out: Path
) -> list[Point]:
    """Every algorithm at every point of the grid with every seed."""
    made = []
    for algorithm, values, seed in itertools.product(algorithms, itertools.product(*grid.values()), seeds):
        tuned = dict(zip(grid, values, strict=True))
        recipe = recipe_for(algorithm, base).with_settings({**tuned, "seed": seed})
        recipe = recipe_for(algorithm, recipe)
        if not algorithm_entry(algorithm).private:
            # Beside private algorithms, as the floor that privacy is paid against; marked wherever it is shown.
            recipe = replace(recipe, privacy="none", epsilon=None, delta=None)
        if not names_files(recipe):
            # The data do not change with the seed: a comparison is over the algorithms' randomness.
            recipe = replace(recipe, data_settings={"seed": base.seed, **recipe.data_settings})
        digest = hashlib.sha256(recipe.to_toml().encode()).hexdigest()[:16]
        made.append(Point(algorithm, tuple(tuned.items()), recipe, out / "points" / f"{algorithm}-{digest}"))
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
    progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Run every algorithm at every grid point (first seed only), then at its best point with all seeds.

    The best point of an algorithm is the one with the best `select` at the end. Choosing it looks at private
    data several times; that is not part of any printed epsilon.
    """
    if select not in SELECTORS:
        raise unknown_name("select", select, SELECTORS)
    if seeds < 1:
        raise RequestError(f"seeds must be at least 1, not {seeds}")
    grid, seed_numbers = grid or {}, range(base.seed, base.seed + seeds)
    tried = points(base, algorithms, grid, seed_numbers[:1], out)
    later = len(algorithms) * (seeds - 1)
    done = _run_all(tried, data_dir, workers, lambda k: progress(k, len(tried) + later) if progress else None)
    best = {name: _best([p for p in tried if p.algorithm == name], done, select) for name in algorithms}
    repeats = [
        p
        for p in points(base, algorithms, grid, seed_numbers[1:], out)
        if dict(p.tuned) == dict(best[p.algorithm].tuned)
    ]
    done |= _run_all(
        repeats,
        data_dir,
        workers,
        lambda k: progress(len(tried) + k, len(tried) + later) if progress else None,
    )
    outcomes = []
    for name in algorithms:
        chosen = [best[name], *(p for p in repeats if p.algorithm == name)]
        summaries = [done[p.directory] for p in chosen]
        failed = [s for s in summaries if "error" in s]
        if failed:
            raise DataError(f"{name}: {failed[0]['error']}")
        histories = [read_history(p.directory / "history.csv") for p in chosen]
        outcomes.append(Outcome(name, dict(best[name].tuned), summaries, histories))
    return outcomes


def _best(candidates: list[Point], done: dict[Path, dict[str, Any]], select: str) -> Point:
    usable = [p for p in candidates if done[p.directory].get(select) is not None]
    if not usable:
        first = done[candidates[0].directory].get("error", f"no {select}")
        raise RequestError(f"{candidates[0].algorithm}: no grid point gave a result: {first}")
    more = select == "test_metric" and done[usable[0].directory]["test_metric_name"] in MORE_IS_BETTER
    return (max if more else min)(usable, key=lambda p: done[p.directory][select])


def _run_all(
    todo: list[Point], data_dir: Path | None, workers: int | None, report: Callable[[int], None]
) -> dict[Path, dict[str, Any]]:
    done: dict[Path, dict[str, Any]] = {}
    waiting = []
    for point in todo:
        finished = stored_summary(point.directory)
        if finished is None:
            waiting.append(point)
        else:
            done[point.directory] = finished
    report(len(done))
    workers = min(workers or os.cpu_count() or 1, len(waiting))
    if workers <= 1:
        for point in waiting:
            done[point.directory] = _run_one(point.recipe, point.directory, data_dir)
            report(len(done))
        return done
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread) as pool:
        running = {pool.submit(_run_one, p.recipe, p.directory, data_dir): p for p in waiting}
        for future in as_completed(running):
            done[running[future].directory] = future.result()
            report(len(done))
    return done


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _run_one(recipe: Recipe, directory: Path, data_dir: Path | None) -> dict[str, Any]:
    """A summary, or what went wrong: a step that is too large must not end the whole comparison."""
    try:
        federation = None
        # Files are read each time: they may have changed.
        if not names_files(recipe):
            settings = json.dumps(recipe.data_settings)
            federation = _records(recipe.data, recipe.clients, recipe.partition, settings, data_dir)
        return execute(recipe, directory, resume=True, data_dir=data_dir, federation=federation)
    except RequestError:
        raise
    except TacitError as error:
        return {"error": str(error)}


@lru_cache(maxsize=1)
def _records(data: str, clients: int | None, partition: str, settings: str, data_dir: Path | None) -> Federation:
    """The records of a point, which are those of its neighbours: read once in every process."""
    recipe = Recipe(data=data, clients=clients, partition=partition, data_settings=json.loads(settings))
    return unweighted(recipe, data_dir)


def read_history(path: Path) -> History:
    """A history from its CSV file."""
    whole = {"round", "uplink_bits_per_client", "uplink_bits_total", "gradient_evaluations"}
    try:
        with path.open(newline="") as file:
            rows = [
                {k: None if v == "" else int(v) if k in whole else float(v) for k, v in row.items()}
                for row in csv.DictReader(file)
            ]
        if not rows or set(rows[0]) != {f.name for f in fields(Row)}:
            raise ValueError("columns are missing")
        return History.from_list(rows)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a history of tacit: {error}") from error


def at_bits(history: History, bits: int) -> Row:
    """The last evaluated round by which a client had sent at most so many bits."""
    return [row for row in history if row.uplink_bits_per_client <= bits][-1]
