"""What the lines of a silo's ledger say: its runs, what they were charged, and what has left.

A line is a JSON object. Its hash covers its text and the hash of the previous line.

open      starts a run. Its `event` describes the whole planned run to the accountant; it is charged at once and
          in full, however far the run gets. `beside` is what the run is to adversaries who see more.
release   what is about to leave: the next of at most `rounds_planned` releases of its run.
correct   the noisy sums of the run's correction, and the digest of the trained model.
evaluate  the same for the run's evaluation.
range     the noisy sums of one step of a search for ranges.
ranges    what the search found.

`tacit.privacy.accountant.filter` computes what a ledger costs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dp_accounting import DpEvent

from tacit.deploy.finals import Final
from tacit.errors import DataError, count
from tacit.privacy import Adversary, events
from tacit.side.ranges import STEPS

FORMAT = "tacit-ledger-2"
FIRST_HASH = hashlib.sha256(FORMAT.encode()).hexdigest()
_FINALS = {final.kind: final for final in Final}

WAY_OUT = (
    "What has left this silo can no longer be counted, so nothing more may leave it. Restore the ledger as it "
    "was when the silo last stopped; an older copy will not do. If it is lost, provision a new folder and set "
    "the epsilon in its policy to what may still be spent"
)
"""What to do about a ledger that is missing or has been changed."""


@dataclass(frozen=True)
class LedgerRun:
    """What a ledger says about one run."""

    opened: Mapping[str, Any]
    releases: int = 0
    last: Mapping[str, Any] | None = None
    """the line of the newest release"""
    finals: Mapping[Final, Mapping[str, Any]] = field(default_factory=dict)
    """the lines of final releases, of which a run has one of a kind at most"""
    searched: Mapping[str, Any] | None = None
    """the line of the last step of a search for ranges that was answered"""
    learned: Mapping[str, Any] | None = None
    """the line with the ranges that were found, which the run then keeps"""

    @property
    def newest(self) -> Mapping[str, Any] | None:
        """The line of the last round that was answered.

        Final releases are rounds after the last, unless they come with a certificate.
        """
        numbered = [line for line in self.finals.values() if "round" in line]
        return max(numbered, key=lambda line: int(line["round"]), default=self.last)

    @property
    def event(self) -> DpEvent:
        """The event of the whole planned run, which is charged however far the run got."""
        return events.from_dict(self.opened["event"])

    @property
    def without_trust(self) -> DpEvent | None:
        """The same if all other parties help the server; None if that is not in the ledger."""
        if self.opened.get("adversary") == str(Adversary.SERVER):
            return self.event
        told = self.opened.get("beside", {}).get(str(Adversary.SERVER))
        return None if told is None else events.from_dict(told)

    @property
    def planned(self) -> int:
        """The most releases that the run may have."""
        return int(self.opened["rounds_planned"])


@dataclass(frozen=True)
class Account:
    """The contents of a ledger: its length, last hash and runs."""

    lines: int = 0
    hash: str = FIRST_HASH
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
        elif (final := _FINALS.get(line["kind"])) and known is not None and final not in known.finals:
            runs[line["run"]] = replace(known, finals={**known.finals, final: line})
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


def checked(account: Account, body: object, hash: object) -> Account:
    """The account after one more line that was read; a `DataError` if it does not follow or its hash is wrong."""
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
        account = checked(account, body, hash)
    return account
