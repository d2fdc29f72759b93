"""`tacit audit`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from tacit.cli import options as o

if TYPE_CHECKING:
    from tacit.privacy.audit import AuditResult

HELP = """Attack an algorithm as the server could, and compare what leaks with what is promised.

The recipe's algorithm runs with its own sampling, bound, noise, compressor and rounds, on worst-case records of
the auditor's. Exits with 1 if the promise is refuted. An audit can refute a promise; it cannot prove one."""


def audit(
    recipe_file: o.RecipeFile = None,
    algorithm: o.Algorithm = None,
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
    step: o.Step = None,
    seed: o.Seed = None,
    method: str = typer.Option(
        "repeated-runs",
        help="repeated-runs (strongest), one-run (many canaries at once) or final-model (a weak adversary).",
    ),
    trials: int | None = typer.Option(
        None, help="Runs, or canaries of one run. [dim]1000 to 4000 unless given[/]"
    ),
    confidence: float = typer.Option(0.95, help="With which the lower bound holds."),
    dim: int = typer.Option(4, help="Coordinates of the repeated runs' game; 1 looks past sparse compressors."),
    as_json: o.Json = False,
    settings: o.Set = None,
) -> None:
    """Audit one recipe."""
    from rich.console import Console

    from tacit.engine.audit import audit_recipe

    given = o.given_settings(
        algorithm=algorithm, data=data, clients=clients, partition=partition, model=model, epsilon=epsilon,
        delta=delta, rounds=rounds, batch=batch, clip_norm=clip_norm, compressor=compressor, step=step, seed=seed,
    )  # fmt: skip
    recipe = o.recipe_from(recipe_file, given, settings)
    with Console(stderr=True).status(f"playing against {recipe.algorithm}"):
        result = audit_recipe(
            recipe, method=method, trials=trials, confidence=confidence, dim=dim, data_dir=data_dir
        )
    if as_json:
        print(json.dumps(result.to_dict()))
    else:
        _show(result)
    if result.violated:
        raise typer.Exit(1)


def _show(result: AuditResult) -> None:
    from rich.console import Console
    from rich.table import Table

    claim, curve = result.at_claim, result.on_curve
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("algorithm", f"[bold]{result.algorithm}[/], {result.rounds} rounds, {result.records} records")
    table.add_row("method", f"{result.method} on {result.data}: {claim.trials:,} trials, {claim.attack}")
    table.add_row("promised", f"epsilon {claim.claimed:.4g} at delta {claim.delta:.3g}, {result.adjacency}")
    table.add_row(
        "found",
        f"[bold]epsilon is at least {claim.lower_bound:.3g}[/] at that delta, with confidence "
        f"{claim.confidence:g} ({claim.right} of {claim.guesses} guesses right)",
    )
    if result.equivalent_epsilon is not None:
        table.add_row(
            "as if", f"at least epsilon {result.equivalent_epsilon:.3g}, if the noise is of the promised kind"
        )
    if curve is not None:
        table.add_row(
            "on the curve",
            f"epsilon is at least {curve.lower_bound:.3g} at delta {curve.delta:.3g}, where "
            f"{curve.claimed:.3g} is promised; confidence {curve.confidence:g} "
            f"({curve.right} of {curve.guesses} right)",
        )
    table.add_row("verdict", f"[bold {'red' if result.violated else 'green'}]{result.verdict}[/]")
    Console().print(table)
