"""`tacit audit`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tacit.cli import complete
from tacit.cli import options as o
from tacit.cli.recipe_options import recipe_from, recipe_options
from tacit.cli.say import verbatim

if TYPE_CHECKING:
    from rich.table import Table

    from tacit.engine.recipe import Recipe
    from tacit.privacy.audit import AuditResult

HELP = """Attack an algorithm as its adversary could, and compare what leaks with what is promised.

The recipe's algorithm runs with its own sampling, bound, noise, compressor and rounds, on worst-case records that
the auditor chooses. Each promise is attacked by the adversary it names: a server that sees messages, or someone
who sees sums or shuffled messages. They also see a private evaluation (--evaluate) and what was learned before.
Noise, bounds and draws are measured, too. The exit code is 1 if a promise is refuted. An audit can refute a
promise; it cannot prove one."""


@recipe_options("privacy", "adversary")
def audit(
    *,
    recipe_file: o.RecipeFile = None,
    given: dict[str, Any],
    data_dir: o.DataDir = None,
    method: str = typer.Option(
        "repeated-runs",
        help="repeated-runs (strongest), one-run (many canaries at once) or final-model (a weak adversary).",
        autocompletion=complete.words("repeated-runs", "one-run", "final-model"),
    ),
    trials: int | None = typer.Option(
        None, help="Number of runs, or of canaries in one run. [dim]Default: 1000 to 4000.[/]"
    ),
    confidence: float = typer.Option(0.95, help="Confidence level of the lower bound."),
    dim: int = typer.Option(4, help="Coordinates of the repeated runs' messages; 1 bypasses sparse compressors."),
    report: o.Report = None,
    as_json: o.Json = False,
    settings: o.Set = None,
) -> None:
    """Audit one recipe."""
    from rich.console import Console

    from tacit.engine.audit import audit_recipe

    recipe = recipe_from(recipe_file, given, settings)
    with Console(stderr=True).status(f"attacking {recipe.algorithm}"):
        result = audit_recipe(
            recipe, method=method, trials=trials, confidence=confidence, dim=dim, data_dir=data_dir
        )
        if report is not None:
            result = replace(
                result, beside=(*result.beside, _reports(recipe, report, trials, confidence, data_dir))
            )
    if as_json:
        print(json.dumps(result.to_dict()))
    else:
        _show(result)
    if result.violated:
        raise typer.Exit(1)


def _reports(
    recipe: Recipe, text: str, trials: int | None, confidence: float, data_dir: Path | None
) -> AuditResult:
    """Audit the losses that silos would report in a deployment."""
    from tacit.deploy.audit import audit_report_of
    from tacit.deploy.report import Report

    return audit_report_of(recipe, Report.parse(text), trials=trials, confidence=confidence, data_dir=data_dir)


def _show(result: AuditResult) -> None:
    from rich.console import Console

    console = Console()
    for index, one in enumerate((result, *result.beside)):
        if index:
            console.print()
        console.print(_table(one, alone=not result.beside))
    if result.beside:
        console.print(f"\n  [dim]all promises[/]  {_verdict(result.verdict, result.violated)}")


def _table(result: AuditResult, *, alone: bool) -> Table:
    from rich.table import Table

    from tacit.privacy.promises.rounding import at_least, up_to

    claim, curve, data = result.at_claim, result.on_curve, verbatim(result.data)
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    crowd = f", {result.clients} clients" if result.clients > 1 else ""
    table.add_row(
        "algorithm", f"[bold]{result.algorithm}[/], {result.rounds} rounds, {result.records} records{crowd}"
    )
    table.add_row("adversary", f"{result.adversary.description}; guesses one {result.unit}")
    table.add_row("method", f"{result.method} on {data}: {claim.trials:,} trials, {claim.attack}")
    table.add_row(
        "promised", f"epsilon {up_to(claim.claimed, 4)} at delta {up_to(claim.delta)}, {result.adjacency}"
    )
    table.add_row(
        "found",
        f"[bold]epsilon is at least {at_least(claim.lower_bound)}[/] at that delta, with confidence "
        f"{claim.confidence:g} ({claim.right} of {claim.guesses} guesses right)",
    )
    if result.equivalent_epsilon is not None:
        table.add_row(
            "as if",
            f"at least epsilon {at_least(result.equivalent_epsilon)}, if the noise has the promised shape",
        )
    if curve is not None:
        table.add_row(
            "on the curve",
            f"epsilon is at least {at_least(curve.lower_bound)} at delta {up_to(curve.delta)}, where "
            f"{up_to(curve.claimed)} is promised; confidence {curve.confidence:g} "
            f"({curve.right} of {curve.guesses} right)",
        )
    for check in result.checks:
        table.add_row(check.name, f"[bold red]{check.finding}[/]" if check.violated else check.finding)
    if result.guesses_notice_half is not None:
        table.add_row("power", _power(result))
    for note in result.notes:
        table.add_row("note", verbatim(note))
    own = replace(result, beside=())
    table.add_row("verdict" if alone else "this promise", _verdict(own.verdict, own.violated))
    return table


def _power(result: AuditResult) -> str:
    """Whether this audit would have noticed if half of the noise were missing."""
    if result.guesses_notice_half:
        return "if half of the noise were missing, the guesses alone would have refuted the promise"
    if any(check.name == "noise" and 2 * check.measured > check.promised for check in result.checks):
        return "the noise check would notice half of the noise missing; guesses not (loose bound or rare draws)"
    return "half of the noise missing would go unnoticed: there is more noise than the promise needs"


def _verdict(verdict: str, violated: bool) -> str:
    return f"[bold {'red' if violated else 'green'}]{verdict}[/]"
