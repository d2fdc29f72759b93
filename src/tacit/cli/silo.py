"""`tacit silo`."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.say import say, say_of_a_party

if TYPE_CHECKING:
    from tacit.deploy.party_folder import PartyFolder

HELP = """Take part in a consortium with this silo's records, from its provisioned folder, until stopped.

Whatever the server asks, nothing leaves the silo that its own policy.toml does not allow.

[bold]tacit silo . --data FILE --check[/] checks the file and sends nothing.

[bold]tacit silo . --status[/] shows how much of the policy's budget each run has spent, and what is left."""


def silo(
    folder: Annotated[Path, typer.Argument(help="The folder made by [bold]tacit provision[/].")] = Path("."),
    data: Annotated[
        str, typer.Option(help="A .csv, .parquet, .npz or .svmlight file, or a Python module:function.")
    ] = "",
    target: Annotated[str | None, typer.Option(help="The column (for .npz, the array) to predict.")] = None,
    prepared: Annotated[
        bool, typer.Option("--prepared", help="The records are already prepared; use them as they are.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Only check that the data fit the job and its schema; nothing is sent."),
    ] = False,
    status: Annotated[
        bool,
        typer.Option("--status", help="Show what is spent of the policy's budget and what is left; no --data."),
    ] = False,
) -> None:
    """Run a silo."""
    if status:
        show_status(folder)
        return
    from tacit.deploy.flare.parties import refuse_silo, require_flare, run_silo, stopping_in_order
    from tacit.deploy.party_folder import PartyFolder
    from tacit.deploy.seam import Code
    from tacit.errors import DataError, RequestError

    if not check:
        require_flare()
    if not data:
        raise RequestError("--data is missing: give a file with this silo's records, or module:function")
    party = PartyFolder.open(folder)
    if check:
        check_records(party, data, target, prepared)
        return
    end_with_owner()
    from tacit.deploy.records import own_records

    with stopping_in_order(), contextlib.suppress(KeyboardInterrupt):
        try:
            records = own_records(data, party.job, target=target, prepared=prepared)
        except DataError as error:
            if party.job.schema is None or party.party not in party.job.sites:
                raise
            # The server is told a code, so that nobody waits for this silo.
            say(f"REFUSED: {error}. Nothing is sent or spent; correct the table and start again.", err=True)
            refuse_silo(party, Code.OTHER_SCHEMA, say_of_a_party)
        else:
            run_silo(party, records, say_of_a_party)


def check_records(party: PartyFolder, data: str, target: str | None, prepared: bool) -> None:
    """Check records against the job, its schema and the silo's policy; nothing is sent or written."""
    from tacit.data.schema.doubts import doubts
    from tacit.data.schema.values import repeated_rows, usable_rows
    from tacit.deploy.guard import admit
    from tacit.deploy.policy import Policy
    from tacit.deploy.records import own_records, own_table
    from tacit.deploy.spending import exposure
    from tacit.federation import Federation
    from tacit.privacy.promises.rounding import up_to

    _check_silo(party)
    records = own_records(data, party.job, target=target, prepared=prepared)
    terms = admit(party.job, Policy.from_toml(party.policy_text()), party.party, records)
    federation = records if isinstance(records, Federation) else records.wide
    say(f"{data} fits the job. {replace(federation, name=party.party).describe()}")
    cost, budget = up_to(terms.epsilon, 4), terms.policy.epsilon
    say(f"A run would cost epsilon {cost} of the policy's {budget:g}. Nothing was sent.")
    if exposed := exposure(terms):
        say(exposed)
    schema = None if prepared else party.job.schema
    if schema is None:
        return
    table = own_table(data)
    for doubt in doubts(usable_rows(table, schema, data), schema):
        say(doubt)
    if copies := repeated_rows(table, schema):
        say(copies)


def show_status(folder: Path) -> None:
    """Print what a silo has spent, and what is left."""
    from tacit.cli.show_account import show_spending
    from tacit.deploy.party_folder import PartyFolder
    from tacit.deploy.spending import spending_in

    party = PartyFolder.open(folder)
    _check_silo(party)
    show_spending(party.party, spending_in(party.folder))


def _check_silo(party: PartyFolder) -> None:
    from tacit.errors import RequestError

    if party.party not in party.job.sites:
        raise RequestError(f"{party.folder} is not a silo's folder; only silos have records and a budget")


def end_with_owner() -> None:
    """End this process when the `tacit deploy --local` that started it ends."""
    from tacit.deploy.flare.lifeline import hold_lifeline
    from tacit.deploy.flare.relay import SOCKET_VARIABLE

    if SOCKET_VARIABLE in os.environ:
        hold_lifeline()
