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
        list[str] | None, typer.Option(help="Names, repeated or joined by commas. All unless given.")
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
    from tacit.engine.recipe import parse_setting

    given = o.given(
        data=data, clients=clients, partition=partition, model=model, epsilon=epsilon, delta=delta,
        rounds=rounds, batch=batch, clip_norm=clip_norm, compressor=compressor, seed=seed,
    )  # fmt: skip
    names = [name for text in algorithm or [",".join(ALGORITHMS)] for name in o.parse_list("--algorithm", text)]
    for name in names:
        algorithm_entry(name)
    base = o.recipe_from(recipe_file, given, settings)
    axes = {}
    for text in grid or []:
        key, values = text.partition("=")[::2]
        axes[key] = [parse_setting(f"{key}={value}")[1] for value in o.parse_list("--grid", values)]
        recipe_for(names[0], base).with_settings({key: axes[key][0]})
    directory = out or Path("runs") / f"compare-{base.data}-{time.strftime('%Y%m%d-%H%M%S')}"
    columns = TextColumn("[bold]compare"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    quiet = as_json and not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("compare", total=None)
        outcomes = run_comparison(
            base,
            names,
            out=directory,
            grid=axes,
            seeds=seeds,
            select=select,
            data_dir=data_dir,
            workers=workers,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    rows = table_rows(outcomes)
    figure = _save(outcomes, rows, directory)
    if as_json:
        print(json.dumps({"rows": rows, "out": str(directory), "figure": str(figure)}))
    else:
        _show(outcomes, rows, figure, tuned=bool(axes))


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


def _save(outcomes: list[Outcome], rows: list[dict[str, Any]], directory: Path) -> Path:
    import pandas as pd

    from tacit.report.curves import plot_histories

    pd.DataFrame(rows).to_csv(directory / "comparison.csv", index=False)
    histories = {outcome.algorithm: outcome.histories for outcome in outcomes}
    figure = plot_histories(histories, rows[0]["test_metric_name"])
    path = directory / "comparison.png"
    figure.savefig(path, dpi=140)
    figure.savefig(path.with_suffix(".svg"))
    return path


def _show(outcomes: list[Outcome], rows: list[dict[str, Any]], figure: Path, *, tuned: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    metric = rows[0]["test_metric_name"]
    table = Table(title=f"mean of {rows[0]['seeds']} seed(s)", title_justify="left")
    for heading in ("algorithm", "epsilon", "loss", "utility", metric, "kB a client", "utility, equal bits"):
        table.add_column(heading, justify="left" if heading == "algorithm" else "right")
    if tuned:
        table.add_column("tuned to")
    for row in rows:
        value = row["test_metric"]
        cells = [
            row["algorithm"],
            "[red]none[/]" if row["epsilon"] is None else f"{row['epsilon']:.3g}",
            f"{row['train_loss']:.4f}",
            f"{row['grad_norm_sq_mean']:.3e}",
            "" if value is None else f"{value:.4f}",
            f"{row['uplink_bits_per_client'] / 8000:.1f}",
            f"{row['grad_norm_sq_mean_at_equal_bits']:.3e}",
        ]
        if tuned:
            cells.append(", ".join(f"{key} {value}" for key, value in row["tuned"].items()))
        table.add_row(*cells)
    console = Console()
    console.print(table)
    console.print(
        f"[dim]utility = mean of the squared gradient norm over the evaluated rounds; figure: {figure}[/]"
    )
    if tuned:
        console.print("[dim]Tuning looked at the data many times; its privacy cost is not in these epsilons.[/]")
