"""A silo's ledger: a hash-chained record of everything it releases, written before the release leaves.

A line is a JSON object. Its hash covers its text and the hash of the previous line. The number of lines and the
last hash are also stored separately, so an edited, removed or inserted line is detected. A line of kind "open"
starts a run. Its `event` describes the whole planned run to the accountant; it is charged at once and in full,
however far the run gets. A line of kind "release" records what is about to leave: the next of at most
`rounds_planned` releases of its run. A line of kind "evaluate" holds the noisy sums of the run's evaluation, and
the digest of the model that was evaluated. Lines of kind "range" hold the noisy sums of a search for ranges, one
for each step that was answered, and a line of kind "ranges" what it found.
`tacit.privacy.accountant.filter` computes what a ledger costs.
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
from tacit.side.ranges import STEPS

FORMAT = "tacit-ledger-2"
_VERSION = 2
_FIRST_HASH = hashlib.sha256(FORMAT.encode()).hexdigest()
_TABLES = """
CREATE TABLE lines (number INTEGER PRIMARY KEY, body TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), lines INTEGER NOT NULL, hash TEXT NOT NULL);
"""

WAY_OUT = (
    "What has left this silo can no longer be counted, so nothing more may leave it. Restore the ledger as it "
    "was when the silo last stopped; an older copy will not do. If it is lost, provision a new folder and set "
    "the epsilon in its policy to what may still be spent"
)
"""What to do about a ledger that is missing or has been changed."""


class LedgerBusyError(TacitError):
    """Another process has locked the ledger."""


@dataclass(frozen=True)
class LedgerRun:
    """What a ledger says about one run."""

    opened: Mapping[str, Any]
    releases: int = 0
    last: Mapping[str, Any] | None = None
    """the line of the newest release"""
    evaluated: Mapping[str, Any] | None = None
    """the line of the evaluation, of which a run has one at most"""
    searched: Mapping[str, Any] | None = None
    """the line of the last step of a search for ranges that was answered"""
    learned: Mapping[str, Any] | None = None
    """the line with the ranges that were found, which the run then keeps"""

    @property
    def newest(self) -> Mapping[str, Any] | None:
        """The line of the last round that was answered. An evaluation through a sum is a round after the last."""
        through_sum = self.evaluated is not None and "round" in self.evaluated
        return self.evaluated if through_sum else self.last

    @property
    def event(self) -> DpEvent:
        """The event of the whole planned run, which is charged however far the run got."""
        return events.from_dict(self.opened["event"])

    @property
    def planned(self) -> int:
        """The most releases that the run may have."""
        return int(self.opened["rounds_planned"])


@dataclass(frozen=True)
class Account:
    """The contents of a ledger: its length, last hash and runs."""

    lines: int = 0
    hash: str = _FIRST_HASH
    runs: tuple[tuple[str, LedgerRun], ...] = ()

    def run(self, run: str) -> LedgerRun | None:
        """One run, or None if it was never opened."""
        return dict(self.runs).get(run)

    @property
    def adversaries(self) -> set[str]:
        """The adversaries against whom its runs make promises."""
        return {str(account.opened.get("adversary")) for _, account in self.runs}

    @property
    def colluding(self) -> int | None:
        """The fewest silos whose help to the server its runs with sums withstand; None without such runs."""
        return min((one.opened["colluding"] for _, one in self.runs if "colluding" in one.opened), default=None)

    @property
    def units(self) -> set[str]:
        """The units that its runs protect: records or whole clients."""
        return {str(account.opened.get("unit")) for _, account in self.runs}

    @property
    def told_sizes(self) -> bool:
        """Whether a run that protected whole clients has revealed the number of records."""
        opened = [account.opened for _, account in self.runs]
        return any(one.get("unit") == "client" and "records" in one for one in opened)

    def events(self, *, job: str | None = None) -> list[DpEvent]:
        """The planned events of all runs (or only of one job's runs), in the order in which they were opened."""
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
        elif line["kind"] == "range" and known is not None and _is_next_step(line["step"], known):
            runs[line["run"]] = replace(known, searched=line)
        elif line["kind"] == "ranges" and known is not None and known.learned is None and known.last is None:
            runs[line["run"]] = replace(known, learned=line)
        elif line["kind"] == "evaluate" and known is not None and known.evaluated is None:
            runs[line["run"]] = replace(known, evaluated=line)
        else:
            raise DataError(f"line {self.lines + 1} of the ledger does not follow from the lines before it")
        return Account(self.lines + 1, chain_hash(self.hash, body), tuple(runs.items()))


def _is_next(releases: int, run: LedgerRun) -> bool:
    return releases == run.releases + 1 and releases <= run.planned


def _is_next_step(step: int, run: LedgerRun) -> bool:
    """A step is answered once, in order, and none after the ranges were found."""
    before = -1 if run.searched is None else int(run.searched["step"])
    return before < step < STEPS and run.learned is None and run.last is None


def chain_hash(before: str, body: str) -> str:
    """The hash of a line that follows a line with hash `before`."""
    return hashlib.sha256(f"{before}\n{body}".encode()).hexdigest()


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
        """The last hash of the ledger when it had this many lines; None if it never had that many."""
        if lines == 0:
            return _FIRST_HASH
        rows = self.connection.execute("SELECT hash FROM lines WHERE number = ?", (lines,)).fetchall()
        return str(rows[0][0]) if rows else None

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line. It is not on disk until `commit`."""
        body = json.dumps(line, sort_keys=True, allow_nan=False)
        account = self.account.after(body)
        self.connection.execute("INSERT INTO lines VALUES (?, ?, ?)", (account.lines, body, account.hash))
        self.connection.execute("UPDATE head SET lines = ?, hash = ?", (account.lines, account.hash))
        self.account = account

    def commit(self) -> None:
        """Write the added lines to disk."""
        self.connection.execute("COMMIT")


def read_account(path: Path) -> Account:
    """Read a ledger's account without changing it; a silo may be using the ledger at the same time."""
    with _clear_errors(path), _connected(path, 5.0) as connection:
        connection.execute("BEGIN")
        _check_version(connection, path)
        return _read_on(connection, Account())


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
            raise DataError(
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
            connection.execute("INSERT INTO head VALUES (1, 0, ?)", (_FIRST_HASH,))
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("COMMIT")
        # Linked, because a rename would replace a ledger that another process has created meanwhile.
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
        account = _checked(account, body, hash)
        if account.lines != number:
            raise DataError(f"line {account.lines} of the ledger is missing. {WAY_OUT}")
    if head != [(account.lines, account.hash)]:
        raise DataError(
            f"the ledger was changed: its {account.lines} lines are not those that its head states. {WAY_OUT}"
        )
    return account


def _checked(account: Account, body: object, hash: object) -> Account:
    try:
        after = account.after(str(body))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"line {account.lines + 1} of the ledger cannot be read: {error}") from error
    if hash != after.hash:
        raise DataError(
            f"line {after.lines} of the ledger was changed: its hash does not match it and the line before. "
            f"{WAY_OUT}"
        )
    return after


def read_export(content: bytes) -> Account:
    """The account of an exported ledger, after checking its hash chain."""
    account = Account()
    for text in content.decode(errors="replace").splitlines():
        try:
            line = json.loads(text)
            body, hash = line["body"], line["hash"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"line {account.lines + 1} of the ledger cannot be read") from error
        account = _checked(account, body, hash)
    return account
