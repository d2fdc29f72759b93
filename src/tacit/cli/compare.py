"""`tacit compare`."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import sys
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import complete
from tacit.cli import options as o
from tacit.cli.interrupt import continued_by_repeating

if TYPE_CHECKING:
    from tacit.engine.compare import Outcome
    from tacit.engine.recipe import Recipe

HELP = """Compare algorithms on the same data at the same privacy, over several seeds.

All runs with the same seed share the data and the starting point; each draws its own noise. With --grid, each
algorithm is tuned separately. Finished points are kept in --out and not repeated: after an interruption, the same
command continues where it stopped."""


@o.recipe_options("privacy", "adversary")
def compare(
    *,
    recipe_file: o.RecipeFile = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            help="Names, repeated or separated by commas. [dim]all that protect records[/]",
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
        "grad_norm_sq_mean", help="What tuning selects by: grad_norm_sq_mean, train_loss or test_metric."
    ),
    at: Annotated[
        str | None,
        typer.Option(metavar="KEY=A,B,...", help="Repeat the comparison at each value, such as epsilon=0.5,1,2."),
    ] = None,
    out: o.Out = None,
    workers: int | None = typer.Option(None, help="Number of processes. [dim]one per core[/]"),
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
    base = o.recipe_from(recipe_file, given, settings)
    names = [name for text in algorithm or [] for name in o.parse_list("--algorithm", text)]
    if algorithm is None:
        everyone = [name for name, entry in ALGORITHMS.items() if entry.private and not entry.client_coins]
        names = everyone if base.trust is None else _that_add_up(base, everyone, data_dir)
    o.check_taken([*given, *o.parsed(settings), *axes], names)
    setting, values = ("", [None]) if at is None else _axis("--at", at)
    bases = [base if at is None else base.with_settings({setting: value}) for value in values]
    for key, choices in axes.items():
        base.with_settings({key: choices[0]})
    directory = out or _default_directory(base, [names, axes, seeds, select, at, base.to_toml()])
    there = {path.parent for ended in ENDED for path in directory.glob(f"points/*/{ended}")}
    columns = TextColumn("[bold]compare"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    silent = quiet or (as_json and not sys.stderr.isatty())
    shown = Progress(*columns, console=Console(stderr=True), disable=silent)
    with continued_by_repeating(), shown as bar:
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
                cluster=cluster,
                logs=log or (),
                log_measured=log_measured,
                progress=lambda done, total, k=k: bar.update(  # type: ignore[misc]  # k is bound here
                    task, completed=k * total + done, total=len(bases) * total
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
        _show(rows, figure, page, tuned=bool(axes))
        print(f"{len(points & there)} of {len(points)} points were already there")


def _that_add_up(base: Recipe, names: list[str], data_dir: Path | None) -> list[str]:
    """The algorithms whose messages may be summed with this recipe; the others are named, with the reason."""
    from tacit.planning.needs import Refused, noise_needs

    planned = noise_needs(base, algorithms=names, fractions=(), data_dir=data_dir).planned
    for row in planned:
        if isinstance(row, Refused):
            print(f"left out: {row.algorithm}: {row.why}", file=sys.stderr)
    return [row.algorithm for row in planned if not isinstance(row, Refused)]


def _default_directory(base: Recipe, asked: list[Any]) -> Path:
    """A directory named after the request, so that the same command finds its finished points."""
    from tacit.engine.records import names_files

    digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]
    return Path("runs") / f"compare-{'files' if names_files(base) else base.data}-{digest}"


def _axis(option: str, text: str) -> tuple[str, list[Any]]:
    from tacit.engine.recipe import parse_setting

    key, values = text.partition("=")[::2]
    return key, [parse_setting(f"{key}={value}")[1] for value in o.parse_list(option, values)]


def table_rows(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """One row per algorithm: means over the seeds, at the end and at the same number of bits for all."""
    from tacit.engine.compare import equal_bits

    common = equal_bits([history for outcome in outcomes for history in outcome.histories])
    return [_table_row(outcome, common) for outcome in outcomes]


def _table_row(outcome: Outcome, common: int | None) -> dict[str, Any]:
    from tacit.engine.compare import at_bits

    first: dict[str, Any] = outcome.summaries[0] if outcome.summaries else {}
    same_bits = [] if common is None else [at_bits(history, common) for history in outcome.histories]
    rows = [row for row in same_bits if row is not None]
    told = {
        "algorithm": outcome.algorithm,
        "tuned": outcome.tuned,
        "seeds": len(outcome.summaries),
        "diverged": [{**dict(point.tuned), "seed": point.recipe.seed} for point in outcome.diverged],
        **{name: first.get(name) for name in ("epsilon", "delta", "privacy", "noise_multiplier", "rounds")},
        "uplink_bits_per_client": first.get("uplink_bits_per_client"),
        "sampling_rate": first.get("sampling_rate"),
        **{
            name: _mean_or_none([summary[name] for summary in outcome.summaries])
            for name in ("train_loss", "grad_norm_sq_mean", "test_metric")
        },
        "test_metric_name": first.get("test_metric_name"),
        "equal_bits": common,
        "round_at_equal_bits": rows[0].round if rows else None,
        **{
            f"{name}_at_equal_bits": _mean_or_none([getattr(row, name) for row in rows])
            for name in ("grad_norm_sq_mean", "train_loss", "test_metric")
        },
    }
    bare = first.get("not_covered", [])
    return {**told, "not_covered": [name for name in told if name.removesuffix("_at_equal_bits") in bare]}


def _mean_or_none(values: list[Any]) -> float | None:
    return mean(values) if values and None not in values else None


def _save(
    found: list[list[Outcome]], rows: list[dict[str, Any]], directory: Path, setting: str, values: list[Any]
) -> Path:
    import pandas as pd

    from tacit.report.curves import plot_at, plot_histories

    pd.DataFrame(rows).to_csv(directory / "comparison.csv", index=False)
    metric = _metric_name(rows)
    if setting:
        column = "train_loss" if all(row["test_metric"] is None for row in rows) else "test_metric"
        ends = {
            outcomes[0].algorithm: [
                [summary[column] for summary in outcome.summaries] or [math.nan] for outcome in outcomes
            ]
            for outcomes in map(list, zip(*found, strict=True))
        }
        figure = plot_at(
            ends, values, _short(setting), "training loss" if column == "train_loss" else f"test {metric}"
        )
    else:
        figure = plot_histories({o.algorithm: o.histories for o in found[0] if o.histories}, metric)
    path = directory / "comparison.png"
    figure.savefig(path.with_suffix(".svg"))
    # Both have the same layout, which takes longer to find than to draw.
    figure.set_layout_engine("none")
    figure.savefig(path, dpi=140)
    return path


def _metric_name(rows: list[dict[str, Any]]) -> str:
    """The metric's name, from a run that did not diverge. If all diverged, the comparison failed earlier."""
    return str(next(row["test_metric_name"] for row in rows if row["seeds"]))


def _show(rows: list[dict[str, Any]], figure: Path, page: Path, *, tuned: bool) -> None:
    from rich.console import Console

    from tacit.cli.tables import show_table

    metric, console = _metric_name(rows), Console()
    cells = [_cells(row, metric, tuned) for row in rows]
    seeds = max(row["seeds"] for row in rows)
    title = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
    show_table(cells, title=title, words=("algorithm", "at", "tuned to"), console=console)
    console.print(
        f"[dim]utility: mean squared gradient norm over the evaluated rounds; figure: {figure}; page: {page}[/]"
    )
    if "at" not in rows[0]:
        console.print(f"[dim]{_equal_bits_sentence(rows)}[/]", highlight=False)
    if bare := {name for row in rows for name in row["not_covered"]}:
        tested = " and test results" if "test_metric" in bare else ""
        console.print(
            f"[dim]Losses{tested} are measured on the clients' records without noise, for the researcher; no "
            "promise covers them.[/]"
        )
    for row in rows:
        for point in row["diverged"]:
            where = ", ".join(f"{_short(key)} {value}" for key, value in {**row.get("at", {}), **point}.items())
            console.print(f"[yellow]{row['algorithm']} diverged[/] at {where}")
        for edge in row["at_the_edge"]:
            console.print(f"[yellow]{row['algorithm']}: {edge}[/]")
    if "at" not in rows[0] and len({row["sampling_rate"] for row in rows if row["seeds"]}) > 1:
        rates = ", ".join(f"{row['algorithm']} {_rate(row)}" for row in rows if row["seeds"])
        console.print(f"[yellow]Batches differ[/] [dim](share of a client's records in a step): {rates}[/]")
    if tuned:
        console.print("[dim]Tuning read the data many times; these epsilons do not include its privacy cost.[/]")


def _equal_bits_sentence(rows: list[dict[str, Any]]) -> str:
    if rows[0]["equal_bits"] is None:
        return "equal bits: no evaluated rounds have the same bits; --set evaluate_every=1 evaluates every round"
    rounds = ", ".join(f"{row['algorithm']} {row['round_at_equal_bits']}" for row in rows if row["seeds"])
    return f"equal bits: {rows[0]['equal_bits'] / 8000:.1f} kB per client; rounds that this pays for: {rounds}"


def _cells(row: dict[str, Any], metric: str, tuned: bool) -> dict[str, str]:
    from tacit.privacy.promises.protection import round_up

    bits = row["uplink_bits_per_client"]
    epsilon = "" if row["epsilon"] is None else f"{round_up(row['epsilon']):g}"
    cells = {
        "algorithm": row["algorithm"],
        "epsilon": "[red]not private[/]" if row["privacy"] == "none" else epsilon,
        "loss": _number(row["train_loss"], ".4g") if row["seeds"] else "[yellow]diverged[/]",
        metric: _number(row["test_metric"], ".4g"),
    }
    if "at" in row:
        cells = {f"at {_short(key)}": str(value) for key, value in row["at"].items()} | cells
    else:
        cells |= {
            "utility": _number(row["grad_norm_sq_mean"], ".3e"),
            "kB per client": "" if bits is None else f"{bits / 8000:.1f}",
            "utility, equal bits": _number(row["grad_norm_sq_mean_at_equal_bits"], ".3e"),
        }
    if tuned:
        cells["tuned to"] = ", ".join(f"{_short(key)} {value}" for key, value in row["tuned"].items())
    return cells


def _rate(row: dict[str, Any]) -> str:
    rate = row["sampling_rate"]
    return "all" if rate is None or rate == 1 else f"{rate:.3g}"


def edges(tuned: dict[str, Any], grid: dict[str, list[Any]]) -> list[str]:
    """What to say of chosen values at an end of their grid: the best may lie beyond.

    >>> edges({"algorithm.step": 1.0}, {"algorithm.step": [0.1, 0.3, 1.0]})
    ['step 1.0 is the largest of the grid; the best may be beyond it']
    >>> edges({"algorithm.step": 0.3}, {"algorithm.step": [0.1, 0.3, 1.0]})
    []
    """
    found = []
    for key, value in tuned.items():
        numbers = [one for one in grid.get(key, []) if isinstance(one, int | float)]
        if len(numbers) > 1 and value in (min(numbers), max(numbers)):
            end = "smallest" if value == min(numbers) else "largest"
            found.append(f"{_short(key)} {value} is the {end} of the grid; the best may be beyond it")
    return found


def _short(key: str) -> str:
    return key.removeprefix("algorithm.")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
