"""Several algorithms on the same data at the same privacy: a grid of runs, each of which is done once.

A point of the grid is a recipe; its run directory is named by a digest of it and of all else that its result
depends on, so that a comparison that was killed goes on where it was, a finished point is never run again, and
another version of the code or of the user's files never shows what was found before.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tacit.algorithms.registry import algorithm_entry
from tacit.engine.execute import execute, stored_summary
from tacit.engine.files import write_atomically
from tacit.engine.history import History, Row
from tacit.engine.identity import own_stream, result_digest
from tacit.engine.lock import held
from tacit.engine.recipe import Recipe
from tacit.engine.records import names_files, unweighted
from tacit.engine.workers import begin_worker
from tacit.errors import DataError, DivergedError, RequestError, TacitError, unknown_name
from tacit.federation import Federation

SELECTORS = ("grad_norm_sq_mean", "train_loss", "test_metric")
"""What a grid's best point may be judged by."""

ENDED = ("summary.json", "diverged.json")
"""The file that the directory of a point gets last: how it ended."""

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
    """none where every point diverged, or one of the seeds did at the best: the rest would flatter"""
    histories: list[History]
    points: tuple[Path, ...] = ()
    """the directories of all that was run for it"""
    diverged: tuple[Point, ...] = ()
    """those of its points that left the finite numbers"""


def points(
    base: Recipe, algorithms: Sequence[str], grid: dict[str, list[Any]], seeds: Iterable[int], out: Path
) -> list[Point]:
    """Every algorithm at every point of the grid with every seed."""
    made = []
    for algorithm, values, seed in itertools.product(algorithms, itertools.product(*grid.values()), seeds):
        tuned = dict(zip(grid, values, strict=True))
        recipe = base.with_settings({**tuned, "seed": seed}).for_algorithm(algorithm)
        if not algorithm_entry(algorithm).private:
            # Beside private algorithms, as the floor that privacy is paid against; marked wherever it is shown.
            recipe = replace(recipe, privacy="none", epsilon=None, delta=None)
        if not names_files(recipe):
            # The data do not change with the seed: a comparison is over the algorithms' randomness.
            recipe = replace(recipe, data_settings={"seed": base.seed, **recipe.data_settings})
        # At one seed all runs share the start and public coins, but no noise: what two of them release together
        # is protected as two releases are.
        recipe = own_stream(recipe)
        digest = result_digest(recipe)[:16]
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
    data several times; that is not part of any printed epsilon. What is finished in `out` is not run again, nor
    is what diverged there.
    """
    if select not in SELECTORS:
        raise unknown_name("select", select, SELECTORS)
    if seeds < 1:
        raise RequestError(f"seeds must be at least 1, not {seeds}")
    grid, seed_numbers = grid or {}, range(base.seed, base.seed + seeds)
    tried = points(base, algorithms, grid, seed_numbers[:1], out)
    runs = len({point.directory for point in tried})

    def report(done: int) -> None:
        if progress:
            progress(done, runs + len(algorithms) * (seeds - 1))

    with held(out, "another comparison is running there: wait for it, or choose another --out"):
        done = _run_all(tried, data_dir, workers, report)
        best = {name: _best([p for p in tried if p.algorithm == name], done, select) for name in algorithms}
        repeats = [
            point
            for point in points(base, algorithms, grid, seed_numbers[1:], out)
            if (found := best[point.algorithm]) is not None and point.tuned == found.tuned
        ]
        done |= _run_all(repeats, data_dir, workers, lambda k: report(runs + k))
    outcomes = []
    for name in algorithms:
        mine = [p for p in (*tried, *repeats) if p.algorithm == name]
        chosen = [p for p in mine if p is best[name] or p in repeats]
        diverged = tuple(p for p in mine if "diverged" in done[p.directory])
        usable = [] if any(p in diverged for p in chosen) else chosen
        outcomes.append(
            Outcome(
                name,
                dict(chosen[0].tuned) if chosen else {},
                [done[p.directory] for p in usable],
                [read_history(p.directory / "history.csv") for p in usable],
                points=tuple(p.directory for p in mine),
                diverged=diverged,
            )
        )
    if not any(outcome.summaries for outcome in outcomes):
        first = done[outcomes[0].diverged[0].directory]["diverged"]
        raise DivergedError(f"nothing is left to compare: {outcomes[0].algorithm}: {first}")
    return outcomes


def _best(candidates: list[Point], done: dict[Path, dict[str, Any]], select: str) -> Point | None:
    """The point with the best finite number, or None where all of them diverged."""
    ended = [p for p in candidates if "diverged" not in done[p.directory]]
    usable = [p for p in ended if (number := done[p.directory][select]) is not None and math.isfinite(number)]
    if ended and not usable:
        raise RequestError(f"{ended[0].algorithm}: select = {select!r} is not known of any of its points")
    if not ended:
        return None
    more = select == "test_metric" and done[usable[0].directory]["test_metric_name"] in MORE_IS_BETTER
    return (max if more else min)(usable, key=lambda p: done[p.directory][select])


def _run_all(
    todo: list[Point], data_dir: Path | None, workers: int | None, report: Callable[[int], None]
) -> dict[Path, dict[str, Any]]:
    """What every point ended with, by its directory; two points of the grid may be the same run."""
    done: dict[Path, dict[str, Any]] = {}
    waiting: dict[Path, Point] = {}
    for point in todo:
        finished = _ended(point.directory)
        if finished is None:
            waiting[point.directory] = point
        else:
            done[point.directory] = finished
    report(len(done))
    workers = min(workers or os.cpu_count() or 1, len(waiting))
    if workers <= 1:
        for point in waiting.values():
            done[point.directory] = _run_one(point.recipe, point.directory, data_dir)
            report(len(done))
        return done
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=begin_worker) as pool:
        try:
            running = {pool.submit(_run_one, p.recipe, p.directory, data_dir): p for p in waiting.values()}
            for future in as_completed(running):
                done[running[future].directory] = future.result()
                report(len(done))
        except BrokenProcessPool as error:
            raise TacitError(
                "a process of the comparison was killed, perhaps because memory ran out; what is finished is "
                "kept: start it again to go on, with fewer --workers if memory was short"
            ) from error
        except BaseException:
            # What runs may end and is kept; what waits would only keep the user waiting.
            pool.shutdown(cancel_futures=True)
            raise
    return done


def _ended(directory: Path) -> dict[str, Any] | None:
    """The summary of a point, or {"diverged": why} of one that diverged; None if it has not ended."""
    path = directory / "diverged.json"
    if not path.is_file():
        return stored_summary(directory)
    try:
        return {"diverged": json.loads(path.read_text())["diverged"]}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is corrupted: {error}; remove it to run the point again") from error


def _run_one(recipe: Recipe, directory: Path, data_dir: Path | None) -> dict[str, Any]:
    """A summary, or that it diverged: a step that is too large must not end the whole comparison."""
    try:
        federation = None
        # Files are read each time: they may have changed.
        if not names_files(recipe):
            settings = json.dumps(recipe.data_settings)
            federation = _records(recipe.data, recipe.clients, recipe.partition, settings, data_dir)
        return execute(recipe, directory, resume=True, data_dir=data_dir, federation=federation)
    except DivergedError as error:
        result = {"diverged": str(error)}
        write_atomically(directory / "diverged.json", json.dumps(result).encode())
        return result


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


def equal_bits(histories: Sequence[History]) -> int | None:
    """The most bits of a client at which all of these can be compared, round by round as paid for; else None."""
    reached = min(history[-1].uplink_bits_per_client for history in histories)
    budgets = {row.uplink_bits_per_client for history in histories for row in history}
    affordable = sorted((bits for bits in budgets if bits <= reached), reverse=True)
    return next((bits for bits in affordable if all(at_bits(h, bits) is not None for h in histories)), None)


def at_bits(history: History, bits: int) -> Row | None:
    """The last round that so many bits of a client pay for.

    None where they pay for no round, or for one that was not evaluated: an earlier one would be unfair to whoever
    sends long messages.
    """
    rows = list(history)
    paid = sum(row.uplink_bits_per_client <= bits for row in rows)
    if paid == 0 or rows[paid - 1].round == 0:
        return None
    row = rows[paid - 1]
    if paid == len(rows):
        return row
    further = rows[paid]
    more = (bits - row.uplink_bits_per_client) * (further.round - row.round)
    return row if more < further.uplink_bits_per_client - row.uplink_bits_per_client else None
