"""A lock that lets one process at a time use a directory."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from tacit.errors import RequestError


@contextlib.contextmanager
def held(directory: Path, refusal: str) -> Iterator[None]:
    """Locks a directory; others get the `refusal` as an error. The operating system releases it when we die."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RequestError(f"{directory} is in use: {refusal}") from error
        yield
