"""What `tacit account` prints: tables on standard output."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from tacit.cli.say import verbatim
from tacit.cli.tables import show_table
from tacit.deploy.spending import Spending
from tacit.engine.account import RunAccount
from tacit.privacy import Adversary
from tacit.privacy.accountant.cost import Cost
from tacit.privacy.promises.protection import NO_PROTECTION, Protection, in_words
from tacit.privacy.promises.rounding import MOST_DIGITS, at_least, up_to
from tacit.theory.published import Row

_FEW = 5
"""About as many points of a curve are printed."""


def show_cost(cost: Cost, facts: dict[str, str] | None = None) -> None:
    """Print a cost as a small table: epsilon first, then other known facts, in rich's markup."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    table.add_row(
        "epsilon",
        f"[bold green]{_number(cost.epsilon)}[/] at delta {up_to(cost.delta, MOST_DIGITS)}, {cost.adjacency}",
    )
    for name, text in (facts or {}).items():
        table.add_row(name, text)
    table.add_row("second opinion", f"{_number(cost.rdp_epsilon)} by Renyi divergence, which is never lower")
    table.add_row(
        "per round",
        f"{_number(cost.epsilon / cost.rounds)} on average over {cost.rounds}; {_number(cost.first_round)} for "
        f"the first, {_number(cost.last_round)} for the last",
    )
    table.add_row("over rounds", _pairs(cost.by_rounds))
    table.add_row("over delta", _pairs(cost.by_delta))
    Console().print(table)


def show_run(found: RunAccount) -> None:
    """Print what a ledger says, and whether the summary agrees."""
    console, place = Console(), verbatim(str(found.directory))
    state = "finished" if found.finished else "[yellow]unfinished[/]: cost so far"
    if found.guarantee is None:
        console.print(f"[bold red]NOT PRIVATE[/]: noise was switched off in {place}")
    elif found.cost is None:
        spent = f"epsilon {_number(found.guarantee.epsilon)} was spent before the first round, and"
        nothing = spent if found.guarantee.epsilon else "nothing has been spent:"
        console.print(f"{nothing} no round has been released in {place} yet")
    else:
        counts = [one.rounds for one in found.spent]
        least, most = min(counts), max(counts)
        each = f"{most}" if least == most else f"{least} to {most}"
        facts = {
            "ledger": f"{place}, {found.rounds} rounds, {state}",
            "clients": f"{len(found.spent)}, each in {each} rounds; the largest cost is shown",
        }
        if found.besides:
            facts["besides rounds"] = (
                f"epsilon {_number(found.besides)} alone, for what else is released (evaluations, corrections, "
                "learned ranges); all numbers below include it"
            )
        show_cost(found.cost, facts)
    if found.finished and not found.differences:
        console.print("[green]The summary agrees with the ledger.[/]")
    for difference in found.differences:
        console.print(f"[bold red]The summary differs from the ledger.[/] {verbatim(difference)}")


def show_spending(title: str, spending: Spending) -> None:
    """Print what a silo has spent of its policy's budget, run by run, and what is left."""
    console, policy = Console(), spending.policy
    console.print(
        f"{verbatim(title)}: the policy allows epsilon {policy.epsilon:g}, delta {policy.delta:g} "
        f"({policy.adjacency}, per {spending.whose}) for all runs together, against {spending.against}"
    )
    if not spending.runs:
        console.print("nothing is spent: no run was ever started")
        return
    table = Table()
    table.add_column("run", no_wrap=True)
    table.add_column("algorithm")
    table.add_column("messages", justify="right")
    table.add_column("epsilon", justify="right")
    for run in spending.runs:
        table.add_row(run.run, run.algorithm, f"{run.releases} of {run.planned}", _number(run.epsilon))
    console.print(table)
    console.print(
        f"spent: epsilon {_number(spending.needed)}; every run that was started counts in full, with "
        "its reports, corrections and evaluations"
    )
    if policy.adversary is not Adversary.SERVER:
        left = in_words(spending.without_trust)
        console.print(f"epsilon if all other parties help the server: {left}", highlight=False)
    if spending.left:
        console.print(f"left:  enough for another run of epsilon {at_least(spending.left, 4)}, or slightly less")
    else:
        console.print("left:  [bold]nothing[/]: no new run can start; a run that was started can continue")


def show_protection(rows: tuple[Protection, ...]) -> None:
    """Print who is protected against whom, one row per adversary."""
    if not rows:
        return
    # Sentences get the whole width: four columns would squeeze them into a few words each.
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    table.add_row("[dim]epsilon[/]", "[dim]who is protected against whom[/]")
    for row in rows:
        style = "red" if row.epsilon >= NO_PROTECTION else "bold"
        table.add_row(
            f"[{style}]{in_words(row.epsilon)}[/]",
            f"[bold]{row.protected}[/], against {row.adversary}\n{verbatim(row.sentence)}",
        )
    Console().print()
    Console().print(table)


def show_published(title: str, rows: tuple[Row, ...]) -> None:
    """Print a paper's labels next to the true epsilons."""
    measures = list(dict.fromkeys(name for row in rows for name in row.true))
    factors = list(dict.fromkeys(name for row in rows for name in row.factors))
    cells = []
    for row in rows:
        name = f"{row.setting} [dim]{row.remark}[/]" if row.remark else row.setting
        values = {m: _judged(row.true[m], row.label) if m in row.true else "" for m in measures}
        more = {f: _number(row.factors[f]) if f in row.factors else "" for f in factors}
        first = {"setting": name, "label": f"{row.label:g}", "batch, rounds": f"{row.batch:g}, {row.rounds}"}
        cells.append({**first, **values, **more})
    show_table(cells, title=title, words=("setting",))


def _judged(true: float, label: float) -> str:
    """The true epsilon, in red if it exceeds the label."""
    return f"[{'red' if true > 1.001 * label else 'green'}]{_number(true)}[/]"


def _pairs(points: tuple[tuple[float, float], ...]) -> str:
    """Some of the points, the last among them; --json has all."""
    every = max(1, round((len(points) - 1) / _FEW))
    return ", ".join(f"[dim]{x:g}:[/] {_number(y)}" for x, y in reversed(points[::-every]))


def _number(value: float) -> str:
    return "none" if math.isinf(value) else up_to(value, 4)
