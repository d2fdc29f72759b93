"""A directory for one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from tacit.errors import RequestError


@contextlib.contextmanager
def held(directory: Path, refusal: str) -> Iterator[None]:
    """Keep others out of a directory, who are told why; the operating system lets go of it when we die."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RequestError(f"{directory} is in use: {refusal}") from error
        yield
