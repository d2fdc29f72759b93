"""`tacit plan --choose` beside an exhaustive search on the real records, for docs/results/defaults.md.

    python benchmarks/choose.py --data-dir DIR --out choices.jsonl [--case 0,3] [--table]

For each case the command is run as a user would, and its processor time is taken. Beside its first choice stands
the best of a grid over the same axes (step rule or fixed steps, clip norm, rounds, batch, compressor, algorithm,
model), **found by the test metric of the real records**, which no honest search may look at. The grid is searched
by halving: all points run with one seed, the best of them with more. Then the winner and the choice both run with
fresh seeds, on which nothing was chosen, and the same records and noise for both: *behind* is the mean of winner
minus choice over them, in points, with its standard error. What is in the file already is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from defaults import TARGETS, read, score
from other_data import MADE_UP, is_other, other_records, target_bound

from tacit.algorithms.prospect import feature_scale
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.records import load_federation
from tacit.engine.simulate import simulate
from tacit.errors import DivergedError, RequestError
from tacit.federation import Federation

Point = dict[str, Any]
"""What a point of the grid sets; nothing for the command's choice."""


@dataclass(frozen=True)
class Case:
    """What a user names."""

    data: str
    epsilon: float
    clients: int
    partition: str = "iid"
    trust: str | None = None
    models: tuple[str, ...] = ()
    defaults: bool = field(default=False, repr=False)
    """whether nothing is chosen: the default beside a smaller grid"""

    def __str__(self) -> str:
        trust = ["sum"] if self.trust else []
        return ", ".join([f"{self.epsilon:g}", str(self.clients), self.partition, *trust, *self.models])


CASES = (
    Case("digits", 1, 10),
    Case("digits", 4, 10, "dirichlet:0.5"),
    Case("digits", 4, 100),
    Case("digits", 2, 10, trust="sum"),
    Case("digits", 8, 5, models=("softmax", "network")),
    Case("breast-cancer", 0.5, 10),
    Case("breast-cancer", 8, 5),
    Case("obesity", 1, 10),
    Case("obesity", 8, 5),
    Case("obesity", 4, 10, "dirichlet:0.5", trust="sum"),
    Case("insurance", 1, 10),
    Case("insurance", 4, 10),
    Case("insurance", 8, 5),
    Case("insurance", 2, 10, trust="sum"),
    Case("wine", 8, 5),
    Case("diabetes", 8, 5),
    Case("outliers", 4, 10),
    Case("friedman", 2, 10),
    Case("costs", 8, 5),
    Case("forest", 1, 10),
    Case("forest", 4, 50, trust="sum"),
    Case("a9a", 0.5, 10),
    Case("a9a", 4, 100, "dirichlet:0.5"),
    Case("mnist", 2, 10, models=("softmax", "network")),
    *(Case(name, epsilon, 10, defaults=True) for name in MADE_UP for epsilon in (1, 4)),
)

CLIPS, ROUNDS, STEPS = (0.1, 0.3, 1.0), (30, 100, 300), (None, 0.3, 3.0, 30.0)
"""Clip norms over the scale of the features; rounds; how far a step of full length moves scores, or the rule."""

HALVING = ((1, 1.0), (1, 0.2), (2, 0.06))
"""How many more seeds, for which share of the points: the best so far."""

FIRST, FRESH = 10, tuple(range(50, 58))
"""The first seed of the search; those of the comparison."""

SLOW = ("a9a", "forest", "mnist")
"""Many records: fewer seeds tell as much, and the grid leaves out what takes longest."""


def main() -> None:
    """Run what is missing, or show what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--case", default=",".join(map(str, range(len(CASES)))), help="their numbers")
    parser.add_argument("--table", action="store_true", help="show the table of what is there, and run nothing")
    options = parser.parse_args()
    cases = [CASES[int(number)] for number in options.case.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.out, options.data_dir, Path(folder))
        rows = [row for case in cases if (row := bench.row(case, run=not options.table))]
    print(HEAD, *rows, sep="\n")


HEAD = (
    "| data | epsilon, clients, partition | seconds | choice | winner | behind | chosen | best point |\n"
    "| --- | --- | ---: | ---: | ---: | ---: | --- | --- |"
)


class Bench:
    """Runs cases, keeps every result in a file, and makes rows of a table."""

    def __init__(self, out: Path, data_dir: Path | None, folder: Path) -> None:
        self.out, self.data_dir, self.folder, self.done = out, data_dir, folder, read(out)

    def row(self, case: Case, *, run: bool) -> str | None:
        """A line of the table; None if something is missing and must not be run."""
        if not run and f"{case!r} choice" not in self.done:
            return None
        line = self.kept(f"{case!r} choice", lambda: self.choice(case))
        chosen = Recipe.from_toml(line["recipe"])
        key = f"{case!r} winner"
        if not run and key not in self.done:
            return None
        winner = self.kept(key, lambda: self.winner(case, chosen))["point"]
        seeds = FRESH[:4] if case.data in SLOW else FRESH
        pairs = [(self.result(case, chosen, winner, seed), self.result(case, chosen, {}, seed)) for seed in seeds]
        gaps = [100 * (best - own) for best, own in pairs]
        settings = chosen.algorithm_settings
        cells = [
            case.data,
            str(case),
            "" if case.defaults else f"{line['seconds']:.0f}",
            f"{100 * mean(own for _, own in pairs):.1f}",
            f"{100 * mean(best for best, _ in pairs):.1f}",
            f"{mean(gaps):+.1f} ({stdev(gaps) / math.sqrt(len(gaps)):.1f})",
            "the defaults"
            if case.defaults
            else f"{chosen.algorithm}, {chosen.rounds} rounds"
            + (f", {settings['compressor']}" if settings.get("compressor", "identity") != "identity" else "")
            + (f", {chosen.model}" if case.models else ""),
            ", ".join(f"{name} {value}" for name, value in winner.items()),
        ]
        return f"| {' | '.join(cells)} |"

    def choice(self, case: Case) -> dict[str, Any]:
        """What the command chooses, and its processor time."""
        if case.defaults:
            bound = target_bound(case.data)
            recipe = Recipe(data=case.data, clients=case.clients, epsilon=case.epsilon, target_bound=bound)
            # Sizes of features are learned, as in `tacit run`, by every point of the grid too.
            learned = replace(recipe, data_settings={"features": "learn"})
            return {"recipe": learned.to_toml(), "seconds": 0.0}
        words = [sys.executable, "-m", "tacit", "plan", "--choose", "--json", "--epsilon", f"{case.epsilon:g}"]
        words += ["--data", self.named(case, 0)]
        words += ["--model", ",".join(case.models)] if case.models else []
        words += ["--trust", case.trust] if case.trust else []
        if is_other(case.data):
            words += ["--set", "data.client=c"]
        else:
            words += ["--clients", str(case.clients), "--partition", case.partition]
        words += ["--data-dir", str(self.data_dir)] if self.data_dir else []
        bound = target_bound(case.data) if is_other(case.data) else TARGETS.get(case.data)
        words += [] if bound is None else ["--set", f"target_bound={bound}"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        told = subprocess.run(words, check=True, capture_output=True, text=True, env=os.environ)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        sheet = json.loads(told.stdout)
        return {"recipe": sheet["recipe"], "candidates": sheet["candidates"], "seconds": seconds}

    def winner(self, case: Case, chosen: Recipe) -> dict[str, Any]:
        """The best point of the grid, by the test metric."""
        left, seeds, began = list(grid(case)), [], time.process_time()
        points = len(left)
        scores: dict[str, list[float]] = {}
        for more, share in HALVING:
            left = left[: max(2, round(share * points))]
            fresh = range(FIRST + len(seeds), FIRST + len(seeds) + more)
            seeds += fresh
            for point, seed in product(left, fresh):
                scores.setdefault(json.dumps(point), []).append(self.result(case, chosen, point, seed))
            left.sort(key=lambda point: -mean(scores[json.dumps(point)]))
        found = {"point": left[0], "searched": mean(scores[json.dumps(left[0])]), "points": points}
        return {**found, "seconds": time.process_time() - began}

    def result(self, case: Case, chosen: Recipe, point: Point, seed: int) -> float:
        """The score of the choice, or of a point, on the real records of a seed."""
        own = chosen.to_toml() if not point else ""
        key = json.dumps([repr(case), point, seed, own])
        return float(self.kept(key, lambda: self.measured(case, chosen, point, seed))["score"])

    def measured(self, case: Case, chosen: Recipe, point: Point, seed: int) -> dict[str, Any]:
        """One run."""
        federation = self.records(case, seed)
        recipe = replace(chosen, seed=seed, data=self.named(case, seed))
        try:
            if point:
                recipe = at(recipe, point, federation)
            plan = make_plan(recipe, federation=federation)
            run = simulate(plan, evaluate_every=plan.rounds)
        except (RequestError, DivergedError) as error:
            return {"score": -1.0, "error": str(error)[:200]}
        assert run.last.test_metric is not None
        return {"score": score(run.algorithm.work.model.metric_name, run.last.test_metric, run.federation)}

    def kept(self, key: str, make: Any) -> dict[str, Any]:
        """The line of the file with this key, made now if it is not there."""
        if key not in self.done:
            self.done[key] = {"key": key, **make()}
            with self.out.open("a") as file:
                file.write(json.dumps(self.done[key]) + "\n")
        return self.done[key]

    def named(self, case: Case, seed: int) -> str:
        """The data as `--data` takes it: a name, or a file of arrays that somebody brings."""
        if not is_other(case.data):
            return case.data
        path = self.folder / f"{case.data}-{case.clients}-{seed}.npz"
        if not path.exists():
            made = other_records(case.data, case.clients, seed)
            clients = np.repeat(np.arange(case.clients), made.sizes.numpy())
            np.savez(path, X=made.features.numpy(), y=made.targets.numpy(), c=clients)
        return str(path)

    @lru_cache(maxsize=4)  # noqa: B019  # the bench lives as long as the program
    def records(self, case: Case, seed: int) -> Federation:
        """The records of a case."""
        if is_other(case.data):
            return other_records(case.data, case.clients, seed)
        recipe = Recipe(data=case.data, clients=case.clients, partition=case.partition, seed=seed)
        return load_federation(recipe, self.data_dir)


def grid(case: Case) -> Iterator[Point]:
    """Points over all axes: everything for plain noisy gradients, less for what differs little from them."""
    slow = case.data in SLOW
    if case.defaults:
        for step, clip, rounds in product((None, 3.0, 30.0), CLIPS, (100, 300)):
            yield {"algorithm": "noisy-mb-sgd", "step": step, "clip": clip, "rounds": rounds}
        return
    for model in case.models or (None,):
        shared = {} if model is None else {"model": model}
        for step, clip, rounds in product(STEPS, CLIPS, (100, 300) if slow else ROUNDS):
            yield {**shared, "algorithm": "noisy-mb-sgd", "step": step, "clip": clip, "rounds": rounds}
        for step, clip, rounds in product((None, 3.0), CLIPS, (100,) if slow else (100, 300)):
            more = {**shared, "step": step, "clip": clip, "rounds": rounds}
            yield {**more, "algorithm": "accelerated-mb-sgd"}
            if case.data != "mnist":
                yield {**more, "algorithm": "soteriafl-gd", "compressor": "identity"}
            if case.trust is None:
                yield {**more, "algorithm": "soteriafl-sgd", "compressor": "natural"}
            yield {**more, "algorithm": "soteriafl-sgd", "compressor": "rand-k:0.3"}
        for clip, rounds in product(CLIPS, (100,) if slow else (30, 100)):
            for name in ("noisy-local-sgd", "fed-spa"):
                yield {**shared, "algorithm": name, "step": None, "clip": clip, "rounds": rounds}


def at(chosen: Recipe, point: Point, federation: Federation) -> Recipe:
    """The recipe of a point: data and promise of the choice, everything else its own."""
    recipe = replace(
        chosen, algorithm_settings={}, rounds=point["rounds"], model=point.get("model", chosen.model)
    )
    recipe = recipe.for_algorithm(point["algorithm"])
    plan = make_plan(recipe, federation=federation)
    scale = feature_scale(plan.algorithm.work.model, plan.federation.feature_norm)
    unit = scale * (1.0 if recipe.target_bound is None else recipe.target_bound / 2)
    settings: dict[str, Any] = {"clip_norm": point["clip"] * unit}
    if point["step"] is not None:
        # One step of full length moves scores by `step` usual residuals.
        settings["step"] = point["step"] / (point["clip"] * scale**2)
    if "compressor" in point:
        settings["compressor"] = point["compressor"]
    return recipe.with_algorithm_settings(**settings)


if __name__ == "__main__":
    main()
