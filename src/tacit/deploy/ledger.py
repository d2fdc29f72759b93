"""A silo's ledger: what it has released, written before it leaves, in lines that are chained by hash.

A line is a JSON object. Its hash covers its text and the hash of the line before, and the number of lines and the
last hash stand once more by themselves, so that a line that is edited, removed or inserted shows. A line of
kind "open" begins a run. Its `event` is what the whole planned run is to an accountant; it is charged at once,
and in full, however far the run gets. A line of kind "release" says what is about to leave: the next of at most
`rounds_planned` releases of its run. What a ledger costs, `tacit.privacy.accountant.filter` says.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from tacit.errors import DataError, TacitError, count
from tacit.privacy import events

FORMAT = "tacit-ledger-2"
_VERSION = 2
_FIRST_HASH = hashlib.sha256(FORMAT.encode()).hexdigest()
_TABLES = """
CREATE TABLE lines (number INTEGER PRIMARY KEY, body TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), lines INTEGER NOT NULL, hash TEXT NOT NULL);
"""

WAY_OUT = (
    "What has left this silo can no longer be counted, so nothing more may leave it. Put the ledger back as it "
    "was when the silo last stopped; an older copy will not do. If it is lost, provision a new folder, and set "
    "the epsilon in its policy to what may still be spent"
)
"""What to do about a ledger that is not what it was."""


class LedgerBusyError(TacitError):
    """Another process holds the ledger."""


@dataclass(frozen=True)
class LedgerRun:
    """What a ledger says about one run."""

    opened: Mapping[str, Any]
    releases: int = 0
    last: Mapping[str, Any] | None = None
    """the line of the newest release"""

    @property
    def event(self) -> DpEvent:
        """The whole planned run: what is charged, however far it got."""
        return events.from_dict(self.opened["event"])

    @property
    def planned(self) -> int:
        """How many releases it may have."""
        return int(self.opened["rounds_planned"])


@dataclass(frozen=True)
class Account:
    """What a ledger adds up to."""

    lines: int = 0
    hash: str = _FIRST_HASH
    runs: tuple[tuple[str, LedgerRun], ...] = ()

    def run(self, run: str) -> LedgerRun | None:
        """One run, or None if it was never opened."""
        return dict(self.runs).get(run)

    @property
    def adversaries(self) -> set[str]:
        """Against whom its runs promise something."""
        return {str(account.opened.get("adversary")) for _, account in self.runs}

    @property
    def units(self) -> set[str]:
        """Whom its runs protect."""
        return {str(account.opened.get("unit")) for _, account in self.runs}

    @property
    def told_sizes(self) -> bool:
        """Whether a run that protected whole clients has told how many records there are."""
        opened = [account.opened for _, account in self.runs]
        return any(one.get("unit") == "client" and "records" in one for one in opened)

    def events(self, *, job: str | None = None) -> list[DpEvent]:
        """The planned events of all runs, or of one job's, in the order in which they were opened."""
        return [account.event for _, account in self.runs if job in (None, account.opened.get("job"))]

    def event(self, epsilon: float) -> DpEvent:
        """All runs together, under a policy of `epsilon`."""
        return events.chosen_runs(self.events(), epsilon)

    def after(self, body: str) -> Account:
        """The account after one more line."""
        line = json.loads(body)
        runs, known = dict(self.runs), self.run(line["run"])
        if line["kind"] == "open" and known is None:
            events.from_dict(line["event"])
            count("rounds_planned", line["rounds_planned"])
            runs[line["run"]] = LedgerRun(line)
        elif line["kind"] == "release" and known is not None and _is_next(line["releases"], known):
            runs[line["run"]] = replace(known, releases=line["releases"], last=line)
        else:
            raise DataError(f"line {self.lines + 1} of the ledger does not follow from the lines before")
        return Account(self.lines + 1, chain_hash(self.hash, body), tuple(runs.items()))


def _is_next(releases: int, run: LedgerRun) -> bool:
    return releases == run.releases + 1 and releases <= run.planned


def chain_hash(before: str, body: str) -> str:
    """The hash of a line that comes after a line of hash `before`."""
    return hashlib.sha256(f"{before}\n{body}".encode()).hexdigest()


class Ledger:
    """The ledger in one SQLite file, which only its owner can read.

    Guarantee: what `Page.commit` has returned from is on the disk, and survives a power cut (`synchronous` is
    EXTRA, no write-ahead log). Whoever holds a page holds the ledger alone. A file that is not a ledger, or an
    empty one, is refused and never taken for a new ledger; a new one is there in full or not at all.
    """

    def __init__(self, path: Path, *, busy_seconds: float = 30.0) -> None:
        """Open a ledger, or begin one where there is no file; every line is read and checked.

        path: of the SQLite file.
        busy_seconds: how long to wait for another process that holds it.
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
        """Where it lies."""
        return self._path

    @contextlib.contextmanager
    def page(self) -> Iterator[Page]:
        """The ledger for one process alone; what is not committed in the block is as if it had never been."""
        with contextlib.ExitStack() as stack:
            with _clear_errors(self._path):
                connection = stack.enter_context(_connected(self._path, self._busy_seconds))
                connection.execute("PRAGMA journal_mode = DELETE")
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("BEGIN IMMEDIATE")
                _check_version(connection, self._path)
                self._known = _read_on(connection, self._known)
            yield Page(connection, self._known)

    def export(self) -> bytes:
        """All lines, one JSON object each: body and hash."""
        with self.page() as page:
            return page.export()


class Page:
    """One transaction of a ledger."""

    def __init__(self, connection: sqlite3.Connection, account: Account) -> None:
        self.connection = connection
        self.account = account

    def export(self) -> bytes:
        """All lines, one JSON object each: body and hash."""
        rows = self.connection.execute("SELECT body, hash FROM lines ORDER BY number").fetchall()
        return b"".join(json.dumps({"body": body, "hash": hash}).encode() + b"\n" for body, hash in rows)

    def hash_at(self, lines: int) -> str | None:
        """The hash that the ledger ended in when it had so many lines; None if it never had."""
        if lines == 0:
            return _FIRST_HASH
        rows = self.connection.execute("SELECT hash FROM lines WHERE number = ?", (lines,)).fetchall()
        return str(rows[0][0]) if rows else None

    def append(self, line: Mapping[str, Any]) -> None:
        """One more line, not yet on the disk."""
        body = json.dumps(line, sort_keys=True, allow_nan=False)
        account = self.account.after(body)
        self.connection.execute("INSERT INTO lines VALUES (?, ?, ?)", (account.lines, body, account.hash))
        self.connection.execute("UPDATE head SET lines = ?, hash = ?", (account.lines, account.hash))
        self.account = account

    def commit(self) -> None:
        """Put the lines on the disk."""
        self.connection.execute("COMMIT")


def read_account(path: Path) -> Account:
    """The account of a ledger that is only looked at, also while a silo is at work on it."""
    with _clear_errors(path), _connected(path, 5.0) as connection:
        connection.execute("BEGIN")
        _check_version(connection, path)
        return _read_on(connection, Account())


@contextlib.contextmanager
def _connected(path: Path, busy_seconds: float) -> Iterator[sqlite3.Connection]:
    # Read and write, but never create: a file that is gone must not come back empty.
    address = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(address, uri=True, timeout=busy_seconds, isolation_level=None)
    with contextlib.closing(connection):
        yield connection


@contextlib.contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """Whatever SQLite has to complain about, as an error that says what to do."""
    try:
        yield
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        text = str(error)
        if "locked" in text:
            raise LedgerBusyError(f"{path} is in use by another process") from error
        if isinstance(error, OSError) or any(word in text for word in ("full", "readonly", "I/O")):
            raise DataError(
                f"{path} cannot be written: {text}. Nothing was released. Make room, or see to the rights of the "
                "directory, and start again"
            ) from error
        if not path.exists():
            raise DataError(f"{path} is gone. {WAY_OUT}") from error
        raise DataError(f"{path} is damaged, or not a ledger of tacit: {text}. {WAY_OUT}") from error


def _create(path: Path) -> None:
    """A ledger without lines, made aside and put in its place in one step."""
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
            connection.execute("INSERT INTO head VALUES (1, 0, ?)", (_FIRST_HASH,))
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("COMMIT")
        # Linked, because a rename would replace what another process has begun meanwhile.
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'head'").fetchall():
        raise DataError(f"{path} is empty, which no ledger ever is. {WAY_OUT}")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != _VERSION:
        raise DataError(
            f"{path} is of another version of tacit, which charged runs in another way: {FORMAT} is read here. "
            "Go on with that version; or provision a new folder, and set the epsilon in its policy to what may "
            "still be spent"
        )


def _read_on(connection: sqlite3.Connection, known: Account) -> Account:
    """The account of all lines, of which the first were read before."""
    head = connection.execute("SELECT lines, hash FROM head").fetchall()
    rows = connection.execute(
        "SELECT number, body, hash FROM lines WHERE number >= ? ORDER BY number", (max(1, known.lines),)
    ).fetchall()
    if known.lines and (not rows or rows.pop(0)[2] != known.hash):
        raise DataError(f"the ledger was changed: lines that were read before are no longer there. {WAY_OUT}")
    account = known
    for number, body, hash in rows:
        account = _checked(account, body, hash)
        if account.lines != number:
            raise DataError(f"line {account.lines} of the ledger is missing. {WAY_OUT}")
    if head != [(account.lines, account.hash)]:
        raise DataError(
            f"the ledger was changed: it has {account.lines} lines, not those that it says it has. {WAY_OUT}"
        )
    return account


def _checked(account: Account, body: object, hash: object) -> Account:
    try:
        after = account.after(str(body))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"line {account.lines + 1} of the ledger is not one: {error}") from error
    if hash != after.hash:
        raise DataError(
            f"line {after.lines} of the ledger was changed: its hash does not follow from the line before. "
            f"{WAY_OUT}"
        )
    return after


def read_export(content: bytes) -> Account:
    """The account of an exported ledger, whose chain is checked."""
    account = Account()
    for text in content.decode(errors="replace").splitlines():
        try:
            line = json.loads(text)
            body, hash = line["body"], line["hash"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"line {account.lines + 1} of the ledger is not one") from error
        account = _checked(account, body, hash)
    return account
