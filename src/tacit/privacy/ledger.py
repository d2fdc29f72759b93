"""A silo's ledger: what it has released, written before it leaves, in lines that are chained by hash.

A line is a JSON object. Its hash covers its text and the hash of the line before, and the number of lines and the
last hash stand once more by themselves, so that a line that is edited, removed or inserted shows. A line of
kind "open" begins a run. One of kind "release" says what is about to leave; its `event` is what all releases of
its run up to this one are to an accountant. So the cost of a ledger is that of the last events of its runs,
composed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from tacit.errors import DataError, TacitError
from tacit.privacy import accounting, events
from tacit.privacy.guarantee import Target

FORMAT = "tacit-ledger-1"
_FIRST_HASH = hashlib.sha256(FORMAT.encode()).hexdigest()
_TABLES = """
CREATE TABLE lines (number INTEGER PRIMARY KEY, body TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), lines INTEGER NOT NULL, hash TEXT NOT NULL);
"""


class LedgerBusyError(TacitError):
    """Another process holds the ledger."""


@dataclass(frozen=True)
class RunAccount:
    """What a ledger says about one run."""

    opened: Mapping[str, Any]
    releases: int = 0
    last: Mapping[str, Any] | None = None
    """the line of the newest release"""

    @property
    def event(self) -> DpEvent:
        """All its releases."""
        if self.last is not None and "event" not in self.last:
            raise DataError("a release in the ledger does not say what it costs")
        return events.nothing() if self.last is None else events.from_dict(self.last["event"])


@dataclass(frozen=True)
class Account:
    """What a ledger adds up to."""

    lines: int = 0
    hash: str = _FIRST_HASH
    runs: tuple[tuple[str, RunAccount], ...] = ()

    def run(self, run: str) -> RunAccount | None:
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

    def event(self, instead: Mapping[str, DpEvent] | None = None, *, job: str | None = None) -> DpEvent:
        """All releases of all runs, or of one job's; `instead` replaces those of the runs that it names."""
        spent = {run: account.event for run, account in self.runs if job in (None, account.opened.get("job"))}
        return events.composed({**spent, **(instead or {})}.values())

    def after(self, body: str) -> Account:
        """The account after one more line."""
        line = json.loads(body)
        runs, known = dict(self.runs), self.run(line["run"])
        if line["kind"] == "open" and known is None:
            runs[line["run"]] = RunAccount(line)
        elif line["kind"] == "release" and known is not None and line["releases"] == known.releases + 1:
            runs[line["run"]] = replace(known, releases=line["releases"], last=line)
        else:
            raise DataError(f"line {self.lines + 1} of the ledger does not follow from the lines before")
        return Account(self.lines + 1, chain_hash(self.hash, body), tuple(runs.items()))


def chain_hash(before: str, body: str) -> str:
    """The hash of a line that comes after a line of hash `before`."""
    return hashlib.sha256(f"{before}\n{body}".encode()).hexdigest()


def affords(target: Target, account: Account, run: str, wanted: DpEvent, at_most: DpEvent) -> bool:
    """Whether all releases of a ledger stay within the target if those of `run` become `wanted`.

    Guarantee: True only if the accountant proves it. `at_most` is `wanted` with at least as many releases: when
    the target can bear that, it can bear less, and the same question need not be computed in every round.
    """
    return any(_cost(account.event({run: event}), target) <= target.epsilon for event in (at_most, wanted))


def _cost(event: DpEvent, target: Target) -> float:
    try:
        return accounting.epsilon(event, target.delta, target.adjacency)
    except TacitError:
        # No number can be proved: as good as infinite.
        return float("inf")


class Ledger:
    """The ledger in one SQLite file, which only its owner can read.

    Guarantee: what `Page.commit` has returned from is on the disk, and survives a power cut (`synchronous` is
    EXTRA, no write-ahead log). Whoever holds a page holds the ledger alone.
    """

    def __init__(self, path: Path, *, busy_seconds: float = 30.0) -> None:
        self._path = path
        self._busy_seconds = busy_seconds
        self._known = Account()
        new = not path.exists()
        if new:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        with self.page():
            # Reads and checks every line.
            pass

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._path

    @contextlib.contextmanager
    def page(self) -> Iterator[Page]:
        """The ledger for one process alone; what is not committed in the block is as if it had never been."""
        connection = sqlite3.connect(self._path, timeout=self._busy_seconds, isolation_level=None)
        with contextlib.closing(connection):
            try:
                connection.execute("PRAGMA journal_mode = DELETE")
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("BEGIN IMMEDIATE")
                fresh = not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'head'").fetchall()
                if fresh:
                    for statement in filter(str.strip, _TABLES.split(";")):
                        connection.execute(statement)
                    connection.execute("INSERT INTO head VALUES (1, 0, ?)", (_FIRST_HASH,))
                    connection.execute("COMMIT")
                    connection.execute("BEGIN IMMEDIATE")
                self._known = _read_on(connection, self._known)
            except sqlite3.OperationalError as error:
                if "locked" in str(error):
                    raise LedgerBusyError(f"{self._path} is in use by another process") from error
                raise
            except sqlite3.DatabaseError as error:
                raise DataError(f"{self._path} is not a ledger of tacit: {error}") from error
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


def _read_on(connection: sqlite3.Connection, known: Account) -> Account:
    """The account of all lines, of which the first were read before."""
    head = connection.execute("SELECT lines, hash FROM head").fetchall()
    rows = connection.execute(
        "SELECT number, body, hash FROM lines WHERE number >= ? ORDER BY number", (max(1, known.lines),)
    ).fetchall()
    if known.lines and (not rows or rows.pop(0)[2] != known.hash):
        raise DataError("the ledger was changed: lines that were read before are no longer there")
    return _followed(known, [row[1:] for row in rows], [row[0] for row in rows], head)


def _followed(known: Account, rows: list[Any], numbers: list[int], head: list[Any]) -> Account:
    account = known
    for number, (body, hash) in zip(numbers, rows, strict=True):
        account = _checked(account, body, hash)
        if account.lines != number:
            raise DataError(f"line {account.lines} of the ledger is missing")
    if head != [(account.lines, account.hash)]:
        raise DataError(f"the ledger was changed: it has {account.lines} lines, not those that it says it has")
    return account


def _checked(account: Account, body: object, hash: object) -> Account:
    try:
        after = account.after(str(body))
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"line {account.lines + 1} of the ledger is not one: {error}") from error
    if hash != after.hash:
        raise DataError(
            f"line {after.lines} of the ledger was changed: its hash does not follow from the line before"
        )
    return after


def read_export(content: bytes) -> Account:
    """The account of an exported ledger, whose chain is checked."""
    account = Account()
    for text in content.decode(errors="replace").splitlines():
        try:
            line = json.loads(text)
            body, hash = line["body"], line["hash"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"line {account.lines + 1} of the ledger is not one") from error
        account = _checked(account, body, hash)
    return account
