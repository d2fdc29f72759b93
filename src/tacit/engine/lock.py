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
    new = [place for place in (directory, *directory.parents) if not place.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    lock = directory / ".lock"
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RequestError(f"{directory} is in use: {refusal}") from error
        try:
            yield
        except Exception:
            if new and list(directory.iterdir()) == [lock]:
                # What was refused leaves no directory behind.
                with contextlib.suppress(OSError):
                    lock.unlink()
                    for place in new:
                        place.rmdir()
            raise
