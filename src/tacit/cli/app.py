"""`tacit`: the application and its exit codes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from tacit._version import __version__
from tacit.cli import (
    account,
    audit,
    bench,
    check_label,
    compare,
    deploy,
    list_names,
    plan,
    predict,
    provision,
    reproduce,
    run,
    schema,
    server,
    shuffler,
    silo,
    theory,
    verify,
)
from tacit.cli.options import flowing
from tacit.cli.other_words import Commands
from tacit.errors import RequestError, TacitError

app = typer.Typer(
    name="tacit",
    cls=Commands,
    help="Federated learning in which nobody has to trust the server.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"tacit {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ and context.invoked_subcommand != "run":
        raise RequestError("torchrun divides one simulation, with `tacit run`; other commands run without it")


def _add(group: str, name: str, text: str, command: Callable[..., None], **settings: Any) -> None:
    """Adds a command to the application, in one of the groups that `tacit --help` shows."""
    app.command(name, help=flowing(text), rich_help_panel=group, **settings)(command)


_TRAIN, _CHECK, _DEPLOY, _PAPERS = "Train and compare", "Check privacy", "Deploy", "Papers and speed"

_add(_TRAIN, "run", run.HELP, run.run)
_add(_TRAIN, "plan", plan.HELP, plan.plan)
_add(_TRAIN, "compare", compare.HELP, compare.compare)
app.add_typer(schema.app, name="schema", rich_help_panel=_TRAIN)
_add(_TRAIN, "predict", predict.HELP, predict.predict)
_add(_TRAIN, "list", list_names.HELP, list_names.list_names)
_add(_CHECK, "account", account.HELP, account.account)
_add(_CHECK, "audit", audit.HELP, audit.audit)
_add(_CHECK, "check-label", check_label.HELP, check_label.check_label, context_settings=check_label.CONTEXT)
_add(_DEPLOY, "deploy", deploy.HELP, deploy.deploy)
_add(_DEPLOY, "provision", provision.HELP, provision.provision)
_add(_DEPLOY, "server", server.HELP, server.server)
_add(_DEPLOY, "silo", silo.HELP, silo.silo)
_add(_DEPLOY, "shuffler", shuffler.HELP, shuffler.shuffler)
_add(_DEPLOY, "verify", verify.HELP, verify.verify)
_add(_PAPERS, "reproduce", reproduce.HELP, reproduce.reproduce)
_add(_PAPERS, "theory", theory.HELP, theory.theory)
_add(_PAPERS, "bench", bench.HELP, bench.bench)


def main() -> None:
    """Run the command. Exit code: 0 on success, 2 if the request was wrong, 1 for any other failure."""
    try:
        app()
    except RequestError as error:
        _say(str(error))
        sys.exit(2)
    except TacitError as error:
        _say(str(error))
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output is gone, so there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _say(f"{error.strerror}: free some, or write elsewhere with --out")
        else:
            _say(f"cannot read or write {error.filename or 'a file'}: {error.strerror or error}")
        sys.exit(1)


def _say(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from tacit.cli.say import printable

    # Of torchrun's processes, the first one is the one that people read.
    process = os.environ.get("RANK", "0") if "TORCHELASTIC_RUN_ID" in os.environ else "0"
    where = "" if process == "0" else f"process {process}: "
    Console(stderr=True).print(Text.assemble((f"{where}error: ", "bold red"), printable(message)))
