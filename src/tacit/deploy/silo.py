"""A silo: answers the server's requests, and keeps its own promise whatever the server asks.

    request -> is it for our job, our round, a finite point?
            -> a round (`silo_rounds`), a step of a search for ranges, help with a sum, a final release
               (`silo_finals`), a certificate
            -> ledger to disk -> answer

Nothing leaves before its line in the ledger is on disk. If something goes wrong, the server gets only a code. The
reason is written to the silo's own `errors.log`, and shown to its operators if they can do something about it.

Every answer carries the signed head of the silo's ledger, and every request carries the newest heads of all
silos. A silo records the heads of the others as a witness. It stops if it is shown a head of its own that is not
in its ledger.
"""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from tacit.deploy.computation import Computation
from tacit.deploy.frames import Reply, Request, point_from_bytes, state_from_bytes
from tacit.deploy.guard import admit
from tacit.deploy.heads import Head
from tacit.deploy.home import Home
from tacit.deploy.job import Job
from tacit.deploy.learning import OpenTable
from tacit.deploy.ledger import Ledger, LedgerBusyError
from tacit.deploy.mixing import Covers
from tacit.deploy.notary import Notary
from tacit.deploy.policy import Policy
from tacit.deploy.refusals import RefusedError, halted, told_by_the_machine
from tacit.deploy.seam import Code
from tacit.deploy.silo_finals import SiloFinals
from tacit.deploy.silo_ranges import SiloRanges
from tacit.deploy.silo_rounds import Moment, SiloRounds, refusing_sums
from tacit.deploy.summing import SiloSums
from tacit.deploy.terms import Terms
from tacit.deploy.witness import HeadsError
from tacit.errors import MessageError
from tacit.federation import Federation

_LOG = logging.getLogger("tacit.deploy.silo")


class Silo:
    """One site's complete guarded path, from the bytes of a request to the bytes of an answer.

    Guarantee: all messages that ever leave silos with this `state_dir` together keep the policy's (epsilon,
    delta), whatever requests arrive, in whatever order, whoever sends them, and however often the process dies in
    between. (This fails if the directory is set back to an older copy, so do not restore it from a backup. The
    silo notices as soon as somebody shows it a head that it signed later.)
    """

    def __init__(
        self,
        terms: Terms,
        state_dir: Path,
        *,
        key: Ed25519PrivateKey,
        covers: Covers | None = None,
        at: Moment = lambda moment: None,
    ) -> None:
        """Open a silo on its terms.

        state_dir: the silo's own directory, see `Home`.
        key: the silo's signing key; the job names its public half.
        covers: how messages are covered for a shuffler, if there is one.
        at: called before and after durable writes.
        """
        self._terms = terms
        self._at = at
        self._explained = ""
        self._notary = Notary(terms, key, state_dir)
        self._home = Home(state_dir)
        self._sums = SiloSums(terms.job, terms.site, key, state_dir / "sums", at) if terms.job.summed else None
        self._ranges = SiloRanges(terms, Computation(terms, self._home, covers, self._sums))
        self._rounds = SiloRounds(terms, self._home, self._ranges, self._sums, at)
        self._finals = SiloFinals(terms, self._home, self._ranges, self._rounds, self._sums, at)
        with self.ledger.page() as page:
            terms.policy.check_past(page.account)
            self._notary.check(page)
            for reason in self._rounds.that_cannot_go_on(page.account):
                _LOG.error("%s", reason)

    @classmethod
    def open(
        cls,
        job_text: str,
        policy_text: str,
        records: Federation | OpenTable,
        state_dir: Path,
        *,
        site: str,
        key: Ed25519PrivateKey,
        covers: Covers | None = None,
    ) -> Silo:
        """Open a silo for a job, with its own policy and records. A job that the policy forbids is an error."""
        policy = Policy.from_toml(policy_text)
        terms = admit(Job.from_text(job_text, check=policy.check_names), policy, site, records)
        return cls(terms, state_dir, key=key, covers=covers)

    @property
    def terms(self) -> Terms:
        """The terms on which the silo takes part."""
        return self._terms

    @property
    def ledger(self) -> Ledger:
        """The ledger of what the silo has released."""
        return self._home.ledger

    def step(self, request: bytes) -> bytes:
        """Answer a request. No exception is raised, except when the process ends."""
        try:
            shapes = self._terms.job.broadcast_shapes
            limit = 4 * sum(shape.numel() for shape in shapes.values())
            if self._sums is not None:
                limit = max(limit, self._sums.summing.most_request_bytes)
            if self._terms.job.ranges is not None:
                limit = max(limit, self._terms.job.ranges.most_bytes)
            asked = Request.decode(request, body_limit=limit)
        except MessageError:
            return Reply(Code.MALFORMED, self._terms.site).encode()
        if asked.kind == "mix":
            return self._bare(Code.MALFORMED, asked).encode()
        try:
            reply = self._replied(asked)
        except RefusedError as refused:
            self._explain(refused, asked)
            reply = self._bare(refused.code, asked)
        except HeadsError as refused:
            # The text has names and numbers of lines, and nothing about any record.
            _LOG.error("%s", refused)
            reply = self._bare(refused.code, asked)
        except LedgerBusyError:
            reply = self._bare(Code.BUSY, asked)
        except Exception as error:
            # The text may quote a record, so it must not reach the server or any log that others read.
            self._home.note(traceback.format_exc())
            # A full disk has no room for that note.
            self._explain(RefusedError(Code.FAILED, told_by_the_machine(error)), asked)
            reply = self._bare(Code.FAILED, asked)
        return reply.encode()

    def _replied(self, asked: Request) -> Reply:
        match asked.kind:
            case "certify":
                return self._certified(asked)
            case "heads":
                return self._bore_witness(asked)
            case "sum":
                return self._summed(asked)
            case "correct" | "evaluate":
                return self._finally_released(asked)
            case "range":
                return self._searched(asked)
            case _:
                return self._answered(asked)

    def _bare(self, code: Code, asked: Request) -> Reply:
        return Reply(code, self._terms.site, asked.run, asked.round, insecure=self._terms.job.insecure)

    def _explain(self, refused: RefusedError, asked: Request) -> None:
        """Tell the silo's operators why, but only once, however often the server asks again."""
        line = f"{refused.code} to run {asked.run}: {refused.reason}"
        if refused.reason and line != self._explained:
            self._explained = line
            self._home.note(line)
            _LOG.error("%s", line)

    def _answered(self, asked: Request) -> Reply:
        job, site = self._terms.job, self._terms.site
        if asked.job != job.digest:
            raise RefusedError(Code.OTHER_JOB)
        if asked.round >= job.rounds or site not in job.cohort(asked.round):
            raise RefusedError(Code.NO_SUCH_ROUND)
        try:
            received = state_from_bytes(asked.body, job.broadcast_shapes)
        except MessageError as error:
            raise RefusedError(Code.BAD_POINT) from error
        with self.ledger.page() as page:
            if self._ranges.halted:
                raise halted()
            self._notary.take(asked, page)
            release = self._rounds.release(asked, received, page)
            head = self._notary.head(asked.run, page)
        reply = self._message(asked, release.number, release.message, release.loss, head)
        self._home.mark_released()
        self._at("after mark")
        return reply

    def _searched(self, asked: Request) -> Reply:
        """Answer a step of a search for ranges."""
        if asked.job != self._terms.job.digest:
            raise RefusedError(Code.OTHER_JOB)
        with self.ledger.page() as page:
            if self._ranges.halted:
                raise halted()
            self._notary.take(asked, page)
            account = page.account.run(asked.run)
            body = self._ranges.answer(
                asked, page, lambda: self._rounds.charge(asked.run, page, account), self._at
            )
            reply = self._message(asked, 0, body, head=self._notary.head(asked.run, page))
        self._home.mark_released()
        return reply

    def _message(
        self,
        asked: Request,
        releases: int,
        body: bytes,
        loss: float | None = None,
        head: Head | None = None,
    ) -> Reply:
        terms = self._terms
        return Reply(
            Code.OK,
            terms.site,
            asked.run,
            asked.round,
            releases,
            terms.planned,
            terms.epsilon,
            terms.job.insecure,
            body,
            loss,
            head.on_answer() if head else b"",
        )

    def _summed(self, asked: Request) -> Reply:
        """Help the server to prepare or open a sum, as far as the protocol allows it."""
        if asked.job != self._terms.job.digest or self._sums is None:
            raise RefusedError(Code.OTHER_JOB)
        with self.ledger.page() as page, refusing_sums():
            self._notary.take(asked, page)
            mine = page.account.run(asked.run)
            known = [run for run, _ in page.account.runs]
            answer = self._sums.answer(asked.run, asked.body, None if mine is None else mine.newest, known)
            return self._message(asked, 0, answer)

    def _bore_witness(self, asked: Request) -> Reply:
        """Send the ledger heads of all silos that this silo has seen, including its own."""
        if asked.job != self._terms.job.digest:
            raise RefusedError(Code.OTHER_JOB)
        with self.ledger.page() as page:
            self._notary.take(asked, page)
            return self._message(asked, 0, self._notary.heads(asked.run, page))

    def _certified(self, asked: Request) -> Reply:
        """Send a certificate of what this silo released in a run."""
        job = self._terms.job
        if asked.job != job.digest:
            raise RefusedError(Code.OTHER_JOB)
        parameters = self._model_in(asked)
        with self.ledger.page() as page:
            self._notary.take(asked, page)
            account = page.account.run(asked.run)
            if account is not None and account.opened != self._terms.opening(asked.run):
                # It would vouch for the current noise and records, but the run had others.
                raise RefusedError(Code.STATE_LOST)
            if account is not None:
                self._finals.evaluate(asked, parameters, account, page)
            certificate = self._notary.certificate(asked.run, parameters, page)
            if self._sums is not None and asked.round >= job.rounds:
                # The run is over: whoever breaks in later finds no keys of its masks.
                self._sums.forget(asked.run)
            return self._message(asked, account.releases if account else 0, certificate)

    def _finally_released(self, asked: Request) -> Reply:
        """Send this silo's part of a final release: the same bytes to whoever asks again."""
        job = self._terms.job
        release = next((one for one in job.separate_finals if one.name.kind == asked.kind), None)
        if asked.job != job.digest or release is None:
            raise RefusedError(Code.OTHER_JOB)
        if asked.round != release.round:
            raise RefusedError(Code.NO_SUCH_ROUND)
        parameters = self._model_in(asked)
        with self.ledger.page() as page:
            if self._ranges.halted:
                raise halted()
            self._notary.take(asked, page)
            body = self._finals.part(release, asked, parameters, page)
            reply = self._message(asked, 0, body, head=self._notary.head(asked.run, page))
        # Also if it is sent again: the disk may have been full the first time.
        self._home.mark_released()
        return reply

    def _model_in(self, asked: Request) -> Tensor:
        try:
            return point_from_bytes(asked.body, self._terms.job.algorithm.work.model.dim)
        except MessageError as error:
            raise RefusedError(Code.BAD_POINT) from error
