"""What a person sees of an account: tables on standard output."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from tacit.deploy.spending import Spending
from tacit.engine.account import RunAccount
from tacit.privacy.accountant.cost import Cost
from tacit.privacy.promises.protection import Protection, round_up
from tacit.theory.published import Row


def show_cost(cost: Cost, facts: dict[str, str] | None = None) -> None:
    """A cost as a small table, with whatever else is known above it."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for name, text in (facts or {}).items():
        table.add_row(name, text)
    table.add_row("epsilon", f"[bold green]{_number(cost.epsilon)}[/] at delta {cost.delta:g}, {cost.adjacency}")
    table.add_row("second opinion", f"{_number(cost.rdp_epsilon)} by Renyi divergences, which is never below")
    table.add_row(
        "per round",
        f"{_number(cost.epsilon / cost.rounds)} in the mean of {cost.rounds}; {_number(cost.first_round)} after "
        f"the first, {_number(cost.last_round)} for the last",
    )
    table.add_row("over rounds", _pairs(cost.by_rounds))
    table.add_row("over delta", _pairs(cost.by_delta))
    Console().print(table)


def show_run(found: RunAccount) -> None:
    """What a ledger says, and whether the summary agrees."""
    console = Console()
    state = "finished" if found.finished else "[yellow]unfinished[/]: what was spent so far"
    if found.guarantee is None:
        console.print(f"[bold red]NOT PRIVATE[/]: noise was switched off in {found.directory}")
    elif found.cost is None:
        spent = f"epsilon {_number(found.guarantee.epsilon)} was spent before the first round, and"
        nothing = spent if found.guarantee.epsilon else "nothing has been spent:"
        console.print(f"{nothing} no round has been released in {found.directory} yet")
    else:
        counts = [one.rounds for one in found.spent]
        facts = {
            "ledger": f"{found.directory}, {found.rounds} rounds, {state}",
            "clients": f"{len(found.spent)}, each in {min(counts)} to {max(counts)} rounds; the worst is shown",
        }
        show_cost(found.cost, facts)
    if found.finished and not found.differences:
        console.print("[green]The summary agrees with the ledger.[/]")
    for difference in found.differences:
        console.print(f"[bold red]The summary differs from the ledger.[/] {difference}")


def show_spending(title: str, spending: Spending) -> None:
    """What a silo's ledger has spent of its policy, run by run, and what is left."""
    console, policy = Console(), spending.policy
    console.print(
        f"{title}: epsilon {policy.epsilon:g}, delta {policy.delta:g} in the policy ({policy.adjacency}, per "
        f"{policy.unit}), for all runs together"
    )
    if not spending.runs:
        console.print("nothing is spent: no run was ever begun")
        return
    table = Table()
    table.add_column("run", no_wrap=True)
    table.add_column("algorithm")
    table.add_column("releases", justify="right")
    table.add_column("epsilon", justify="right")
    for run in spending.runs:
        table.add_row(run.run, run.algorithm, f"{run.releases} of {run.planned}", _number(run.epsilon))
    console.print(table)
    console.print(f"spent: epsilon {_number(spending.needed)}; every run counts in full, however far it got")
    if spending.left:
        console.print(f"left:  room for a further run of epsilon {spending.left:.4g}, or a little less")
    else:
        console.print("left:  [bold]nothing[/]: no further run can be begun; one that has begun can go on")


def show_protection(rows: tuple[Protection, ...]) -> None:
    """Who is protected against whom."""
    if not rows:
        return
    table = Table(title="who is protected against whom", title_justify="left", show_lines=True)
    for heading in ("against", "protected", "epsilon", "in words"):
        table.add_column(heading, justify="right" if heading == "epsilon" else "left")
    for row in rows:
        epsilon = "[red]none[/]" if math.isinf(row.epsilon) else f"{round_up(row.epsilon):g}"
        table.add_row(row.adversary, row.protected, epsilon, row.sentence)
    Console().print(table)


def show_published(title: str, rows: tuple[Row, ...]) -> None:
    """A paper's labels beside the true epsilons."""
    table = Table(title=title, title_justify="left")
    measures = list(dict.fromkeys(name for row in rows for name in row.true))
    factors = list(dict.fromkeys(name for row in rows for name in row.factors))
    for heading in ("setting", "label", "batch, rounds", *measures, *factors):
        table.add_column(heading, justify="left" if heading == "setting" else "right")
    for row in rows:
        name = f"{row.setting} [dim]{row.remark}[/]" if row.remark else row.setting
        values = [_judged(row.true[m], row.label) if m in row.true else "" for m in measures]
        more = [_number(row.factors[f]) if f in row.factors else "" for f in factors]
        table.add_row(name, f"{row.label:g}", f"{row.batch:g}, {row.rounds}", *values, *more)
    Console().print(table)


def _judged(true: float, label: float) -> str:
    """The true epsilon, in red where the label promises too much."""
    return f"[{'red' if true > 1.001 * label else 'green'}]{_number(true)}[/]"


def _pairs(points: tuple[tuple[float, float], ...]) -> str:
    return "  ".join(f"[dim]{x:g}[/] {_number(y)}" for x, y in points)


def _number(value: float) -> str:
    return "none" if math.isinf(value) else f"{value:.4g}"
