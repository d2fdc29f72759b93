"""`tacit plan`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options as o

if TYPE_CHECKING:
    from tacit.engine.needs import Needs

HELP = """What noise each algorithm would need for a promise, before anything is run.

First as planned, then over a grid of batches at the same rounds: smaller batches do not need less noise, and very
small ones need far more."""


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
    as_json: o.Json = False,
    settings: o.Set = None,
) -> None:
    """Plan the noise of every algorithm."""
    from tacit.engine.needs import noise_needs

    given = o.given(
        data=data, clients=clients, partition=partition, model=model, epsilon=epsilon, delta=delta,
        rounds=rounds, batch=batch, clip_norm=clip_norm, compressor=compressor,
    )  # fmt: skip
    names = [name for text in algorithm or [] for name in o.parse_list("--algorithm", text)]
    needs = noise_needs(o.recipe_from(recipe_file, given, settings), algorithms=names, data_dir=data_dir)
    if as_json:
        print(json.dumps(_sheet(needs)))
    else:
        _show(needs)


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
        title=f"noise for epsilon {recipe.epsilon:g} at delta {recipe.delta:g}, {recipe.adjacency}",
        title_justify="left",
    )
    for heading in ("algorithm", "rounds", "sampling", "batch", "noise multiplier", "noise std", "kB a client"):
        planned.add_column(heading, justify="left" if heading in ("algorithm", "sampling") else "right")
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
