"""`tacit plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options as o
from tacit.errors import RequestError

if TYPE_CHECKING:
    from tacit.engine.needs import Needs
    from tacit.engine.recipe import Recipe

_SHOWN = 20
"""How many candidates people get to see; --json has all."""

HELP = """What noise each algorithm would need for a promise, before anything is run.

First as planned, then over a grid of batches at the same rounds: smaller batches do not need less noise, and very
small ones need far more. With --choose, the planner: candidates by what the theory promises for them."""


def plan(
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
    choose: Annotated[
        bool, typer.Option("--choose", help="Choose batch, rounds, step, compressor and clip norm by theory.")
    ] = False,
    bit_budget: Annotated[
        float | None, typer.Option(help="With --choose: the most bits that a client may send in the whole run.")
    ] = None,
    trials: Annotated[
        int, typer.Option(help="With --choose: try so many of the best on synthetic data of the same shape.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="With --choose: write the recipe that was chosen into this file.")
    ] = None,
    as_json: o.Json = False,
    settings: o.Set = None,
) -> None:
    """Plan the noise of every algorithm, or choose a recipe."""
    from tacit.engine.needs import noise_needs

    given = o.given(
        data=data, clients=clients, partition=partition, model=model, epsilon=epsilon, delta=delta,
        rounds=rounds, batch=batch, clip_norm=clip_norm, compressor=compressor,
    )  # fmt: skip
    names = [name for text in algorithm or [] for name in o.parse_list("--algorithm", text)]
    recipe = o.recipe_from(recipe_file, given, settings)
    if choose:
        _choose(recipe, names, bit_budget, trials, out, data_dir, as_json)
        return
    if bit_budget is not None or trials or out is not None:
        raise RequestError("--bit-budget, --trials and --out go with --choose")
    needs = noise_needs(recipe, algorithms=names, data_dir=data_dir)
    if as_json:
        print(json.dumps(_sheet(needs)))
    else:
        _show(needs)


def _choose(
    recipe: Recipe,
    names: list[str],
    bit_budget: float | None,
    trials: int,
    out: Path | None,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    from tacit.engine.compare import recipe_for
    from tacit.engine.files import write_atomically
    from tacit.engine.planner import candidates, try_out

    found = candidates(recipe, algorithms=names or None, bit_budget=bit_budget, data_dir=data_dir)
    tried = try_out(found, recipe, most=trials, data_dir=data_dir) if trials else []
    best = tried[0].candidate if tried else found[0]
    chosen = recipe_for(best.algorithm, best.recipe(recipe))
    if out is not None:
        write_atomically(out, chosen.to_toml().encode())
    losses = {trial.candidate: trial.train_loss for trial in tried}
    rows = [{**c.to_dict(), "synthetic_train_loss": losses.get(c)} for c in found]
    if as_json:
        print(json.dumps({"chosen": best.to_dict(), "recipe": chosen.to_toml(), "candidates": rows}))
        return
    _show_candidates(rows, best.to_dict(), out)


def _show_candidates(rows: list[dict[str, Any]], best: dict[str, Any], out: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"bound on the {best['quantity']}, best first"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    headings = ["algorithm", "rounds", "batch", "compressor", "step", "noise std", "kB", "bound"]
    tried = any(row["synthetic_train_loss"] is not None for row in rows)
    for heading in headings + (["trial loss"] if tried else []):
        table.add_column(
            heading, justify="left" if heading in ("algorithm", "compressor") else "right", no_wrap=True
        )
    for row in rows[:_SHOWN]:
        chosen = all(row[name] == value for name, value in best.items())
        cells = [
            row["algorithm"], str(row["rounds"]), "full" if row["batch"] is None else f"{row['batch']:.0%}",
            row["compressor"] or "", f"{row['step']:.3g}", f"{row['noise_std']:.3g}",
            f"{row['uplink_bits_per_client'] / 8000:.0f}", f"{row['bound']:.3g}",
        ]  # fmt: skip
        if tried:
            loss = row["synthetic_train_loss"]
            cells.append("" if loss is None else f"{loss:.4g}")
        table.add_row(*cells, style="bold green" if chosen else None)
    console = Console()
    console.print(table)
    console.print(
        f"[dim]{len(rows)} candidates, all at the promised epsilon; clip norm {best['clip_norm']:g}; bounds are "
        "worst cases, trials are on synthetic data. Nothing private was looked at.[/]"
    )
    if out is not None:
        console.print(f"The chosen recipe: {out}")


def _sheet(needs: Needs) -> dict[str, Any]:
    recipe = needs.recipe
    return {
        "target": {"epsilon": recipe.epsilon, "delta": recipe.delta, "adjacency": recipe.adjacency},
        "clip_norm": recipe.clip_norm,
        "algorithms": [row.to_dict() for row in needs.planned],
        "batches": [{"fraction": fraction, **row.to_dict()} for fraction, row in needs.by_batch],
    }


def _show(needs: Needs) -> None:
    from rich.console import Console
    from rich.table import Table

    from tacit.engine.needs import Need, Refused

    recipe, console = needs.recipe, Console()
    planned = Table(
        title=f"noise for epsilon {_number(recipe.epsilon)} at delta {_number(recipe.delta)}, {recipe.adjacency}",
        title_justify="left",
    )
    for heading in ("algorithm", "rounds", "sampling", "batch", "noise multiplier", "noise std", "kB a client"):
        left = heading in ("algorithm", "sampling")
        planned.add_column(heading, justify="left" if left else "right", no_wrap=heading == "algorithm")
    for row in needs.planned:
        if isinstance(row, Need):
            planned.add_row(
                row.algorithm, str(row.rounds), row.sampling, f"{row.batch:g}", f"{row.noise_multiplier:.4g}",
                f"{row.noise_std:.4g}", f"{row.uplink_bits_per_client / 8000:.1f}",
            )  # fmt: skip
    console.print(planned)
    for row in needs.planned:
        if isinstance(row, Refused):
            console.print(f"[yellow]{row.algorithm}[/]: {row.why}")
    fractions = list(dict.fromkeys(fraction for fraction, _ in needs.by_batch))
    grid = Table(title="noise std by batch, same rounds", title_justify="left")
    grid.add_column("algorithm")
    for fraction in fractions:
        grid.add_column("full" if fraction == 1 else f"{fraction:.0%}", justify="right")
    for name in dict.fromkeys(row.algorithm for _, row in needs.by_batch):
        cells = [
            f"{row.noise_std:.4g}" if isinstance(row, Need) else "[dim]refused[/]"
            for _, row in needs.by_batch
            if row.algorithm == name
        ]
        grid.add_row(name, *cells)
    if fractions:
        console.print(grid)
    console.print("[dim]of the smallest client; on every coordinate of what it sends (of a local step)[/]")


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else "of their own"
