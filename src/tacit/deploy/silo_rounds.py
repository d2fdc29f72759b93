"""A silo's rounds of training: each is computed once, written down before it leaves, and sent again as it was.

was it answered before? then the same bytes again
-> a new run: does the budget cover all of it? a known run: is this one of its planned releases?
-> are the records those that the run began with? -> computation (-> covered, for a shuffler)
-> memory to disk -> ledger to disk
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tacit.deploy.frames import Request
from tacit.deploy.home import Home
from tacit.deploy.ledger import Page
from tacit.deploy.ledger_account import Account, LedgerRun
from tacit.deploy.refusals import RefusedError
from tacit.deploy.seam import Code
from tacit.deploy.silo_memory import Fingerprint, Memory, new_secret
from tacit.deploy.silo_ranges import SiloRanges
from tacit.deploy.summing import SiloSums
from tacit.deploy.terms import Terms
from tacit.engine.round import ClientState, client_start
from tacit.errors import DataError, MessageError
from tacit.federation import Federation
from tacit.state import State

_WAYS_OUT = (
    "It can continue only with the records that it began with, in the same order: restore them, or let it end "
    "without this silo. Corrected records can take part in a new run"
)
Moment = Callable[[str], None]
"""Called with a name before and after every durable write; tests stop the silo there."""


@contextlib.contextmanager
def refusing_sums() -> Iterator[None]:
    """Turn what the protocol of sums forbids into a refusal. Its texts have numbers of silos and nothing else."""
    try:
        yield
    except MessageError as error:
        raise RefusedError(Code.SUM_REFUSED, str(error)) from error


@dataclass(frozen=True)
class Release:
    """What leaves the silo in a round: the `number`-th release of its run."""

    number: int
    message: bytes
    loss: float | None


class SiloRounds:
    """The rounds of one silo's runs.

    Guarantee: a release is in the ledger before it is returned, no run makes more releases than it was charged
    for, and a round that was answered is never computed again.
    """

    def __init__(self, terms: Terms, home: Home, ranges: SiloRanges, sums: SiloSums | None, at: Moment) -> None:
        """Prepare for rounds.

        home: the silo's directory, with its memory of runs.
        ranges: prepares the records of a run, where their ranges are learned.
        sums: how messages are masked, if only sums are opened.
        at: called before and after durable writes.
        """
        self._terms, self._home, self._ranges, self._sums, self._at = terms, home, ranges, sums, at
        self._same_records: dict[Fingerprint, bool] = {}

    def release(self, asked: Request, received: State, page: Page) -> Release:
        """The silo's part of a round: computed now, or as it was the first time."""
        account = page.account.run(asked.run)
        last = None if account is None else account.last
        learned = self._ranges.line(asked, account)
        if last is not None and asked.round <= last["round"]:
            return self._again(asked, last, self._ranges.prepared(learned).records)
        newest = None if account is None else account.newest
        if newest is not None and asked.round <= newest["round"] and self._sums is None:
            # Final releases come after training. (The protocol of sums says so itself.)
            raise RefusedError(Code.PAST_ROUND)
        return self._first_time(asked, received, page, account, learned)

    def charge(self, run: str, page: Page, account: LedgerRun | None) -> None:
        """Charge a run in full, before anything of it leaves; refuse what the budget does not cover."""
        terms = self._terms
        if account is None:
            page.append(terms.opening(run))
        else:
            self._check_terms(run, account)
        if account is not None and account.releases >= terms.planned:
            raise RefusedError(Code.BUDGET_SPENT, f"all {terms.planned} planned releases have been made")
        # The ledger page now includes this run, in full.
        if refusal := terms.refusal(page.account):
            raise RefusedError(Code.BUDGET_SPENT, refusal)

    def joined(self, run: str, page: Page) -> LedgerRun:
        """A run that is charged in full, now or before; refused if it began on other terms or records."""
        account = page.account.run(run)
        if account is None:
            self.charge(run, page, None)
            account = page.account.run(run)
        assert account is not None, "charged"
        self.check_same(run, account)
        return account

    def check_same(self, run: str, account: LedgerRun) -> None:
        """Refuse to go on with a run that began on other terms, or with other records."""
        self._check_terms(run, account)
        if account.last is not None:
            records = self._ranges.prepared(account.learned).records
            self._remembered(run, account.last["round"], account.last["memory"], records)

    def _check_terms(self, run: str, account: LedgerRun) -> None:
        if account.opened != self._terms.opening(run):
            # Earlier releases of this run had other terms: no event could cover both.
            raise RefusedError(Code.STATE_LOST, f"it was started on other terms. {_WAYS_OUT}")

    def that_cannot_go_on(self, account: Account) -> Iterator[str]:
        """Messages about unfinished runs of this job that were started with other records or on other terms."""
        for run, begun in account.runs:
            if begun.opened.get("job") != self._terms.job.digest or begun.releases >= begun.planned:
                continue
            try:
                self.check_same(run, begun)
            except RefusedError as refused:
                yield f"run {run} is unfinished: {refused.reason}"

    def _again(self, asked: Request, last: Mapping[str, Any], records: Federation) -> Release:
        """The same bytes again: a second draw of noise for the same round would cost twice."""
        if asked.round < last["round"]:
            raise RefusedError(Code.PAST_ROUND)
        if hashlib.sha256(asked.body).hexdigest() != last["point"]:
            raise RefusedError(Code.CHANGED_POINT)
        remembered = self._remembered(asked.run, last["round"], last["memory"], records)
        return Release(last["releases"], remembered.message, remembered.loss)

    def _first_time(
        self,
        asked: Request,
        received: State,
        page: Page,
        account: LedgerRun | None,
        learned: Mapping[str, Any] | None,
    ) -> Release:
        number = 1 if account is None else account.releases + 1
        self.charge(asked.run, page, account)
        if learned is not None and (account is None or account.learned is None):
            page.append(learned)
        computation = self._ranges.prepared(learned)
        state, secret, records = self._state(asked, account, computation.records)
        last = None if account is None else account.newest
        if self._sums is not None:
            with refusing_sums():
                self._sums.check_ready(asked.run, asked.round, last)
        memory = computation.run(asked, received, state, secret, records, number, last)
        files = self._home.memories(asked.run)
        self._at("before memory")
        digest = files.write(asked.round, memory.to_bytes())
        self._at("after memory")
        line = {
            "kind": "release",
            "run": asked.run,
            "round": asked.round,
            "releases": number,
            "point": hashlib.sha256(asked.body).hexdigest(),
            "message": hashlib.sha256(memory.message).hexdigest(),
            "memory": digest,
        }
        try:
            page.append(line)
            self._at("before ledger")
            page.commit()
        except Exception:
            files.forget(asked.round)
            raise
        self._at("after ledger")
        files.keep_only(asked.round)
        return Release(number, memory.message, memory.loss)

    def _state(
        self, asked: Request, account: LedgerRun | None, federation: Federation
    ) -> tuple[ClientState, int | None, Fingerprint]:
        """The state that the last round left, depending on whether the server acknowledged its message."""
        job, accepted = self._terms.job, asked.accepted.get(self._terms.site)
        last = None if account is None else account.last
        if accepted is not None and (last is None or accepted > last["round"]):
            raise RefusedError(
                Code.STATE_LOST,
                "the server says that it has used a message of this run that is not in this ledger. If so, "
                "another copy of this folder has answered, or this is an older copy: stop all copies except the "
                "one that answered last",
            )
        if last is None:
            start = client_start(job.algorithm, job.start(), federation)
            return start, new_secret(job.insecure), Fingerprint.of(federation)
        memory = self._remembered(asked.run, last["round"], last["memory"], federation)
        return memory.next_state(accepted=accepted == last["round"]), memory.secret, memory.records

    def _remembered(self, run: str, round: int, digest: str, records: Federation) -> Memory:
        """The memory of a run. Refused if it is missing or the run began with other records."""
        try:
            memory = self._home.memories(run).read(round, digest)
        except DataError as error:
            raise RefusedError(Code.STATE_LOST, str(error)) from error
        if memory.records not in self._same_records:
            self._same_records[memory.records] = memory.records.matches(records)
        if not self._same_records[memory.records]:
            raise RefusedError(Code.STATE_LOST, f"it was started with other records. {_WAYS_OUT}")
        return memory
