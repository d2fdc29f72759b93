"""`tacit bench`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli import complete
from tacit.cli import options as o

if TYPE_CHECKING:
    from tacit.bench.measure import BenchReport, Timing

HELP = """Measure how fast private training is, beside the same rounds without privacy and beside other tools.

T1: many small clients. T2: a few large clients, compressed. T3: local steps of a convolutional network. Also:
scaling, processes, sweep, calibration, start, table (10^6 rows). The contenders take turns on one thread. Ratios
are medians of CPU time, to the first, with their range."""

TASKS = "T1, T2, T3, scaling, processes, sweep, calibration, start or table."


def bench(
    task: Annotated[str, typer.Argument(help=TASKS, autocompletion=complete.benches)],
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version on synthetic records: a first look, not a result.")
    ] = False,
    data_dir: o.DataDir = None,
    as_json: o.Json = False,
) -> None:
    """Run one benchmark."""
    from tacit.bench.registry import run_bench

    report = run_bench(task, quick=quick, data_dir=data_dir)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        _show(report)


def _show(report: BenchReport) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{report.task}: {report.title}", title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in ("CPU", "wall", "CPU ratio", "range"):
        table.add_column(heading, justify="right")
    for timing in report.timings:
        table.add_row(timing.name, *_numbers(timing))
    console.print(table)
    for name, fact in report.facts.items():
        text = "; ".join(f"{key} {value}" for key, value in fact.items()) if isinstance(fact, dict) else fact
        console.print(f"{name}: {text}")
    for note in report.notes:
        console.print(f"[dim]{note}[/]")
    machine = report.machine
    console.print(
        f"[dim]{machine['date']}, {machine['processor']}, {machine['cores']} cores, one thread, "
        f"torch {machine['torch']}, load {machine['load'] or 0:.1f}[/]"
    )


def _numbers(timing: Timing) -> tuple[str, ...]:
    seconds = [f"{1e3 * value:,.2f} ms" for value in (timing.cpu_seconds, timing.wall_seconds)]
    if timing.times_tacit is None:
        return (*seconds, "", "")
    return (*seconds, f"{timing.times_tacit:.2f}", f"{timing.least_times:.2f} to {timing.most_times:.2f}")
