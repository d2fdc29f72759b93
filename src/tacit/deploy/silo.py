"""A silo: answers the server's requests, and keeps its own promise whatever the server asks.

    request -> is it for our job, our round, a finite point? -> was it answered before? the same bytes again
            -> a new run: can the budget bear all of it? a known one: is this among its planned releases?
            -> are the records those that the run began with? -> computation (-> covered, for a shuffler)
            -> memory to disk -> ledger to disk -> answer

Nothing leaves before its line in the ledger is on the disk. What goes wrong becomes a bare code; the reason is
written into the silo's own `errors.log`, and told to its own people where they can do something about it.

Every answer carries the head of the ledger, signed, and every request the newest heads of all silos. A silo keeps
those of the others as their witness, and stops when it is shown one of its own that its ledger does not have.
"""

from __future__ import annotations

import hashlib
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.deploy.computation import Computation
from tacit.deploy.frames import Reply, Request, point_from_bytes, state_from_bytes
from tacit.deploy.guard import Terms, admit
from tacit.deploy.heads import Head
from tacit.deploy.home import Home
from tacit.deploy.job import Job
from tacit.deploy.ledger import Account, Ledger, LedgerBusyError, LedgerRun, Page
from tacit.deploy.mixing import Covers
from tacit.deploy.notary import Notary
from tacit.deploy.policy import Policy
from tacit.deploy.seam import Code
from tacit.deploy.silo_memory import Fingerprint, Memory, new_secret
from tacit.deploy.witness import HeadsError
from tacit.engine.round import ClientState, client_start
from tacit.errors import DataError, MessageError
from tacit.federation import Federation
from tacit.state import State

_LOG = logging.getLogger("tacit.deploy.silo")
_WAYS_OUT = (
    "It can go on only with the records of its beginning, in the same order: put them back, or let it end "
    "without this silo. Corrected records can take part in a new run"
)
Moment = Callable[[str], None]
"""Called with a name before and after every durable write; tests die there."""


class _RefusedError(Exception):
    """A code for the server, and the reason for the silo's own people where there is more to say."""

    def __init__(self, code: Code, reason: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.reason = reason


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
        """Open a silo on its terms.

        state_dir: its own directory, see `Home`.
        key: with which it signs, named in the job.
        covers: how it covers messages for a shuffler, where there is one.
        at: called before and after durable writes.
        """
        self._terms = terms
        self._at = at
        self._explained = ""
        self._same_records: dict[Fingerprint, bool] = {}
        self._notary = Notary(terms, key, state_dir)
        self._home = Home(state_dir)
        self._computation = Computation(terms, self._home, covers)
        with self.ledger.page() as page:
            terms.policy.check_past(page.account)
            self._notary.check(page)
            for reason in self._runs_that_cannot_go_on(page.account):
                _LOG.error("%s", reason)

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
        return self._home.ledger

    def step(self, request: bytes) -> bytes:
        """The answer to a request; no exception leaves it but the end of the process."""
        try:
            shapes = self._terms.job.broadcast_shapes
            asked = Request.decode(request, body_limit=4 * sum(shape.numel() for shape in shapes.values()))
        except MessageError:
            return Reply(Code.MALFORMED, self._terms.site).encode()
        if asked.kind == "mix":
            return self._bare(Code.MALFORMED, asked).encode()
        try:
            reply = self._replied(asked)
        except _RefusedError as refused:
            self._explain(refused, asked)
            reply = self._bare(refused.code, asked)
        except HeadsError as refused:
            # Names and numbers of lines, and nothing of any record.
            _LOG.error("%s", refused)
            reply = self._bare(refused.code, asked)
        except LedgerBusyError:
            reply = self._bare(Code.BUSY, asked)
        except Exception:
            # Its text may quote a record: it must not reach the server, nor any log that others read.
            self._home.note(traceback.format_exc())
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

    def _explain(self, refused: _RefusedError, asked: Request) -> None:
        """Tell our own people why; once, however often the server asks again."""
        line = f"{refused.code} to run {asked.run}: {refused.reason}"
        if refused.reason and line != self._explained:
            self._explained = line
            self._home.note(line)
            _LOG.error("%s", line)

    def _answered(self, asked: Request) -> Reply:
        job, site = self._terms.job, self._terms.site
        if asked.job != job.digest:
            raise _RefusedError(Code.OTHER_JOB)
        if asked.round >= job.rounds or site not in job.cohort(asked.round):
            raise _RefusedError(Code.NO_SUCH_ROUND)
        try:
            received = state_from_bytes(asked.body, job.broadcast_shapes)
        except MessageError as error:
            raise _RefusedError(Code.BAD_POINT) from error
        with self.ledger.page() as page:
            if self._computation.halted:
                raise _RefusedError(Code.FAILED)
            self._notary.take(asked, page)
            account = page.account.run(asked.run)
            last = None if account is None else account.last
            if last is not None and asked.round <= last["round"]:
                reply = self._again(asked, page, last["releases"], last["round"], last["point"], last["memory"])
            else:
                reply = self._first_time(asked, received, page, account)
        self._home.mark_released()
        self._at("after mark")
        return reply

    def _again(self, asked: Request, page: Page, releases: int, round: int, point: str, memory: str) -> Reply:
        """The bytes of before: a second draw of noise for one round would cost twice."""
        if asked.round < round:
            raise _RefusedError(Code.PAST_ROUND)
        if hashlib.sha256(asked.body).hexdigest() != point:
            raise _RefusedError(Code.CHANGED_POINT)
        remembered = self._remembered(asked.run, round, memory)
        head = self._notary.head(asked.run, page)
        return self._message(asked, releases, remembered.message, remembered.loss, head)

    def _first_time(self, asked: Request, received: State, page: Page, account: LedgerRun | None) -> Reply:
        terms, releases = self._terms, 1 if account is None else account.releases + 1
        opened = terms.opening(asked.run)
        if account is None:
            page.append(opened)
        elif account.opened != opened:
            # Earlier releases of this run had other terms: no event could cover both.
            raise _RefusedError(Code.STATE_LOST, f"it was begun on other terms. {_WAYS_OUT}")
        if releases > terms.planned:
            raise _RefusedError(Code.BUDGET_SPENT, f"all {terms.planned} planned releases were made")
        # The run itself is among those of the ledger now, in full.
        if refusal := terms.refusal(page.account):
            raise _RefusedError(Code.BUDGET_SPENT, refusal)
        state, secret, records = self._state(asked, account)
        memory = self._computation.run(asked, received, state, secret, records, releases)
        files = self._home.memories(asked.run)
        self._at("before memory")
        digest = files.write(asked.round, memory.to_bytes())
        self._at("after memory")
        line = {
            "kind": "release",
            "run": asked.run,
            "round": asked.round,
            "releases": releases,
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
        head = self._notary.head(asked.run, page)
        return self._message(asked, releases, memory.message, memory.loss, head)

    def _state(self, asked: Request, account: LedgerRun | None) -> tuple[ClientState, int | None, Fingerprint]:
        """What the last round left, as the server's acknowledgement settles it."""
        job, accepted = self._terms.job, asked.accepted.get(self._terms.site)
        last = None if account is None else account.last
        if accepted is not None and (last is None or accepted > last["round"]):
            raise _RefusedError(
                Code.STATE_LOST,
                "the server says that it has used a message of this run that is not in this ledger. If so, "
                "another copy of this folder has answered, or this is an older copy: stop all but the one that "
                "answered last",
            )
        if last is None:
            records = self._terms.federation
            start = client_start(job.algorithm, job.start(), records)
            return start, new_secret(job.insecure), Fingerprint.of(records)
        memory = self._remembered(asked.run, last["round"], last["memory"])
        return memory.next_state(accepted=accepted == last["round"]), memory.secret, memory.records

    def _remembered(self, run: str, round: int, digest: str) -> Memory:
        """The memory of a run, if it is there and these are the records that the run began with."""
        try:
            memory = self._home.memories(run).read(round, digest)
        except DataError as error:
            raise _RefusedError(Code.STATE_LOST, str(error)) from error
        if memory.records not in self._same_records:
            self._same_records[memory.records] = memory.records.matches(self._terms.federation)
        if not self._same_records[memory.records]:
            raise _RefusedError(Code.STATE_LOST, f"it was begun with other records. {_WAYS_OUT}")
        return memory

    def _runs_that_cannot_go_on(self, account: Account) -> Iterator[str]:
        """Unfinished runs of this job that were begun with other records or on other terms."""
        for run, begun in account.runs:
            if begun.opened.get("job") != self._terms.job.digest or begun.releases >= begun.planned:
                continue
            if begun.opened != self._terms.opening(run):
                yield f"run {run} is unfinished, and was begun on other terms. {_WAYS_OUT}"
            elif begun.last is not None:
                try:
                    self._remembered(run, begun.last["round"], begun.last["memory"])
                except _RefusedError as refused:
                    yield f"run {run} is unfinished: {refused.reason}"

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
        with self.ledger.page() as page:
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
        with self.ledger.page() as page:
            self._notary.take(asked, page)
            account = page.account.run(asked.run)
            if account is not None and account.opened != self._terms.opening(asked.run):
                # It would vouch for the noise and the records of today, and the run had others.
                raise _RefusedError(Code.STATE_LOST)
            certificate = self._notary.certificate(asked.run, parameters, page)
            return self._message(asked, account.releases if account else 0, certificate)
