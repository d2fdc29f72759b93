"""Tables that fit into a narrow terminal: whole names, and fewer columns instead of cut ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions
from rich.table import Table


def show_table(
    rows: Sequence[Mapping[str, str]], *, title: str, words: Collection[str] = (), console: Console | None = None
) -> None:
    """Print rows, given as cells by heading. Columns that do not fit are left out, from the right, and named.

    Args:
        rows: cells by heading; every row has the same headings.
        title: printed above the table.
        words: the headings whose cells are words, not numbers.
        console: where to print; standard output unless given.
    """
    console = console or Console()
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    shown = list(headings)
    unlimited = console.options.update_width(10_000)
    while len(shown) > 1 and _width(console, unlimited, _table(rows, shown, title, words)) > console.width:
        shown.pop()
    console.print(_table(rows, shown, title, words))
    left_out = headings[len(shown) :]
    if left_out:
        named = "; ".join(f'"{heading}"' for heading in left_out)
        console.print(f"[dim]Too narrow for {named}: widen the terminal, or use --json.[/]")


def _width(console: Console, unlimited: ConsoleOptions, table: Table) -> int:
    return console.measure(table, options=unlimited).maximum


def _table(
    rows: Sequence[Mapping[str, str]], headings: Sequence[str], title: str, words: Collection[str]
) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(
            heading.replace(" ", "\n", 1), justify="left" if heading in words else "right", no_wrap=True
        )
    for row in rows:
        table.add_row(*(row.get(heading, "") for heading in headings))
    return table
