"""A sweep of 64 small runs: the cost of a run with almost no training, in a process that is already running."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path

from tacit.bench.measure import BenchReport, Timing
from tacit.engine.compare import compare
from tacit.engine.recipe import Recipe

BASE = Recipe(
    algorithm="soteriafl-sgd", data="digits", clients=10, rounds=20, evaluate_every=10, epsilon=2.0, delta=1e-5
)


def bench(*, quick: bool = False, data_dir: Path | None = None) -> BenchReport:
    """`tacit compare --grid` over steps and clip norms, one run after the other, including run directories."""
    steps, clip_norms = (2, 2) if quick else (16, 4)
    grid = {
        "algorithm.step": [0.01 * 1.3**k for k in range(steps)],
        "algorithm.clip_norm": [0.5 * 2**k for k in range(clip_norms)],
    }
    clock = [(time.process_time(), time.perf_counter())]
    with tempfile.TemporaryDirectory() as directory:
        compare(
            BASE,
            [BASE.algorithm],
            out=Path(directory),
            grid=grid,
            data_dir=data_dir,
            workers=1,
            progress=lambda done, total: clock.append((time.process_time(), time.perf_counter())),
        )
    # The first report comes before the first run, and the last one after all of them.
    reports = clock[1 : steps * clip_norms + 2]
    runs = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(reports)]
    later = [statistics.median(run[k] for run in runs[1:]) for k in (0, 1)]
    return BenchReport(
        "sweep",
        f"{len(runs)} runs of {BASE.rounds} rounds, {BASE.algorithm} on {BASE.data}, {BASE.clients} clients",
        (Timing("the first run", *runs[0]), Timing("each of the others", later[0], later[1])),
        {"cpu_seconds": sum(run[0] for run in runs), "wall_seconds": sum(run[1] for run in runs)},
    )
