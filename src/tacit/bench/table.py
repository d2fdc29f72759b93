"""A large table on the command line: draft, check and run, each as a process of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from tacit.bench.measure import BenchReport, Timing, python_process


def bench(*, quick: bool = False, data_dir: Path | None = None) -> BenchReport:
    """`tacit schema draft`, `tacit schema check` and `tacit run` on 10^6 rows; 10^4 with `quick`."""
    rows = 10_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as place:
        table, schema, out = (str(Path(place) / name) for name in ("table.csv", "schema.toml", "run"))
        _write(Path(table), rows)
        commands = {
            "tacit schema draft": ("schema", "draft", table, "--target", "ill", "--out", schema),
            "tacit schema check": ("schema", "check", table, "--schema", schema),
            "tacit run": (
                *("run", "--data", table, "--schema", schema, "--public-schema", "--epsilon", "4"),
                *("--out", out, "--quiet"),
            ),
        }
        used = {name: python_process("-m", "tacit", *command) for name, command in commands.items()}
        megabytes = Path(table).stat().st_size / 1e6
    timings = tuple(Timing(name, process.cpu_seconds, process.wall_seconds) for name, process in used.items())
    return BenchReport(
        "table",
        f"{rows:,} rows from CSV to a model",
        timings,
        {"memory": {name: f"{process.gibibytes:.2f} GiB" for name, process in used.items()}},
        (
            f"{megabytes:.0f} MB of CSV: 8 columns with gaps, dates and thousands separators, 12 clients.",
            "Processor time of whole processes, user and system. The goal is 20 s and 2 GiB for 10^6 rows.",
        ),
    )


def _write(path: Path, rows: int) -> None:
    import pandas as pd

    draw = np.random.default_rng(0)
    pressure, stay = draw.normal(130, 15, rows).round(1), draw.exponential(5, rows).round()
    frame = pd.DataFrame(
        {
            "hospital": draw.choice([f"hospital {number:02}" for number in range(12)], rows),
            "age": draw.integers(18, 96, rows),
            "pressure": np.where(draw.random(rows) < 0.1, np.nan, pressure),
            "ward": draw.choice(["heart", "lung", "eye", "skin"], rows),
            "admitted": np.datetime64("2020-01-01") + draw.integers(0, 1500, rows),
            "cost": [f"{cost:,}" for cost in draw.integers(100, 20_000, rows)],
            "stay": stay,
            "ill": np.where(draw.random(rows) < 1 / (1 + np.exp((130 - pressure) / 15)), "yes", "no"),
        }
    )
    frame.to_csv(path, index=False)
