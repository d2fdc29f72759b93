"""A silo's part in a search for ranges (`tacit.deploy.learning`), and its records as the ranges prepare them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from tacit.deploy.computation import Computation
from tacit.deploy.frames import Request
from tacit.deploy.ledger import Page
from tacit.deploy.ledger_account import LedgerRun
from tacit.deploy.parts import Part
from tacit.deploy.refusals import RefusedError
from tacit.deploy.seam import Code
from tacit.deploy.terms import Terms
from tacit.errors import MessageError
from tacit.side.ranges import STEPS


class SiloRanges:
    """Answers the steps of searches, and prepares the records of every run with the ranges that were found.

    Where a job leaves no range open, the records are those of the terms, and every step is refused.
    """

    def __init__(self, terms: Terms, computation: Computation) -> None:
        self._terms, self._wide = terms, computation
        self._closed: dict[str, Computation] = {}

    @property
    def halted(self) -> bool:
        """Whether a computation has failed and nobody has looked at it yet."""
        return any(one.halted for one in (self._wide, *self._closed.values()))

    def prepared(self, learned: Mapping[str, Any] | None) -> Computation:
        """The computation with the records as a run's ranges prepare them; `learned` is their ledger line."""
        if learned is None:
            return self._wide
        if learned["point"] not in self._closed:
            ranges = {name: (low, high) for name, (low, high) in learned["ranges"].items()}
            self._closed = {learned["point"]: self._wide.prepared(ranges)}
        return self._closed[learned["point"]]

    def line(self, asked: Request, account: LedgerRun | None) -> Mapping[str, Any] | None:
        """The ledger's line with the ranges of a run: as it was written, or as it is to be; None without any."""
        ranges, point = self._terms.job.ranges, hashlib.sha256(asked.learned).hexdigest()
        if ranges is None:
            return None
        if account is not None and account.learned is not None:
            if account.learned["point"] != point:
                raise RefusedError(Code.CHANGED_POINT)
            return account.learned
        try:
            found = {name: list(pair) for name, pair in ranges.found(asked.learned).items()}
        except MessageError as error:
            raise RefusedError(Code.BAD_POINT) from error
        return {"kind": "ranges", "run": asked.run, "point": point, "records": self._records, "ranges": found}

    def answer(self, asked: Request, page: Page, charge: Callable[[], None], at: Callable[[str], None]) -> bytes:
        """Answer a step: once, and the same bytes to whoever asks for it again.

        The run is charged in full (`charge`) before its first step is computed, and the sum of every step is on
        disk before it is returned.
        """
        ranges = self._terms.job.ranges
        if ranges is None:
            raise RefusedError(Code.OTHER_JOB)
        try:
            search, step = ranges.search(asked.body)
        except MessageError as error:
            raise RefusedError(Code.BAD_POINT) from error
        if asked.round != 0 or step >= STEPS:
            raise RefusedError(Code.NO_SUCH_ROUND)
        account, point = page.account.run(asked.run), hashlib.sha256(asked.body).hexdigest()
        last = None if account is None else account.searched
        over = account is not None and (account.learned is not None or account.last is not None)
        if over or (last is not None and step < last["step"]):
            raise RefusedError(Code.PAST_ROUND)
        if last is None or step > last["step"]:
            charge()
            sums = self._wide.step_of_ranges(search, step)
            last = {"kind": "range", "run": asked.run, "step": step, "point": point, "sums": sums}
            page.append(last)
            at("before range")
            page.commit()
            at("after range")
        elif last["point"] != point:
            raise RefusedError(Code.CHANGED_POINT)
        return Part(self._records, tuple(last["sums"])).to_bytes(masked=False)

    @property
    def _records(self) -> int:
        assert self._terms.table is not None, "a job that learns ranges is admitted with a table"
        return len(self._terms.table.numbers)
