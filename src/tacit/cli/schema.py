"""`tacit schema`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli import complete
from tacit.cli.options import flowing
from tacit.cli.say import print_data, say

if TYPE_CHECKING:
    import pandas as pd

    from tacit.data.schema import Schema

app = typer.Typer(
    no_args_is_help=True,
    help="Describe what is publicly known about a table, so that preparing it uses none of its records.",
)

DRAFT = """Propose a schema for a table, from the names and types of its columns.

Everything that had to be taken from the records is marked, and listed under looked_at. Replace it with what is
publicly known, or confirm that it is public, and delete it from that list."""

CHECK = """Check a table against a schema: columns, types, categories, classes, ranges and gaps.

Nothing is released, so a draft can be checked before its values are confirmed."""

TableFile = Annotated[Path, typer.Argument(help="A .csv file, or .parquet with tacit\\[parquet].")]


@app.command("draft", help=flowing(DRAFT))
def draft(
    table: TableFile,
    target: Annotated[str | None, typer.Option(help="The column to predict. [dim]Default: a guess.[/]")] = None,
    client: Annotated[str | None, typer.Option(help="The column that names who holds a row.")] = None,
    person: Annotated[
        str | None, typer.Option(help="The column that names the person of a row, if persons have several.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="binary, multiclass, regression or count.",
            autocompletion=complete.words("binary", "multiclass", "regression", "count"),
        ),
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(help="A column that the model may not use; * stands for any letters. May be repeated."),
    ] = None,
    trust: Annotated[
        str,
        typer.Option(
            help="sum if runs will have it: less noise leaves room for long tails.",
            autocompletion=complete.words("none", "sum"),
        ),
    ] = "none",
    out: Annotated[
        Path | None, typer.Option(help="Write the schema to this file. [dim]Default: standard output.[/]")
    ] = None,
) -> None:
    """Draft a schema."""
    from tacit.data.files import read_table
    from tacit.data.schema import draft_schema
    from tacit.engine.files import write_atomically
    from tacit.errors import RequestError

    if out is not None and out.exists():
        raise RequestError(f"--out {out} exists; it may hold your edits: choose another name, or remove it")
    frame = read_table(table)
    said = {"target": target, "client": client, "person": person, "task": task}
    found = draft_schema(frame, **said, leave_out=leave_out or (), trust=trust)
    if out is None:
        print_data(found.to_toml())
        return
    write_atomically(out, found.to_toml().encode())
    schema = found.schema
    say(
        f"{out}: predicts {schema.target.column} ({schema.target.task}) from {len(schema.columns)} columns; "
        f"{len(schema.left_out)} left out."
        + ("" if schema.client is None else f" Clients are named by {schema.client}.")
        + ("" if schema.person is None else f" Persons are named by {schema.person}.")
    )
    for advice in found.advice:
        say(advice)
    if schema.looked_at:
        say(
            "Marked values come from the records. Replace those that are not public, then delete the line "
            f"looked_at to confirm the rest. It names {schema.unconfirmed_words}."
        )
    if schema.client is None:
        say(
            "No column names the clients: name one in [client], give one file per client, or deal the rows to "
            "--clients 5 for a trial."
        )


@app.command("check", help=flowing(CHECK))
def check(
    table: TableFile,
    after: Annotated[Path | None, typer.Argument(metavar="[schema]", help="The schema.")] = None,
    schema: Annotated[Path | None, typer.Option(help="The schema, if it is not given after the table.")] = None,
) -> None:
    """Check a table against a schema."""
    from tacit.data.files import read_table
    from tacit.data.schema import Schema
    from tacit.data.schema.doubts import doubts
    from tacit.data.schema.records import TableSource, federate
    from tacit.data.schema.values import repeated_rows, usable_rows
    from tacit.errors import RequestError

    if after is not None and schema is not None:
        raise RequestError(f"two schemas, {after} and --schema {schema}: give one")
    schema = after or schema
    if schema is None:
        raise RequestError(f"no schema to check {table} against: tacit schema check {table} schema.toml")
    if table.suffix == ".toml" and schema.suffix != ".toml":
        raise RequestError(f"the table comes first: tacit schema check {schema} {table}")
    described = Schema.read(schema)
    frame = read_table(table)
    source = TableSource(frame, str(table), None if described.client else "one client")
    # Ranges that are to be learned are checked against where they surely lie.
    found = federate([source], described.wide if described.open else described, name=table.stem)
    say(f"{table} fits {schema}. {found.describe()}.")
    say(f"Digest of the schema: {described.digest}")
    shared = _in_several(frame, described.person, described.client)
    if shared:
        say(
            f"{shared:,} persons have rows at several clients. Every promise is about the rows at one "
            "client: for their rows at all of them, the epsilons add up."
        )
    if more := _with_more_rows(frame, described):
        say(
            f"{more:,} persons have more than {described.rows} rows at a client, and {described.rows} of them "
            "are used. To use more, set rows in [person]: it needs no more noise."
        )
    for doubt in doubts(usable_rows(frame, described, str(table)), described):
        say(doubt)
    if copies := repeated_rows(frame, described):
        say(copies)
    if described.person is None and (overlooked := _overlooked(frame, described)):
        name, agree = overlooked
        say(
            f'{agree} If they are rows of one person, add [person] with column = "{name}": without it, the '
            "promise is to single rows."
        )
    if described.looked_at:
        say(f"Still to confirm before a run, then delete the line looked_at: {described.unconfirmed_words}.")


def _overlooked(frame: pd.DataFrame, schema: Schema) -> tuple[str, str] | None:
    """The column that seems to name persons, although the schema names none."""
    from tacit.data.frames import without_namesakes
    from tacit.data.schema.repeats import overlooked_persons

    frame = without_namesakes(frame.rename(columns=str), list(schema.used), "the table")
    dates = [column.name for column in schema.columns if column.type == "date"]
    others = frame.drop(columns=[] if schema.client is None else schema.client, errors="ignore")
    return overlooked_persons([name for name in others if name not in (schema.target.column, *dates)], others)


def _with_more_rows(frame: pd.DataFrame, schema: Schema) -> int:
    """How many persons have more rows at one client than are used."""
    if schema.person is None:
        return 0
    rows = frame.groupby([name for name in (schema.person, schema.client) if name is not None]).size()
    return int(rows.groupby(level=0).max().gt(schema.rows).sum())


def _in_several(frame: pd.DataFrame, person: str | None, client: str | None) -> int:
    """How many persons have rows at more than one client of the table."""
    if person is None or client is None:
        return 0
    return int((frame.groupby(person)[client].nunique() > 1).sum())
