"""`tacit compare`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options as o

if TYPE_CHECKING:
    from tacit.engine.compare import Outcome

HELP = """Compare algorithms on the same data at the same privacy, over several seeds.

With --grid, every algorithm is tuned on its own. Finished points are kept in --out and never run again."""


def compare(
    recipe_file: o.RecipeFile = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(help="Names, repeated or joined by commas. All that protect records unless given."),
    ] = None,
    data: o.Data = None,
    data_dir: o.DataDir = None,
    clients: o.Clients = None,
    partition: o.Partition = None,
    model: o.Model = None,
    epsilon: o.Epsilon = None,
    delta: o.Delta = None,
    rounds: o.Rounds = None,
    batch: o.Batch = None,
    clip_norm: o.ClipNorm = None,
    compressor: o.Compressor = None,
    seed: o.Seed = None,
    seeds: int = typer.Option(1, help="How many seeds each algorithm is run with."),
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,...", help="Values to try, such as step=0.1,0.3,1; may be repeated."),
    ] = None,
    select: str = typer.Option(
        "grad_norm_sq_mean", help="What tuning looks at: grad_norm_sq_mean, train_loss or test_metric."
    ),
    at: Annotated[
        str | None,
        typer.Option(metavar="KEY=A,B,...", help="Repeat the comparison at each value, such as epsilon=0.5,1,2."),
    ] = None,
    out: o.Out = None,
    workers: int | None = typer.Option(None, help="Processes; as many as there are cores unless given."),
    as_json: o.Json = False,
    settings: o.Set = None,
) -> None:
    """Run a comparison."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tacit.algorithms.registry import ALGORITHMS, algorithm_entry
    from tacit.engine.compare import compare as run_comparison
    from tacit.engine.compare import recipe_for

    given = o.given(
        data=data, clients=clients, partition=partition, model=model, epsilon=epsilon, delta=delta,
        rounds=rounds, batch=batch, clip_norm=clip_norm, compressor=compressor, seed=seed,
    )  # fmt: skip
    everyone = [name for name, entry in ALGORITHMS.items() if entry.private and "trust" not in entry.settings]
    names = [name for text in algorithm or [",".join(everyone)] for name in o.parse_list("--algorithm", text)]
    for name in names:
        algorithm_entry(name)
    base = o.recipe_from(recipe_file, given, settings)
    axes = dict(_axis("--grid", text) for text in grid or [])
    setting, values = ("", [None]) if at is None else _axis("--at", at)
    bases = [base if at is None else base.with_settings({setting: value}) for value in values]
    for key, choices in axes.items():
        recipe_for(names[0], base).with_settings({key: choices[0]})
    directory = out or Path("runs") / f"compare-{base.data}-{time.strftime('%Y%m%d-%H%M%S')}"
    columns = TextColumn("[bold]compare"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    quiet = as_json and not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("compare", total=None)
        found = [
            run_comparison(
                one,
                names,
                out=directory,
                grid=axes,
                seeds=seeds,
                select=select,
                data_dir=data_dir,
                workers=workers,
                progress=lambda done, total, k=k: bar.update(  # type: ignore[misc]  # k is bound here
                    task, completed=k * total + done, total=len(bases) * total
                ),
            )
            for k, one in enumerate(bases)
        ]
    rows = [
        {**row, **({} if at is None else {"at": {setting: value}})}
        for value, outcomes in zip(values, found, strict=True)
        for row in table_rows(outcomes)
    ]
    figure = _save(found, rows, directory, setting, values)
    if as_json:
        print(json.dumps({"rows": rows, "out": str(directory), "figure": str(figure)}))
    else:
        _show(rows, figure, tuned=bool(axes))


def _axis(option: str, text: str) -> tuple[str, list[Any]]:
    from tacit.engine.recipe import parse_setting

    key, values = text.partition("=")[::2]
    return key, [parse_setting(f"{key}={value}")[1] for value in o.parse_list(option, values)]


def table_rows(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """One row an algorithm: means over the seeds, at the end and at the bits that all of them reached."""
    from tacit.engine.compare import at_bits

    common = min(o.histories[0][-1].uplink_bits_per_client for o in outcomes)
    rows = []
    for outcome in outcomes:
        first = outcome.summaries[0]
        same_bits = [at_bits(history, common) for history in outcome.histories]
        metrics = [row.test_metric for row in same_bits if row.test_metric is not None]
        rows.append(
            {
                "algorithm": outcome.algorithm,
                "tuned": outcome.tuned,
                "seeds": len(outcome.summaries),
                "epsilon": first["epsilon"],
                "delta": first["delta"],
                "privacy": first["privacy"],
                "noise_multiplier": first["noise_multiplier"],
                "rounds": first["rounds"],
                "uplink_bits_per_client": first["uplink_bits_per_client"],
                "train_loss": mean(s["train_loss"] for s in outcome.summaries),
                "grad_norm_sq_mean": mean(s["grad_norm_sq_mean"] for s in outcome.summaries),
                "test_metric": _mean_or_none([s["test_metric"] for s in outcome.summaries]),
                "test_metric_name": first["test_metric_name"],
                "equal_bits": common,
                "grad_norm_sq_mean_at_equal_bits": mean(row.grad_norm_sq_mean for row in same_bits),
                "train_loss_at_equal_bits": mean(row.train_loss for row in same_bits),
                "test_metric_at_equal_bits": _mean_or_none(list(metrics)),
            }
        )
    return rows


def _mean_or_none(values: list[Any]) -> float | None:
    return mean(values) if values and None not in values else None


def _save(
    found: list[list[Outcome]], rows: list[dict[str, Any]], directory: Path, setting: str, values: list[Any]
) -> Path:
    import pandas as pd

    from tacit.report.curves import plot_at, plot_histories

    pd.DataFrame(rows).to_csv(directory / "comparison.csv", index=False)
    metric = rows[0]["test_metric_name"]
    if setting:
        column = "train_loss" if rows[0]["test_metric"] is None else "test_metric"
        ends = {
            outcomes[0].algorithm: [[summary[column] for summary in outcome.summaries] for outcome in outcomes]
            for outcomes in map(list, zip(*found, strict=True))
        }
        figure = plot_at(ends, values, setting, "training loss" if column == "train_loss" else f"test {metric}")
    else:
        figure = plot_histories({outcome.algorithm: outcome.histories for outcome in found[0]}, metric)
    path = directory / "comparison.png"
    figure.savefig(path, dpi=140)
    figure.savefig(path.with_suffix(".svg"))
    return path


def _show(rows: list[dict[str, Any]], figure: Path, *, tuned: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    metric = rows[0]["test_metric_name"]
    table = Table(title=f"mean of {rows[0]['seeds']} seed(s)", title_justify="left")
    shown = [_cells(row, metric, tuned) for row in rows]
    for heading in shown[0]:
        table.add_column(heading, justify="left" if heading in ("algorithm", "at", "tuned to") else "right")
    for cells in shown:
        table.add_row(*cells.values())
    console = Console()
    console.print(table)
    console.print(
        f"[dim]utility = mean of the squared gradient norm over the evaluated rounds; figure: {figure}[/]"
    )
    if tuned:
        console.print("[dim]Tuning looked at the data many times; its privacy cost is not in these epsilons.[/]")


def _cells(row: dict[str, Any], metric: str, tuned: bool) -> dict[str, str]:
    value = row["test_metric"]
    cells = {
        "algorithm": row["algorithm"],
        "epsilon": "[red]not private[/]" if row["epsilon"] is None else f"{row['epsilon']:.3g}",
        "loss": f"{row['train_loss']:.4g}",
        metric: "" if value is None else f"{value:.4g}",
    }
    if "at" in row:
        cells = {f"at {key}": str(value) for key, value in row["at"].items()} | cells
    else:
        cells |= {
            "utility": f"{row['grad_norm_sq_mean']:.3e}",
            "kB a client": f"{row['uplink_bits_per_client'] / 8000:.1f}",
            "utility, equal bits": f"{row['grad_norm_sq_mean_at_equal_bits']:.3e}",
        }
    if tuned:
        cells["tuned to"] = ", ".join(f"{key} {value}" for key, value in row["tuned"].items())
    return cells
