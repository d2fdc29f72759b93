"""`tacit shuffler`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.say import say_of_a_party

HELP = """Shuffle the messages of a consortium's silos, from the shuffler's provisioned folder, until stopped.

The shuffler cannot read the messages. Run it where the server's operators have no access: the two together can
tell which message came from which silo."""


def shuffler(
    folder: Annotated[Path, typer.Argument(help="The folder made by [bold]tacit provision[/].")] = Path("."),
) -> None:
    """Run the shuffler."""
    from tacit.cli.silo import end_with_owner
    from tacit.deploy.flare.parties import require_flare, run_shuffler, stopping_in_order
    from tacit.deploy.party_folder import PartyFolder

    require_flare()
    party = PartyFolder.open(folder)
    end_with_owner()
    with stopping_in_order(), contextlib.suppress(KeyboardInterrupt):
        run_shuffler(party, say_of_a_party)
