"""A silo's ledger: a hash-chained record of everything it releases, written before the release leaves.

The lines are those of `tacit.deploy.ledger_account`. The number of lines and the last hash are also stored
separately, so an edited, removed or inserted line is detected.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tacit.deploy.ledger_account import FIRST_HASH, FORMAT, WAY_OUT, Account, checked
from tacit.engine.files import sync_directory
from tacit.errors import DataError, TacitError

_VERSION = 2
_TABLES = """
CREATE TABLE lines (number INTEGER PRIMARY KEY, body TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), lines INTEGER NOT NULL, hash TEXT NOT NULL);
"""


class LedgerBusyError(TacitError):
    """Another process has locked the ledger."""


class UnwritableLedgerError(DataError):
    """The disk does not take another line. The text has a path and the system's reason, and nothing else."""


class Ledger:
    """A ledger in one SQLite file that only its owner can read.

    Guarantee: once `Page.commit` has returned, the lines are on disk and survive a power cut (`synchronous` is
    EXTRA, no write-ahead log). Only one process at a time can hold a page. A file that is empty or not a ledger
    is refused and never taken for a new ledger; a new ledger is created completely or not at all.
    """

    def __init__(self, path: Path, *, busy_seconds: float = 30.0) -> None:
        """Open a ledger, or create one if there is no file. Every line is read and checked.

        path: the SQLite file.
        busy_seconds: how long to wait for another process that has locked it.
        """
        self._path = path
        self._busy_seconds = busy_seconds
        self._known = Account()
        if not path.exists():
            with _clear_errors(path):
                _create(path)
        with self.page():
            pass

    @property
    def path(self) -> Path:
        """The path of the SQLite file."""
        return self._path

    @contextlib.contextmanager
    def page(self) -> Iterator[Page]:
        """Lock the ledger for this process. Lines that are not committed within the block are discarded."""
        with contextlib.ExitStack() as stack:
            with _clear_errors(self._path):
                connection = stack.enter_context(_connected(self._path, self._busy_seconds))
                connection.execute("PRAGMA journal_mode = DELETE")
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("BEGIN IMMEDIATE")
                _check_version(connection, self._path)
                self._known = _read_on(connection, self._known)
            yield Page(connection, self._known, self._path)

    def export(self) -> bytes:
        """All lines, one JSON object each: body and hash."""
        with self.page() as page:
            return page.export()


class Page:
    """One transaction of a ledger."""

    def __init__(self, connection: sqlite3.Connection, account: Account, path: Path) -> None:
        self.connection = connection
        self.account = account
        self._path = path

    def export(self) -> bytes:
        """All lines, one JSON object each: body and hash."""
        rows = self.connection.execute("SELECT body, hash FROM lines ORDER BY number").fetchall()
        return b"".join(json.dumps({"body": body, "hash": hash}).encode() + b"\n" for body, hash in rows)

    def hash_at(self, lines: int) -> str | None:
        """The last hash of the ledger when it had this many lines; None if it never had that many."""
        return _hash_at(self.connection, lines)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line. It is not on disk until `commit`."""
        body = json.dumps(line, sort_keys=True, allow_nan=False)
        account = self.account.after(body)
        with _clear_errors(self._path):
            self.connection.execute("INSERT INTO lines VALUES (?, ?, ?)", (account.lines, body, account.hash))
            self.connection.execute("UPDATE head SET lines = ?, hash = ?", (account.lines, account.hash))
        self.account = account

    def commit(self) -> None:
        """Write the added lines to disk."""
        with _clear_errors(self._path):
            self.connection.execute("COMMIT")


def read_account(path: Path) -> Account:
    """Read a ledger's account without changing it; a silo may be using the ledger at the same time."""
    with _clear_errors(path), _connected(path, 5.0) as connection:
        connection.execute("BEGIN")
        _check_version(connection, path)
        return _read_on(connection, Account())


def read_hash(path: Path, lines: int) -> str | None:
    """What `Page.hash_at` says of a ledger, read in the same way."""
    with _clear_errors(path), _connected(path, 5.0) as connection:
        return _hash_at(connection, lines)


def _hash_at(connection: sqlite3.Connection, lines: int) -> str | None:
    if lines == 0:
        return FIRST_HASH
    rows = connection.execute("SELECT hash FROM lines WHERE number = ?", (lines,)).fetchall()
    return str(rows[0][0]) if rows else None


@contextlib.contextmanager
def _connected(path: Path, busy_seconds: float) -> Iterator[sqlite3.Connection]:
    # Read and write, but never create: a missing file must not reappear empty.
    address = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(address, uri=True, timeout=busy_seconds, isolation_level=None)
    with contextlib.closing(connection):
        yield connection


@contextlib.contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """Turn any SQLite error into an error that says what to do."""
    try:
        yield
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        text = str(error)
        if "locked" in text:
            raise LedgerBusyError(f"{path} is in use by another process") from error
        if isinstance(error, OSError) or any(word in text for word in ("full", "readonly", "I/O")):
            raise UnwritableLedgerError(
                f"{path} cannot be written: {text}. Nothing was released. Free disk space or fix the permissions "
                "of the directory, then start again"
            ) from error
        if not path.exists():
            raise DataError(f"{path} is gone. {WAY_OUT}") from error
        raise DataError(f"{path} is damaged or not a ledger of tacit: {text}. {WAY_OUT}") from error


def _create(path: Path) -> None:
    """Create a ledger without lines in a temporary directory, then put it in place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".{path.name}.*.part"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".part", dir=path.parent) as aside:
        new = Path(aside) / path.name
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with _connected(new, 0.0) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("BEGIN")
            for statement in filter(str.strip, _TABLES.split(";")):
                connection.execute(statement)
            connection.execute("INSERT INTO head VALUES (1, 0, ?)", (FIRST_HASH,))
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("COMMIT")
        # Linked, because a rename would replace a ledger that another process has created meanwhile.
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
    sync_directory(path.parent)


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'head'").fetchall():
        raise DataError(f"{path} is empty, but a ledger never is. {WAY_OUT}")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != _VERSION:
        raise DataError(
            f"{path} is from another version of tacit, which charged runs differently; {FORMAT} is read here. "
            "Continue with that version, or provision a new folder and set the epsilon in its policy to what may "
            "still be spent"
        )


def _read_on(connection: sqlite3.Connection, known: Account) -> Account:
    """The account of all lines, given the account of those that were already read."""
    head = connection.execute("SELECT lines, hash FROM head").fetchall()
    rows = connection.execute(
        "SELECT number, body, hash FROM lines WHERE number >= ? ORDER BY number", (max(1, known.lines),)
    ).fetchall()
    if known.lines and (not rows or rows.pop(0)[2] != known.hash):
        raise DataError(f"the ledger was changed: lines that were read earlier are gone. {WAY_OUT}")
    account = known
    for number, body, hash in rows:
        account = checked(account, body, hash)
        if account.lines != number:
            raise DataError(f"line {account.lines} of the ledger is missing. {WAY_OUT}")
    if head != [(account.lines, account.hash)]:
        raise DataError(
            f"the ledger was changed: its {account.lines} lines are not those that its head states. {WAY_OUT}"
        )
    return account
