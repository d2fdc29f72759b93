"""What Ctrl-C says."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def continued_by_repeating() -> Iterator[None]:
    """Names the command to give again on Ctrl-C, where what is finished is kept and not repeated."""
    try:
        yield
    except KeyboardInterrupt:
        again = shlex.join(["tacit", *sys.argv[1:]])
        typer.echo(f"Stopped. What is finished is kept. To continue:\n  {again}", err=True)
        raise typer.Exit(130) from None
