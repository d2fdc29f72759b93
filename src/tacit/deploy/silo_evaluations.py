"""A silo's part in the evaluation of a run: made once, written to the ledger first, and sent again as it was."""

from __future__ import annotations

import hashlib

from torch import Tensor

from tacit.deploy.evaluation_sum import part_to_bytes
from tacit.deploy.frames import Request
from tacit.deploy.guard import Terms
from tacit.deploy.home import Home
from tacit.deploy.ledger import Page
from tacit.deploy.ledger_account import LedgerRun
from tacit.deploy.refusals import RefusedError
from tacit.deploy.seam import Code
from tacit.deploy.silo_ranges import SiloRanges
from tacit.deploy.silo_rounds import Moment, refusing_sums
from tacit.deploy.summing import SiloSums
from tacit.federation import Federation


class SiloEvaluations:
    """The evaluations of one silo's runs, of which each run has at most one.

    Guarantee: the noisy sums are in the ledger before they leave, and whoever asks again gets the same ones.
    """

    def __init__(self, terms: Terms, home: Home, ranges: SiloRanges, sums: SiloSums | None, at: Moment) -> None:
        """Prepare for evaluations.

        home: the silo's directory.
        ranges: prepares the records of a run, where their ranges are learned.
        sums: how parts are masked, if only sums are opened.
        at: called before and after durable writes.
        """
        self._terms, self._home, self._ranges, self._sums, self._at = terms, home, ranges, sums, at

    def make(self, asked: Request, parameters: Tensor, account: LedgerRun, page: Page) -> None:
        """Evaluate the model of a request, if the job asks for that and it was not done yet; not with sums."""
        if account.evaluated is not None or self._terms.job.evaluation is None or self._sums is not None:
            return
        if self._ranges.halted:
            raise RefusedError(Code.FAILED)
        learned = self._ranges.line(asked, account)
        if learned is not None and account.learned is None:
            page.append(learned)
        self._write(asked, self._ranges.prepared(learned).evaluate(parameters, asked.run), page)

    def part(self, asked: Request, parameters: Tensor, page: Page, sums: SiloSums, held: Federation) -> bytes:
        """This silo's part of the sum of an evaluation of the model in a request."""
        account = page.account.run(asked.run)
        if account is None or account.opened != self._terms.opening(asked.run):
            raise RefusedError(Code.STATE_LOST, "it has taken no part in this run, or on other terms")
        if account.evaluated is None:
            with refusing_sums():
                batch = sums.check_ready(asked.run, asked.round, account.newest)
                masked = self._ranges.prepared(None).evaluate_in_sum(parameters, asked, account.newest)
            self._write(asked, masked, page, round=asked.round, batch=batch)
            account = page.account.run(asked.run)
        evaluated = account.evaluated if account else None
        if evaluated is None or evaluated["point"] != hashlib.sha256(asked.body).hexdigest():
            raise RefusedError(Code.CHANGED_POINT)
        return part_to_bytes(held.records, evaluated["sums"])

    def _write(self, asked: Request, sums: list[float], page: Page, **in_sum: int | str) -> None:
        """Write an evaluation to the ledger, once in a run: for this answer and all later ones."""
        point = hashlib.sha256(asked.body).hexdigest()
        page.append({"kind": "evaluate", "run": asked.run, **in_sum, "point": point, "sums": sums})
        self._at("before evaluation")
        page.commit()
        self._at("after evaluation")
        self._home.mark_released()
