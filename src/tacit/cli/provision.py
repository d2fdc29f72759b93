"""`tacit provision`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.say import say

HELP = """Make a folder for each party of a consortium, with certificates, the job, a policy to edit and a README.

Give each folder to its party and to nobody else: it holds that party's private keys."""


def provision(
    consortium_file: Annotated[Path, typer.Argument(help="The consortium in TOML; see docs/deploy.md.")],
    out: Annotated[
        Path | None, typer.Option(help="Where the folders go. [dim]Default: the consortium's name.[/]")
    ] = None,
) -> None:
    """Provision a consortium."""
    from tacit.deploy.consortium import Consortium
    from tacit.deploy.flare.parties import require_flare
    from tacit.deploy.party_folder import PartyFolder
    from tacit.deploy.provision import provision as write_folders

    require_flare()
    consortium = Consortium.read(consortium_file)
    folders = write_folders(consortium, out or Path(consortium.name))
    for party, folder in folders.items():
        verb = "silo . --data RECORDS" if party in consortium.job.sites else f"{party} ."
        say(f"{party}: {folder}")
        say(f"run there: tacit {verb}", first="  ")
    say(f"job {PartyFolder.open(folders['server']).job.digest}")
    if consortium.job.schema is not None:
        say(f"schema {consortium.job.schema.digest}")
        say("part of the job; a silo checks its table with tacit silo . --data FILE --check", first="  ")
    if consortium.job.schema is not None and (share := consortium.job.schema.test_share):
        say(
            f"[test] of the schema holds back {share:.0%} of the rows of every silo, on which a deployment "
            "measures nothing: set share = 0 to train on all rows."
        )
    say("All parties should compare this digest. It covers the keys that sign certificates.")
