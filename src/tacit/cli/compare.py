"""`tacit compare`."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import complete
from tacit.cli import options as o
from tacit.cli.interrupt import continued_by_repeating
from tacit.cli.recipe_options import check_taken, parse_list, parsed, recipe_from, recipe_options
from tacit.cli.say import say
from tacit.cli.show_comparison import edges, measured_note, metric_name, short, show_comparison, table_rows
from tacit.errors import RequestError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from tacit.engine.compare import Outcome
    from tacit.engine.recipe import Recipe

HELP = """Compare algorithms on the same data at the same privacy, over several seeds.

All runs with the same seed share the data and the starting point; each draws its own noise. With --grid, each
algorithm is tuned separately. Finished runs are kept in --out and not repeated: after an interruption, the same
command continues where it stopped."""


@recipe_options("privacy", "adversary")
def compare(
    *,
    recipe_file: o.RecipeFile = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            help="Names, repeated or separated by commas. [dim]Default: all that protect records.[/]",
            autocompletion=complete.algorithms,
        ),
    ] = None,
    given: dict[str, Any],
    data_dir: o.DataDir = None,
    seeds: int = typer.Option(1, help="The number of seeds to run each algorithm with."),
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,...", help="Values to try, such as algorithm.step=0.1,0.3,1; may be repeated."
        ),
    ] = None,
    select: str = typer.Option(
        "grad_norm_sq_mean",
        help="What tuning selects by: grad_norm_sq_mean, train_loss or test_metric.",
        autocompletion=complete.words("grad_norm_sq_mean", "train_loss", "test_metric"),
    ),
    at: Annotated[
        str | None,
        typer.Option(metavar="KEY=A,B,...", help="Repeat the comparison at each value, such as epsilon=0.5,1,2."),
    ] = None,
    out: o.Out = None,
    workers: int | None = typer.Option(None, help="Number of processes. [dim]Default: one per core.[/]"),
    cluster: o.Cluster = None,
    log: o.Log = None,
    log_measured: o.LogMeasured = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    settings: o.Set = None,
) -> None:
    """Run a comparison."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tacit.algorithms.registry import ALGORITHMS
    from tacit.cli.pages import write_comparison_page
    from tacit.engine.compare import ENDED
    from tacit.engine.compare import compare as run_comparison

    axes = dict(_axis("--grid", text) for text in grid or [])
    base = recipe_from(recipe_file, given, settings)
    names = [name for text in algorithm or [] for name in parse_list("--algorithm", text)]
    if algorithm is None:
        everyone = [name for name, entry in ALGORITHMS.items() if entry.private and not entry.client_coins]
        names = everyone if base.trust is None else _that_add_up(base, everyone, data_dir)
    check_taken([*given, *parsed(settings), *axes], names)
    setting, values = ("", [None]) if at is None else _axis("--at", at)
    bases = [base if at is None else base.with_settings({setting: value}) for value in values]
    for key, choices in axes.items():
        base.with_settings({key: choices[0]})
    directory = out or _default_directory(base, [names, axes, seeds, select, at, base.to_toml()])
    there = {path.parent for ended in ENDED for path in directory.glob(f"points/*/{ended}")}
    columns = TextColumn("[bold]compare"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    silent = quiet or (as_json and not sys.stderr.isatty())
    bar = Progress(*columns, console=Console(stderr=True), disable=silent)
    with continued_by_repeating(), _ended(bar) as task:
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
                cluster=cluster,
                logs=log or (),
                log_measured=log_measured,
                progress=lambda done, total, k=k: _seen(  # type: ignore[misc]  # k is bound here
                    bar, task, k * total + done, len(bases) * total
                ),
            )
            for k, one in enumerate(bases)
        ]
    rows = [
        {**row, "at_the_edge": edges(row["tuned"], axes), **({} if at is None else {"at": {setting: value}})}
        for value, outcomes in zip(values, found, strict=True)
        for row in table_rows(outcomes)
    ]
    figure = _save(found, rows, directory, setting, values)
    page = write_comparison_page(directory, found, rows, shlex.join(["tacit", *sys.argv[1:]]), base.to_toml())
    points = {path for outcomes in found for outcome in outcomes for path in outcome.points}
    if as_json:
        sheet = {"rows": rows, "points": len(points), "points_already_there": len(points & there)}
        print(json.dumps({**sheet, "out": str(directory), "figure": str(figure), "page": str(page)}))
    elif not quiet:
        already = f"{len(points & there)} of {len(points)} runs were already there"
        show_comparison(rows, directory, already, tuned=bool(axes))


@contextmanager
def _ended(bar: Progress) -> Iterator[TaskID]:
    """A line of the bar. Above an error it would look like the result of a comparison that ran."""
    task = bar.add_task("compare", total=None)
    try:
        yield task
    except Exception:
        bar.remove_task(task)
        raise
    finally:
        # Stopping a bar that was never started prints an empty line.
        if bar.live.is_started:
            bar.stop()


def _seen(bar: Progress, task: TaskID, done: int, total: int) -> None:
    """Starts the bar with the first progress: a refused request shows an error and nothing else."""
    bar.start()
    bar.update(task, completed=done, total=total)


def _that_add_up(base: Recipe, names: list[str], data_dir: Path | None) -> list[str]:
    """The algorithms whose messages may be summed with this recipe; the others are named, with the reason."""
    from tacit.planning.needs import Refused, noise_needs

    planned = noise_needs(base, algorithms=names, fractions=(), data_dir=data_dir).planned
    for row in planned:
        if isinstance(row, Refused):
            say(f"left out: {row.algorithm}: {row.why}", then="  ", err=True)
    return [row.algorithm for row in planned if not isinstance(row, Refused)]


def _default_directory(base: Recipe, asked: list[Any]) -> Path:
    """A directory named after the request, so that the same command finds its finished points."""
    from tacit.engine.records import names_files

    digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]
    return Path("runs") / f"compare-{'files' if names_files(base) else base.data}-{digest}"


def _axis(option: str, text: str) -> tuple[str, list[Any]]:
    from tacit.engine.recipe import parse_setting

    key, equals, values = text.partition("=")
    if not equals:
        raise RequestError(f"{option} takes KEY=A,B,..., such as algorithm.step=0.1,0.3, not {text!r}")
    return key, [parse_setting(f"{key}={value}")[1] for value in parse_list(option, values)]


def _save(
    found: list[list[Outcome]], rows: list[dict[str, Any]], directory: Path, setting: str, values: list[Any]
) -> Path:
    import pandas as pd

    from tacit.report.curves import plot_at, plot_histories

    pd.DataFrame(rows).to_csv(directory / "comparison.csv", index=False)
    metric, note = metric_name(rows), measured_note(rows)
    if setting:
        column = "train_loss" if all(row["test_metric"] is None for row in rows) else "test_metric"
        ends = {
            outcomes[0].algorithm: [
                [summary[column] for summary in outcome.summaries] or [math.nan] for outcome in outcomes
            ]
            for outcomes in map(list, zip(*found, strict=True))
        }
        label = "training loss" if column == "train_loss" else f"test {metric}"
        bare = any(column in row["not_covered"] for row in rows)
        figure = plot_at(ends, values, short(setting), label, note if bare else "")
    else:
        figure = plot_histories({o.algorithm: o.histories for o in found[0] if o.histories}, metric, note)
    path = directory / "comparison.png"
    figure.savefig(path.with_suffix(".svg"))
    # Both have the same layout, which takes longer to find than to draw.
    figure.set_layout_engine("none")
    figure.savefig(path, dpi=140)
    return path
