"""`tacit shuffler`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

HELP = """Mix the messages of a consortium's silos in the shuffler's provisioned folder, until stopped.

It cannot read them. Run it where the server's people have no access: the two together know whose is whose."""


def shuffler(
    folder: Annotated[Path, typer.Argument(help="Its folder from [bold]tacit provision[/].")] = Path("."),
) -> None:
    """Run the shuffler."""
    from tacit.cli.silo import end_with_owner
    from tacit.deploy.flare.parties import require_flare, run_shuffler, stopping_in_order
    from tacit.deploy.provision import PartyFolder

    require_flare()
    party = PartyFolder.open(folder)
    end_with_owner()
    with stopping_in_order(), contextlib.suppress(KeyboardInterrupt):
        run_shuffler(party, typer.echo)
