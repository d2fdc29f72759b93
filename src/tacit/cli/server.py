"""`tacit server`."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options as o
from tacit.cli.say import say, say_of_a_party
from tacit.cli.verify import silo_promises

if TYPE_CHECKING:
    from tacit.deploy.flare.backend import Ended
    from tacit.deploy.party_folder import PartyFolder
    from tacit.deploy.server import Finished
    from tacit.deploy.status import Board

HELP = """Run the server of a consortium from its provisioned folder until the job is done.

If it is restarted after a crash, it continues after the last finished round."""

StatusPort = Annotated[
    int,
    typer.Option(show_default=False, help="Port of the status page on loopback. [dim]Default: a free one.[/]"),
]


def server(
    folder: Annotated[Path, typer.Argument(help="The folder made by [bold]tacit provision[/].")] = Path("."),
    status_port: StatusPort = 0,
    as_json: o.Json = False,
) -> None:
    """Run the server."""
    from tacit.deploy.flare.parties import require_flare, stopping_in_order
    from tacit.deploy.party_folder import PartyFolder

    require_flare()
    party = PartyFolder.open(folder)
    with stopping_in_order():
        finished = watched(party, status_port, quiet=as_json)
    show_finished(party, finished, as_json)


def watched(party: PartyFolder, status_port: int, quiet: bool, ended: Ended = dict) -> Finished:
    """Run a server with a status table in the terminal and a status page on loopback."""
    from tacit.deploy.flare.parties import new_board, run_server
    from tacit.deploy.status import serving

    board = new_board(party)
    with serving(board, status_port) as address:
        if not quiet:
            typer.echo(f"status page: {address}", err=True)
        with _table(board, quiet) as say:
            return run_server(party, board, say, ended)


@contextlib.contextmanager
def _table(board: Board, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show the status table on a terminal. Yields how to report problems where there is no table to show them."""
    if quiet or not sys.stderr.isatty():
        yield partial(say_of_a_party, err=True)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(board, console=Console(stderr=True), refresh_per_second=2):
        yield lambda text: None


def show_finished(party: PartyFolder, finished: Finished, as_json: bool) -> None:
    """Print the result of a run, taken from its certificate."""
    from tacit.report.words import corrected_words

    certificate: dict[str, Any] = json.loads(finished.certificate)
    silos = {site: silo for site, silo in certificate["silos"].items() if silo is not None}
    proof, model = party.state / "certificate.json", party.state / "model.safetensors"
    summary = {
        "run": finished.run,
        "rounds": certificate["rounds"],
        "certificate": str(proof),
        "model": str(model),
        "largest_epsilon": certificate["largest_epsilon"],
        "insecure_reproducible": certificate["insecure_reproducible"],
        "problems": dict(finished.problems),
        **({} if finished.correction is None else {"correction": finished.correction}),
        "silos": {
            site: {"epsilon": s["epsilon"], "rounds_answered": s["rounds_answered"]} for site, s in silos.items()
        },
    }
    if as_json:
        print(json.dumps(summary))
        return
    say(f"run {finished.run}: {summary['rounds']} rounds; model in {_from_here(model)}")
    for promise in silo_promises(silos):
        # In everyday words; `tacit verify` has the formal sentence.
        say(promise.partition(" Formally: ")[0])
    if finished.correction is not None:
        say(f"corrected: {corrected_words(finished.correction)}")
    for site in sorted(set(party.job.sites) - silos.keys()):
        took_part = finished.answered.get(site, 0)
        say(f"{site}: {'sent no certificate; ask the silo for it' if took_part else 'took no part'}")
    if finished.problems:
        say(f"problems seen: {', '.join(f'{what} x{n}' for what, n in finished.problems.items())}")
    # On a line of its own, however long: it is there to be copied.
    typer.echo(f"Check it with:\n  {shlex.join(['tacit', 'verify', _from_here(proof)])}")


def _from_here(path: Path) -> str:
    """The path as somebody in the current directory would write it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
