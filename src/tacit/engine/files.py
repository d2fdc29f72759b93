"""Atomic file writes (write aside, fsync, rename), and files of settings."""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tacit.errors import RequestError, reason


def write_atomically(
    path: Path, content: bytes | Iterable[bytes | memoryview[int]], *, mode: int = 0o644
) -> None:
    """Replaces a file in one step: a crash at any moment leaves the old content or the new, never a mixture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def toml_values(text: str, source: str) -> dict[str, Any]:
    """Parses TOML; error messages refer to the text as `source`."""
    try:
        # Some editors begin a file with a mark of its byte order.
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        # Not only TOMLDecodeError: also numbers with too many digits, and endlessly nested lists.
        raise RequestError(f"{source} is not valid TOML: {error}") from error


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Reads a TOML file; error messages call it `what`."""
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {what} {path}: {reason(error)}") from error
    return toml_values(text, f"{what} {path}")


def sync_directory(directory: Path) -> None:
    """Makes renames in a directory survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(directory: Path) -> None:
    """Deletes temporary files of a killed writer."""
    for part in directory.glob(".*.part"):
        part.unlink(missing_ok=True)
