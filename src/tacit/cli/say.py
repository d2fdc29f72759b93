"""Sentences on a terminal."""

from __future__ import annotations

import textwrap

import typer

_WIDTH = 80


def say(text: str, first: str = "", then: str = "", *, err: bool = False) -> None:
    """Print a text in lines of at most 80 characters. Paths and commands that are longer stay whole."""
    lines = textwrap.fill(
        text,
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
