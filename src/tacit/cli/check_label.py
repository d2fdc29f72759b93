"""`tacit check-label`."""

from __future__ import annotations

import json
import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import complete
from tacit.cli import options as o
from tacit.cli.say import say
from tacit.errors import RequestError

if TYPE_CHECKING:
    from tacit.privacy.labels import LabelVerdict

HELP = """Say what epsilon a configuration of Flower, NVIDIA FLARE or Opacus really gives, and against whom.

NAME is what the tool calls it: LocalDpMod, SVTPrivacy, Opacus, ... (without NAME: a list), or a file with
[bold]mechanism = "NAME"[/] and its settings in TOML or JSON. The settings are options under the tool's own names:
[bold]tacit check-label LocalDpMod --clipping-norm 1 --sensitivity 1 --epsilon 1 --delta 1e-5 --rounds 10[/].
The exit code is 1 if the label is false or nothing is protected."""

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings are named by the mechanism, so the command line cannot know them."""


_WIDTH = 76
"""Characters of a line in the list of mechanisms, without its indentation."""


def check_label(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(help="A mechanism, or a TOML or JSON file.", autocompletion=complete.mechanisms),
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Check a label."""
    from tacit.privacy.labels import MECHANISMS, settings_of
    from tacit.privacy.labels import check_label as checked

    if name is None:
        if as_json:
            print(json.dumps({known: settings_of(known) for known in MECHANISMS}))
            return
        for known in MECHANISMS:
            options = {f"--{key.replace('_', '-')}": needed for key, needed in settings_of(known).items()}
            needs = [key for key, needed in options.items() if needed]
            takes = [key for key in options if key not in needs]
            typer.echo(known)
            for words in (
                f"needs {', '.join(needs) or 'nothing'}",
                f"may have {', '.join(takes)}" if takes else "",
            ):
                for line in textwrap.wrap(words, _WIDTH, break_on_hyphens=False):
                    typer.echo(f"  {line}")
        return
    configuration = {**_start(name), **_options(context.args)}
    verdict = checked(configuration)
    if as_json:
        print(json.dumps(verdict.to_dict()))
    else:
        _show(verdict)
    if verdict.holds is False or not verdict.private:
        raise typer.Exit(1)


def _start(name: str) -> dict[str, Any]:
    """The configuration in a file, or the name of a mechanism alone."""
    path = Path(name)
    if path.suffix not in (".toml", ".json"):
        if path.is_file():
            raise RequestError(f"{path}: a configuration is a .toml or .json file")
        return {"mechanism": name}
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if path.suffix == ".toml":
        from tacit.engine.files import toml_values

        return toml_values(text, str(path))
    try:
        values = json.loads(text)
    except ValueError as error:
        raise RequestError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise RequestError(f"{path} must hold one JSON object with a mechanism and its settings")
    return values


def _options(words: list[str]) -> dict[str, Any]:
    """`--noise-multiplier 1.1`, `--noise-multiplier=1.1`, or `--no-poisson-sampling`, as settings."""
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise RequestError(f"{word!r} is not an option; a setting is given as --name value")
        key, equals, value = word[2:].partition("=")
        if not equals and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        elif not equals:
            key, value = (key[3:], "false") if key.startswith("no-") else (key, "true")
        found[key.replace("-", "_")] = _value(value)
    return found


def _value(text: str) -> Any:
    """A number in any usual notation (.01 is not TOML), another TOML value, or a plain word."""
    from tacit.engine.recipe import parse_setting

    value = parse_setting(f"value={text}")[1]
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _show(verdict: LabelVerdict) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from tacit.privacy.promises.rounding import MOST_DIGITS, up_to

    console = Console()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for view in verdict.views:
        private = math.isfinite(view.epsilon)
        epsilon = f"[bold]{up_to(view.epsilon)}[/]" if private else "[bold red]no protection[/]"
        terms = f"per {view.unit}, {view.adjacency}, delta {up_to(view.delta, MOST_DIGITS)}; " if private else ""
        table.add_row(epsilon, f"against {view.against}\n[dim]{terms}{escape(view.because)}[/]")
    console.print(f"[bold]{verdict.mechanism}[/] gives epsilon")
    console.print(table)
    if verdict.holds is not None:
        word = "[green]holds[/]" if verdict.holds else "[bold red]is false[/]"
        console.print(f"The label, epsilon {verdict.claimed:g}, {word}.")
    for finding in verdict.findings:
        say(f"{finding.what} {finding.change}", "- ", "  ")
