"""A silo: answers the server's requests, and keeps its own promise whatever the server asks.

    request -> is it for our job, our round, a finite point? -> was it answered before? the same bytes again
            -> can the budget bear one more release? -> client_round (-> covered, where a shuffler mixes messages)
            -> memory to disk -> ledger to disk -> answer

Nothing leaves before its line in the ledger is on the disk. What goes wrong becomes a bare code; the reason is
written into the silo's own `errors.log`. A round whose computation fails may fail because of a record, and that
it failed is then a message without noise. So the silo stops for good there, until its own people have looked at
it and removed the file `halted`: a server cannot ask again and again for points at which it fails.

Every answer carries the head of the ledger, signed, and every request the newest heads of all silos. A silo keeps
those of the others as their witness, and stops when it is shown one of its own that its ledger does not have.
"""

from __future__ import annotations

import hashlib
import logging
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from tacit.client.cohort import Cohort
from tacit.deploy.frames import Reply, Request, point_from_bytes
from tacit.deploy.guard import Terms, admit
from tacit.deploy.heads import Head
from tacit.deploy.job import Job
from tacit.deploy.memory import Memory, MemoryFiles, new_secret
from tacit.deploy.mixing import Covers, context_of, mixing_of, point_digest
from tacit.deploy.notary import Notary
from tacit.deploy.policy import Policy
from tacit.deploy.seam import Code
from tacit.deploy.witness import HeadsError
from tacit.engine.files import write_atomically
from tacit.engine.round import ClientState, client_round, client_start
from tacit.engine.threads import suitable_threads
from tacit.errors import DataError, MessageError, RequestError
from tacit.federation import Federation
from tacit.privacy import events
from tacit.privacy.ledger import Ledger, LedgerBusyError, Page, RunAccount

_LOG = logging.getLogger("tacit.deploy.silo")
Result = TypeVar("Result")
Moment = Callable[[str], None]
"""Called with a name before and after every durable write; tests die there."""


class _RefusedError(Exception):
    def __init__(self, code: Code) -> None:
        super().__init__(code)
        self.code = code


class Silo:
    """One site's whole guarded path, from the bytes of a request to the bytes of an answer.

    Guarantee: all messages that ever leave silos with this `state_dir` together keep the policy's (epsilon,
    delta), whatever requests arrive, in whatever order, however often the process dies in between, and whoever
    sends them. (Not if the directory is set back to an older copy: do not restore it from a backup. The silo
    notices once somebody shows it a head that it signed since.)
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
        self._terms = terms
        self._notary = Notary(terms, key, state_dir)
        self._directory = state_dir
        self._at = at
        self._stopped = False
        self._covers, self._mixing = covers, mixing_of(terms.job.algorithm)
        if self._mixing is not None and covers is None:
            raise RequestError(
                f"algorithm {terms.job.recipe.algorithm!r} needs a shuffler, and this silo has no keys for it: "
                "provision the consortium with this version, which makes them"
            )
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._ledger = Ledger(state_dir / "ledger.sqlite")
        with self._ledger.page() as page:
            terms.policy.check_past(page.account)
            self._notary.check(page)

    @classmethod
    def open(
        cls,
        job_text: str,
        policy_text: str,
        records: Federation,
        state_dir: Path,
        *,
        site: str,
        key: Ed25519PrivateKey,
        covers: Covers | None = None,
    ) -> Silo:
        """A silo for a job, with its own policy and its own records; a job that it must refuse is an error."""
        terms = admit(Job.from_text(job_text), Policy.from_toml(policy_text), site, records)
        return cls(terms, state_dir, key=key, covers=covers)

    @property
    def terms(self) -> Terms:
        """On which it takes part."""
        return self._terms

    @property
    def ledger(self) -> Ledger:
        """What it has released."""
        return self._ledger

    def step(self, request: bytes) -> bytes:
        """The answer to a request; no exception leaves it but the end of the process."""
        try:
            asked = Request.decode(request, body_limit=4 * self._terms.job.algorithm.work.model.dim)
        except MessageError:
            return Reply(Code.MALFORMED, self._terms.site).encode()
        if asked.kind == "mix":
            return self._bare(Code.MALFORMED, asked).encode()
        try:
            reply = self._replied(asked)
        except _RefusedError as refused:
            reply = self._bare(refused.code, asked)
        except HeadsError as refused:
            # Names and numbers of lines, and nothing of any record.
            _LOG.error("%s", refused)
            reply = self._bare(refused.code, asked)
        except LedgerBusyError:
            reply = self._bare(Code.BUSY, asked)
        except Exception:
            # Its text may quote a record: it must not reach the server, nor any log that others read.
            self._keep_to_ourselves(traceback.format_exc())
            reply = self._bare(Code.FAILED, asked)
        return reply.encode()

    def _replied(self, asked: Request) -> Reply:
        match asked.kind:
            case "certify":
                return self._certified(asked)
            case "heads":
                return self._bore_witness(asked)
            case _:
                return self._answered(asked)

    def _bare(self, code: Code, asked: Request) -> Reply:
        return Reply(code, self._terms.site, asked.run, asked.round, insecure=self._terms.job.insecure)

    def _keep_to_ourselves(self, text: str) -> None:
        try:
            handle = os.open(self._directory / "errors.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            with os.fdopen(handle, "a") as file:
                file.write(text + "\n")
        except OSError:
            # A full disk is a likely reason for being here.
            return

    def _answered(self, asked: Request) -> Reply:
        job, site = self._terms.job, self._terms.site
        if asked.job != job.digest:
            raise _RefusedError(Code.OTHER_JOB)
        if asked.round >= job.rounds or site not in job.cohort(asked.round):
            raise _RefusedError(Code.NO_SUCH_ROUND)
        try:
            point = point_from_bytes(asked.body, job.algorithm.work.model.dim)
        except MessageError as error:
            raise _RefusedError(Code.BAD_POINT) from error
        with self._ledger.page() as page:
            if self._stopped or self._halted.exists():
                raise _RefusedError(Code.FAILED)
            self._notary.take(asked, page)
            account = page.account.run(asked.run)
            last = None if account is None else account.last
            if last is not None and asked.round <= last["round"]:
                return self._again(asked, page, last["releases"], last["round"], last["point"], last["memory"])
            return self._first_time(asked, point, page, account)

    def _again(self, asked: Request, page: Page, releases: int, round: int, point: str, memory: str) -> Reply:
        """The bytes of before: a second draw of noise for one round would cost twice."""
        if asked.round < round:
            raise _RefusedError(Code.PAST_ROUND)
        if hashlib.sha256(asked.body).hexdigest() != point:
            raise _RefusedError(Code.CHANGED_POINT)
        remembered = self._remembered(asked.run, round, memory)
        head = self._notary.head(asked.run, page)
        return self._message(asked, releases, remembered.message, remembered.loss, head)

    def _first_time(self, asked: Request, point: Tensor, page: Page, account: RunAccount | None) -> Reply:
        terms, releases = self._terms, 1 if account is None else account.releases + 1
        opened = terms.opening(asked.run)
        if account is None:
            page.append(opened)
        elif account.opened != opened:
            # Earlier releases of this run had other terms: no event could cover both.
            raise _RefusedError(Code.STATE_LOST)
        if releases > terms.planned or not terms.afford(page.account, asked.run, releases):
            raise _RefusedError(Code.BUDGET_SPENT)
        memory = self._compute(asked, point, account, releases)
        files = self._files(asked.run)
        self._at("before memory")
        digest = files.write(asked.round, memory.to_bytes())
        self._at("after memory")
        page.append(
            {
                "kind": "release",
                "run": asked.run,
                "round": asked.round,
                "releases": releases,
                "event": events.to_dict(terms.event(releases)),
                "point": hashlib.sha256(asked.body).hexdigest(),
                "message": hashlib.sha256(memory.message).hexdigest(),
                "memory": digest,
            }
        )
        self._at("before ledger")
        page.commit()
        self._at("after ledger")
        files.keep_only(asked.round)
        head = self._notary.head(asked.run, page)
        return self._message(asked, releases, memory.message, memory.loss, head)

    def _compute(self, asked: Request, point: Tensor, account: RunAccount | None, releases: int) -> Memory:
        """One round of this silo alone."""
        terms, job = self._terms, self._terms.job
        state, secret = self._state(asked, account)
        # The round consumes what goes in, and the server may never use what comes out.
        uplink = {name: tensor.clone() for name, tensor in state.uplink.items()}
        cohort = Cohort(terms.federation, torch.zeros(1, dtype=torch.int64), asked.round, job.randomness(secret))
        multipliers = torch.tensor([terms.noise_multiplier], dtype=torch.float64)
        work = job.algorithm.work
        operations = 3 * float(work.records_in_memory(cohort.sizes).sum()) * work.model.dim
        with suitable_threads(operations):
            loss = self._or_halt(lambda: self._loss(point, cohort, releases))
            packets, after = self._or_halt(lambda: client_round(job.algorithm, point, cohort, state, multipliers))
        message = self._covered(packets.encode()[0], asked)
        return Memory(after.work, uplink, after.uplink, message, secret, loss)

    def _loss(self, point: Tensor, cohort: Cohort, releases: int) -> float | None:
        terms, report = self._terms, self._terms.job.report
        if report is None or not report.due(releases):
            return None
        model, kind = terms.job.algorithm.work.model, terms.job.report_kind
        return report.measure(model, point, cohort, terms.report_noise, kind)

    def _covered(self, message: bytes, asked: Request) -> bytes:
        if self._mixing is None or self._covers is None:
            return message
        context = context_of(asked.job, asked.run, asked.round, point_digest(asked.body))
        return self._mixing.cover(message, self._covers, context)

    def _or_halt(self, compute: Callable[[], Result]) -> Result:
        try:
            return compute()
        except (OSError, MemoryError):
            # The machine's fault, whatever the records are.
            raise
        except Exception:
            # Also where there is no room for the file.
            self._stopped = True
            write_atomically(self._halted, b"See errors.log. Remove this file to let the silo answer again.\n")
            self._stopped = False
            raise

    @property
    def _halted(self) -> Path:
        return self._directory / "halted"

    def _state(self, asked: Request, account: RunAccount | None) -> tuple[ClientState, int | None]:
        """What the last round left, as the server's acknowledgement settles it."""
        job, accepted = self._terms.job, asked.accepted.get(self._terms.site)
        last = None if account is None else account.last
        if accepted is not None and (last is None or accepted > last["round"]):
            # The server used a message that this ledger does not know.
            raise _RefusedError(Code.STATE_LOST)
        if last is None:
            return client_start(job.algorithm, job.start(), self._terms.federation), new_secret(job.insecure)
        memory = self._remembered(asked.run, last["round"], last["memory"])
        return memory.next_state(accepted=accepted == last["round"]), memory.secret

    def _remembered(self, run: str, round: int, digest: str) -> Memory:
        try:
            return self._files(run).read(round, digest)
        except DataError as error:
            self._keep_to_ourselves(str(error))
            raise _RefusedError(Code.STATE_LOST) from error

    def _files(self, run: str) -> MemoryFiles:
        return MemoryFiles(self._directory / "runs" / run)

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

    def _bore_witness(self, asked: Request) -> Reply:
        """The heads that this silo has seen of all ledgers, its own among them."""
        if asked.job != self._terms.job.digest:
            raise _RefusedError(Code.OTHER_JOB)
        with self._ledger.page() as page:
            self._notary.take(asked, page)
            return self._message(asked, 0, self._notary.heads(asked.run, page))

    def _certified(self, asked: Request) -> Reply:
        """A certificate of what this silo released in a run."""
        job = self._terms.job
        if asked.job != job.digest:
            raise _RefusedError(Code.OTHER_JOB)
        try:
            parameters = point_from_bytes(asked.body, job.algorithm.work.model.dim)
        except MessageError as error:
            raise _RefusedError(Code.BAD_POINT) from error
        with self._ledger.page() as page:
            self._notary.take(asked, page)
            account = page.account.run(asked.run)
            if account is not None and account.opened != self._terms.opening(asked.run):
                # It would vouch for the noise and the records of today, and the run had others.
                raise _RefusedError(Code.STATE_LOST)
            certificate = self._notary.certificate(asked.run, parameters, page)
            return self._message(asked, account.releases if account else 0, certificate)
