"""How far behind the best of a grid the defaults are: the table of regrets in docs/results/defaults.md.

    python benchmarks/defaults.py --data-dir DIR --out regrets.jsonl [--data digits,a9a] [--algorithm ldp-sgd]
        [--setting 0,3]
    python benchmarks/defaults.py --out regrets.jsonl --table

The defaults run with three seeds. The grid (step, clip norm, rounds, compressor) runs with the first of them, and
its best point is chosen *by the test metric*: no honest tuning could do better. The best of many is partly luck,
so three more columns are made. All runs of the grid share the records and the noise of the first seed, and *with
its seed* is the regret of the default on those. The best point also runs with three *fresh seeds*, beside the
defaults with the same seeds. And the defaults run twelve times on the records of the first seed with other noise:
the *deviation* of one run. Every result is a line of the file, and what is there already is not run again. Data
may also be those of `benchmarks/other_data.py`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from functools import lru_cache, partial
from pathlib import Path
from statistics import mean, median, quantiles, stdev
from typing import Any

from other_data import is_other, other_records, target_bound

from tacit.algorithms.prospect import feature_scale
from tacit.algorithms.registry import algorithm_entry
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.records import load_federation
from tacit.engine.simulate import simulate
from tacit.errors import DivergedError, RequestError
from tacit.federation import Federation

DATA = ("digits", "breast-cancer", "obesity", "insurance", "a9a", "mnist", "fashion-mnist")
EVERYWHERE = (
    "soteriafl-gd", "soteriafl-sgd", "soteriafl-svrg", "noisy-mb-sgd", "accelerated-mb-sgd", "fed-spa",
)  # fmt: skip
ONCE = (
    "cdp-sgd", "soteriafl-saga", "ldp-sgd", "ldp-svrg", "noisy-local-sgd", "dp-fed", "cpsgd", "dp-scaffold",
    "ef21-sgdm", "shuffled-mb-sgd",
)  # fmt: skip
"""At one setting alone: the second, or the third where that cannot be. One pass over the records
(shuffled-accelerated) has no room for the grid, and whole clients have `client_defaults.py`."""

SETTINGS = ((1.0, 10, "iid"), (4.0, 10, "dirichlet:0.5"), (8.0, 5, "iid"), (4.0, 100, "iid"))
"""Epsilon, clients, partition."""

SEEDS, FRESH = (0, 1, 2), (3, 4, 5)
OTHER_NOISE = tuple(range(10, 22))
"""Seeds of the noise alone, with the records of the first seed."""
GRID = 60
STEPS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Times the distance that one step would cover at full length, over the scale of the features."""
CLIPS = (0.03, 0.1, 0.3, 1.0)
"""Times the scale of the features."""
ROUNDS = (30, 100, 300)
SLOW, HOPELESS = ("mnist", "fashion-mnist"), 0.1
"""On slow data, steps and clip norms that are this far behind with fewer rounds are not tried with more."""
TARGETS = {"insurance": 65_000.0}
"""Public bounds on targets."""
REGRESSIONS = tuple(TARGETS)
"""Without classes there is no dirichlet:0.5."""


def main() -> None:
    """Run what is missing, or show what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--algorithm", default=",".join((*EVERYWHERE, *ONCE)))
    parser.add_argument("--setting", default="0,1,2,3", help="numbers of settings: " + str(SETTINGS))
    parser.add_argument("--table", action="store_true", help="show the table of what is there, and run nothing")
    options = parser.parse_args()
    if not options.table:
        numbers = [int(number) for number in options.setting.split(",")]
        run_missing(options.data.split(","), numbers, options.algorithm.split(","), options.out, options.data_dir)
    print(table(read(options.out)))


def read(path: Path) -> dict[str, dict[str, Any]]:
    """All results so far, by their key."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {line["key"]: line for line in map(json.loads, lines)}


def run_missing(
    data: list[str], numbers: list[int], algorithms: list[str], out: Path, data_dir: Path | None
) -> None:
    """Run every case that the file does not hold yet, and write each result as it comes."""
    done = read(out)
    for name, number, algorithm in itertools.product(data, numbers, algorithms):
        dealt = name in REGRESSIONS or is_other(name)
        once = algorithm in ONCE
        if (once and number != (2 if dealt else 1)) or (dealt and SETTINGS[number][2] != "iid"):
            continue
        finished = partial(_finished, name, number, algorithm, done, out, data_dir)
        lines = finished([{"seed": seed} for seed in SEEDS])
        for rounds in ROUNDS:
            points = [case for case in grid(algorithm) if case["rounds"] == rounds]
            lines += finished(_hopeful(points, lines) if name in SLOW else points)
        while more := beyond(picked(lines), lines):
            lines += finished(more)
        best = picked(lines)
        again = [{}] if best is None else [{}, best["case"]]
        finished([{**case, "seed": seed} for seed in FRESH for case in again])
        if name not in SLOW and not once:
            finished([{"noise": seed} for seed in OTHER_NOISE])


def _hopeful(points: list[dict[str, Any]], lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points whose step and clip norm are not far behind with the next fewer rounds."""
    found = {json.dumps(line["case"]): line.get("metric", 0.0) for line in lines}

    def fewer(case: dict[str, Any]) -> float:
        earlier = [rounds for rounds in ROUNDS if rounds < case["rounds"]]
        keys = [json.dumps({**case, "rounds": rounds}) for rounds in reversed(earlier)]
        return next((found[key] for key in keys if key in found), math.inf)

    known = [score for score in map(fewer, points) if math.isfinite(score)]
    return [case for case in points if fewer(case) >= max(known, default=0.0) - HOPELESS]


def _finished(
    data: str,
    number: int,
    algorithm: str,
    done: dict[str, dict[str, Any]],
    out: Path,
    data_dir: Path | None,
    cases: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """The lines of these cases; those that are missing are run and written."""
    lines = []
    for case in cases:
        key = json.dumps([data, SETTINGS[number], algorithm, case])
        if key not in done:
            line = {"key": key, "data": data, "setting": number, "algorithm": algorithm, "case": case}
            done[key] = line | result(data, SETTINGS[number], algorithm, case, data_dir)
            with out.open("a") as file:
                file.write(json.dumps(done[key]) + "\n")
        lines.append(done[key])
    return lines


def picked(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The best point of the grid by the test metric; None while too little of it has been run."""
    grid = [line for line in lines if "step" in line["case"] and "seed" not in line["case"] and "metric" in line]
    enough = GRID if lines and lines[0]["data"] not in SLOW else GRID // 3
    return max(grid, key=lambda line: line["metric"]) if len(grid) >= enough else None


def grid(algorithm: str) -> list[dict[str, Any]]:
    """The points of the grid."""
    points = [
        {"step": step, "clip": clip, "rounds": rounds}
        for step, clip, rounds in itertools.product(STEPS, CLIPS, ROUNDS)
        if rounds == 100 or clip != 0.03
    ]
    if "compressor" in algorithm_entry(algorithm).settings:
        points += [{"step": step, "clip": 0.3, "rounds": 100, "compressor": "natural"} for step in STEPS]
    return points


def beyond(best: dict[str, Any] | None, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Longer or shorter steps, while the best one is at an end of the grid."""
    if best is None:
        return []
    case, steps = best["case"], [line["case"]["step"] for line in lines if "step" in line["case"]]
    if case["step"] not in (min(steps), max(steps)):
        return []
    step = round(case["step"] * (10 / 3 if case["step"] == max(steps) else 0.3), 6)
    return [{**case, "step": step, "clip": clip} for clip in CLIPS[1:]]


def result(
    data: str, setting: tuple[float, int, str], algorithm: str, case: dict[str, Any], data_dir: Path | None
) -> dict[str, Any]:
    """The test metric of one case, or why there is none."""
    epsilon, clients, partition = setting
    settings: dict[str, Any] = {}
    recipe = Recipe(
        algorithm=algorithm,
        data=data,
        clients=clients,
        partition=partition,
        epsilon=epsilon,
        seed=case.get("noise", case.get("seed", SEEDS[0])),
        rounds=case.get("rounds"),
        target_bound=target_bound(data) if is_other(data) else TARGETS.get(data),
    )
    federation = records(data, clients, partition, case.get("seed", SEEDS[0]), data_dir)
    began = time.process_time()
    try:
        if "step" in case:
            plan = make_plan(recipe, federation=federation)
            scale = feature_scale(plan.algorithm.work.model, plan.federation.feature_norm)
            unit = scale * (1.0 if recipe.target_bound is None else recipe.target_bound / 2)
            clip = case["clip"] * unit
            # One step of full length moves scores by `step` usual residuals.
            settings = {"clip_norm": clip, "step": case["step"] * unit / (clip * scale**2)}
            if "compressor" in case:
                settings["compressor"] = case["compressor"]
        plan = make_plan(recipe.with_algorithm_settings(**settings), federation=federation)
        run = simulate(plan, evaluate_every=plan.rounds)
    except (RequestError, DivergedError) as error:
        return {"error": str(error)[:200]}
    metric = run.last.test_metric
    assert metric is not None
    return {
        "metric": score(run.algorithm.work.model.metric_name, metric, run.federation),
        "seconds": time.process_time() - began,
    }


@lru_cache(maxsize=1)
def records(data: str, clients: int, partition: str, seed: int, data_dir: Path | None) -> Federation:
    """The records of a case; a grid reads them once."""
    if is_other(data):
        return other_records(data, clients, seed)
    return load_federation(Recipe(data=data, clients=clients, partition=partition, seed=seed), data_dir)


def score(name: str, metric: float, federation: Any) -> float:
    """Accuracy as it is; of a regression, 1 - error / error of the mean, so that more is better."""
    if name == "accuracy":
        return metric
    spread = float(federation.test_targets.double().std(correction=0))
    return 1 - min(2.0, metric / spread) if math.isfinite(metric) else -1.0


def table(lines: dict[str, dict[str, Any]]) -> str:
    """The defaults beside the best of the grid, in points, and the regrets in all."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for line in lines.values():
        groups.setdefault((line["data"], line["setting"], line["algorithm"]), []).append(line)
    rows, regrets, paired, honest, seconds = [], [], [], [], 0.0
    for (data, number, algorithm), found in sorted(groups.items()):
        best, by_case = picked(found), {json.dumps(line["case"]): line.get("metric") for line in found}
        usual = _metrics(by_case, [{"seed": seed} for seed in SEEDS])
        if best is None or len(usual) < len(SEEDS):
            continue
        regret = 100 * (best["metric"] - mean(usual))
        regrets.append(regret)
        seconds += sum(line.get("seconds", 0.0) for line in found)
        tuned = _metrics(by_case, [{**best["case"], "seed": seed} for seed in FRESH])
        plain = _metrics(by_case, [{"seed": seed} for seed in FRESH])
        fresh = [100 * (mean(tuned) - mean(plain))] if len(tuned) == len(plain) == len(FRESH) else []
        noisy = _metrics(by_case, [{"noise": seed} for seed in OTHER_NOISE])
        same = 100 * (best["metric"] - usual[0])
        paired, honest = [*paired, same], honest + fresh
        epsilon, clients, partition = SETTINGS[number]
        cells = [
            Path(data).stem,
            f"{epsilon:g}, {clients}, {partition}",
            algorithm,
            f"{100 * mean(usual):.1f} ({100 * min(usual):.1f} to {100 * max(usual):.1f})",
            f"{100 * best['metric']:.1f}",
            f"{regret:+.1f}",
            f"{same:+.1f}",
            f"{fresh[0]:+.1f}" if fresh else "",
            f"{100 * stdev(noisy):.1f}" if len(noisy) == len(OTHER_NOISE) else "",
            ", ".join(f"{name} {value}" for name, value in best["case"].items()),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    if not regrets:
        return "nothing is complete yet"
    head = f"| {' | '.join(HEADINGS)} |\n| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
    counted = (
        f"{len(regrets)} cases, {seconds / 3600:.1f} hours of one core. Regret in points: {_spread(regrets)}. "
        f"With its seed: {_spread(paired)}. On fresh seeds: {_spread(honest)}."
    )
    return "\n".join([head, *rows, "", counted])


HEADINGS = (
    "data", "epsilon, clients, partition", "algorithm", "default", "best of grid", "regret", "with its seed",
    "on fresh seeds", "deviation", "best point",
)  # fmt: skip


def _metrics(by_case: dict[str, float | None], cases: list[dict[str, Any]]) -> list[float]:
    found = [by_case.get(json.dumps(case)) for case in cases]
    return [metric for metric in found if metric is not None]


def _spread(regrets: list[float]) -> str:
    if not regrets:
        return "none yet"
    tail = quantiles(regrets, n=10)[-1] if len(regrets) > 1 else regrets[0]
    return f"median {median(regrets):.2f}, 90th percentile {tail:.2f}"


if __name__ == "__main__":
    main()
