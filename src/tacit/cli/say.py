"""Sentences on a terminal."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap

import typer

_WIDTH = 80
_LABEL = 10
"""Columns of the labels of rows."""

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys instead of showing them: all that control it but tabs and ends of lines, and
those that change the direction of writing."""


def printable(text: str) -> str:
    r"""A text from elsewhere, such as a column's name: what would command the terminal is spelled out.

    >>> print(printable("age\x1b[2J"))
    age\x1b[2J
    """
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def verbatim(text: str) -> str:
    """The same for texts that rich prints: brackets are no markup.

    >>> verbatim("weight [kg]")
    'weight \\\\[kg]'
    """
    from rich.markup import escape

    return escape(printable(text))


def print_data(text: str) -> None:
    """Print data: as they are for another program, but printable on a terminal."""
    print(printable(text) if sys.stdout.isatty() else text, end="")


def say(text: str, first: str = "", then: str = "", *, err: bool = False) -> None:
    """Print a text in lines of at most 80 characters. Paths and commands that are longer stay whole."""
    lines = textwrap.fill(
        printable(text),
        _WIDTH,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )
    typer.echo(lines, err=err)


def say_of_a_party(text: str, *, err: bool = False) -> None:
    """Print what a party of a deployment does; lines that continue one are indented."""
    say(text, then="  ", err=err)


def say_row(label: str, text: str, *, colour: str | None = None) -> None:
    """Print a text beside its label, in lines of at most 80 characters.

    >>> say_row("Sent", "781.8 kB per client")
    Sent      781.8 kB per client
    """
    margin = " " * _LABEL
    folded = textwrap.fill(
        printable(text),
        _WIDTH,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
    styled = typer.style(folded[_LABEL:], fg=colour) if colour else folded[_LABEL:]
    typer.echo(typer.style(label.ljust(_LABEL), bold=True) + styled)


def say_command(command: str) -> None:
    r"""Print a command for a shell, in lines that can be pasted together.

    >>> say_command("tacit run --data patients.csv --schema schema.toml --epsilon 4 --set algorithm.step=0.5")
      tacit run --data patients.csv --schema schema.toml --epsilon 4 \
        --set algorithm.step=0.5
    """
    words = shlex.split(printable(command))
    starts = [0, *(k for k, word in enumerate(words) if word.startswith("--"))]
    # An option stays beside its value.
    parts = [shlex.join(words[i:j]) for i, j in zip(starts, [*starts[1:], len(words)], strict=True)]
    lines = [f"  {parts[0]}"]
    for part in parts[1:]:
        longer = f"{lines[-1]} {part}"
        if len(longer) <= _WIDTH - len(" \\"):
            lines[-1] = longer
        else:
            lines.append(f"    {part}")
    typer.echo(" \\\n".join(lines))
