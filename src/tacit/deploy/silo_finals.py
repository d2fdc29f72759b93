"""A silo's part in the final releases of a run: made once, written to the ledger first, sent again as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tacit.deploy.final_release import FinalRelease
from tacit.deploy.frames import Request
from tacit.deploy.home import Home
from tacit.deploy.ledger import Page
from tacit.deploy.ledger_account import LedgerRun
from tacit.deploy.parts import Part
from tacit.deploy.refusals import RefusedError, halted
from tacit.deploy.seam import Code
from tacit.deploy.silo_ranges import SiloRanges
from tacit.deploy.silo_rounds import Moment, SiloRounds, refusing_sums
from tacit.deploy.summing import SiloSums
from tacit.deploy.terms import Terms


class SiloFinals:
    """The final releases of one silo's runs, of which each run has at most one of a kind.

    Guarantee: the noisy sums are in the ledger before they leave, and whoever asks again gets the same ones.
    """

    def __init__(
        self,
        terms: Terms,
        home: Home,
        ranges: SiloRanges,
        rounds: SiloRounds,
        sums: SiloSums | None,
        at: Moment,
    ) -> None:
        """Prepare for final releases.

        home: the silo's directory.
        ranges: prepares the records of a run, where their ranges are learned.
        rounds: charges runs, and knows the records that they began with.
        sums: how parts are masked, if only sums are opened.
        at: called before and after durable writes.
        """
        self._terms, self._home, self._ranges, self._rounds = terms, home, ranges, rounds
        self._sums, self._at = sums, at

    def evaluate(self, asked: Request, parameters: Tensor, account: LedgerRun, page: Page) -> None:
        """Evaluate the model of a request, if the job asks for that and it was not done yet; not with sums."""
        evaluation = self._terms.job.evaluation
        if evaluation is not None and evaluation.trust is None and evaluation.name not in account.finals:
            self._rounds.check_same(asked.run, account)
            self._make(evaluation, asked, parameters, account, page)

    def part(self, release: FinalRelease, asked: Request, parameters: Tensor, page: Page) -> bytes:
        """This silo's part of a final release at the model in a request.

        A run in which the silo has released nothing yet is charged in full first.
        """
        account = self._rounds.joined(asked.run, page)
        made = account.finals.get(release.name)
        if made is None:
            made = self._make(release, asked, parameters, account, page, round=asked.round)
        if made["point"] != hashlib.sha256(asked.body).hexdigest():
            raise RefusedError(Code.CHANGED_POINT)
        records = self._terms.finals[release.name].records
        return Part(records, tuple(made["sums"])).to_bytes(masked=self._sums is not None)

    def _make(
        self,
        release: FinalRelease,
        asked: Request,
        parameters: Tensor,
        account: LedgerRun,
        page: Page,
        **numbered: int,
    ) -> Mapping[str, Any]:
        """Make a release, and write it to the ledger: for this answer and all later ones."""
        if self._ranges.halted:
            raise halted()
        learned = self._ranges.line(asked, account)
        if learned is not None and account.learned is None:
            page.append(learned)
        computation, masked_with = self._ranges.prepared(learned), {}
        if self._sums is None:
            sums = computation.final(release, parameters)
        else:
            with refusing_sums():
                masked_with["batch"] = self._sums.check_ready(asked.run, asked.round, account.newest)
                sums = computation.final_in_sum(release, parameters, asked, account.newest)
        point = hashlib.sha256(asked.body).hexdigest()
        line: dict[str, Any] = {"kind": release.name.kind, "run": asked.run, **numbered, **masked_with}
        line |= {"point": point, "sums": sums}
        page.append(line)
        self._at(f"before {release.name}")
        page.commit()
        self._at(f"after {release.name}")
        self._home.mark_released()
        return line
