"""The server's side of a run: ask, check, add up, step, write down; and go on where it was killed.

Divisors are those of the recipe, whoever answered. With M sites asked and A of them usable,

    Direct    direction = (1/M) sum over A of v_i: a shorter step the more are missing, and never more noise
              in the direction than was planned for;
    Shifted   direction = s + (1/M) sum over A of v_i: the shift s_i stands in for the gradient of a missing site;
              s += gamma (1/N) sum over A of v_i, and exactly the sites of A are told that their message counted.

So s stays the mean of all sites' own shifts, and with nobody missing a round is the simulator's, bit for bit.
Messages are protected one by one before they arrive: what the server divides by costs no privacy. Behind a
shuffler (`reading.Mixed`) a round has all of its messages or is not read at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from tacit._version import __version__
from tacit.deploy.frames import Reply, Request, heads_from_values, point_to_bytes
from tacit.deploy.guard import check_trust
from tacit.deploy.heads import Heads
from tacit.deploy.identities import check_own_key
from tacit.deploy.job import Job
from tacit.deploy.reading import QuorumError, Reader, answer_to, reader_for
from tacit.deploy.run_state import RunState
from tacit.deploy.seam import Answer, Backend, Code, SiteError
from tacit.deploy.silo_checks import Trusted, check_silo, read_basis
from tacit.deploy.testimony import testify_run
from tacit.engine import checkpoint as checkpoints
from tacit.engine.round import server_round, server_start
from tacit.errors import MessageError, RequestError, TacitError, count, positive
from tacit.privacy.certificate import CertificateError, read_signed

_LOG = logging.getLogger("tacit.deploy.server")
CERTIFICATE_LIMIT = 2**23
_HEADS_LIMIT = 2**22


class DivergedError(TacitError):
    """The model is no longer finite."""


@dataclass(frozen=True)
class RoundReport:
    """What happened in one round, for logs and tables."""

    round: int
    """how many rounds are done now"""
    rounds: int
    used: tuple[str, ...]
    problems: Mapping[str, Code]
    uplink_bytes: int
    replies: Mapping[str, Reply]
    """of the sites that were used: their releases so far, and what their part will have cost in the end"""
    seconds: float

    def to_json(self) -> str:
        """As one line of a log."""
        return json.dumps(
            {
                "round": self.round,
                "used": list(self.used),
                "problems": {site: str(code) for site, code in self.problems.items()},
                "uplink_bytes": self.uplink_bytes,
                "seconds": round(self.seconds, 3),
                **({"losses": self.losses} if self.losses else {}),
            }
        )

    @property
    def losses(self) -> dict[str, float]:
        """What silos released about their mean losses, with noise."""
        return {site: reply.loss for site, reply in self.replies.items() if reply.loss is not None}


@dataclass(frozen=True)
class _Message:
    """What one site sent: the answer, and what is in it, read."""

    reply: Reply
    content: Any


@dataclass(frozen=True)
class Finished:
    """A finished run."""

    run: str
    parameters: Tensor
    certificate: bytes
    problems: Mapping[str, int]
    answered: Mapping[str, int]


@dataclass(frozen=True)
class Server:
    """A run of a job over some backend, in a directory of its own.

    The directory holds the newest checkpoint, `rounds.jsonl`, and in the end model and certificate. A second
    `Server` for the same job and directory goes on where the first was killed.
    """

    job: Job
    backend: Backend
    directory: Path
    quorum: int
    """how many usable answers a round needs"""
    deadline_seconds: float
    signer: Ed25519PrivateKey
    """the server's own key, for the certificate of the run"""
    attempts: int = 3
    """how often a round is asked for before the run stops for want of a quorum"""
    progress: Callable[[RoundReport], None] = lambda report: None
    at: Callable[[str], None] = lambda moment: None
    """called before and after whatever changes something; tests die there"""
    key: X25519PrivateKey | None = None
    """for messages that were sealed for the server, where a shuffler mixes them"""

    def __post_init__(self) -> None:
        positive("deadline_seconds", self.deadline_seconds)
        count("attempts", self.attempts)
        if count("quorum", self.quorum) > len(self.job.sites):
            raise RequestError(f"quorum = {self.quorum} is more than the {len(self.job.sites)} sites there are")
        check_trust(self.job)
        check_own_key(self.job.identities, "server", self.signer)
        # Refuses what it could not read.
        reader_for(self.job, self.backend, self.key, self.deadline_seconds, self.attempts)

    @cached_property
    def _reader(self) -> Reader:
        return reader_for(self.job, self.backend, self.key, self.deadline_seconds, self.attempts)

    @cached_property
    def _heads(self) -> Heads:
        identities = check_own_key(self.job.identities, "server", self.signer)
        return Heads(self.job.digest, identities.silos)

    def run(self) -> Finished:
        """All rounds that are still missing, then the certificates."""
        state = self._load()
        self._ask_for_heads(Request("heads", state.run, state.round, self.job.digest))
        while state.round < self.job.rounds:
            started = time.monotonic()
            state, report = self._advance(state)
            self._save(state)
            report = replace(report, seconds=time.monotonic() - started)
            self._note(report)
        return self._finish(state)

    def _ask_for_heads(self, request: Request) -> None:
        """Gather the ledger heads that silos have witnessed: one whose state was set back shall see its own."""
        answers = self.backend.run_round(
            request.encode(),
            sites=self.job.sites,
            quorum=min(self.quorum, len(self.job.sites)),
            deadline_seconds=self.deadline_seconds,
        )
        for site, answer in answers.items():
            reply = answer_to(answer, site, request, _HEADS_LIMIT)
            if isinstance(reply, Code):
                _LOG.warning("ledger heads of %s: %s", site, reply)
                continue
            try:
                self._heads.told(site, heads_from_values(json.loads(reply.body)["heads"]))
            except (MessageError, ValueError, KeyError, TypeError, RecursionError):
                _LOG.warning("ledger heads of %s: %s", site, Code.BAD_MESSAGE)

    def _load(self) -> RunState:
        saved = checkpoints.latest(self._checkpoints, self._fingerprint)
        if saved is not None:
            return RunState.from_checkpoint(saved)
        state = RunState(secrets.token_hex(16), 0, server_start(self.job.algorithm, self.job.start()))
        # Before the first request: a run whose name is forgotten would have to be paid for again.
        self._save(state)
        return state

    @property
    def _checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def _fingerprint(self) -> str:
        return hashlib.sha256(f"{__version__}|{self.job.digest}".encode()).hexdigest()

    def _save(self, state: RunState) -> None:
        self.at("before checkpoint")
        checkpoints.save(self._checkpoints, state.to_checkpoint(self._fingerprint))
        self.at("after checkpoint")

    def _note(self, report: RoundReport) -> None:
        with (self.directory / "rounds.jsonl").open("a") as file:
            file.write(report.to_json() + "\n")
        self.progress(report)

    def _advance(self, state: RunState) -> tuple[RunState, RoundReport]:
        algorithm, sites = self.job.algorithm, self.job.cohort(state.round)
        point = algorithm.server.broadcast(state.server.update, state.round)
        if not bool(torch.isfinite(point).all()):
            raise DivergedError(f"before round {state.round} the model is no longer finite; use a smaller step")
        body = point_to_bytes(point)
        request = Request("round", state.run, state.round, self.job.digest, state.accepted, body)
        self.at("before asking")
        messages, problems = self._gather(request, sites, state)
        self.at("after answers")
        # In the order of the sites, as the simulator adds up.
        used = {site: messages[site].reply for site in sites if site in messages}
        total = self._reader.total(request, {site: messages[site].content for site in used})
        server = server_round(
            algorithm, total, state.server, round=state.round, cohort=len(sites), clients=len(self.job.sites)
        )
        after = RunState(
            state.run,
            state.round + 1,
            server,
            {**state.accepted, **dict.fromkeys(used, state.round)},
            {**state.digests, **{site: _digest(reply.body) for site, reply in used.items()}},
            state.problems + Counter(f"{site} {code}" for site, code in problems.items()),
            state.answered + Counter(used.keys()),
        )
        sent = sum(len(reply.body) for reply in used.values())
        return after, RoundReport(after.round, self.job.rounds, tuple(used), problems, sent, used, 0.0)

    def _gather(
        self, request: Request, sites: tuple[str, ...], state: RunState
    ) -> tuple[dict[str, _Message], dict[str, Code]]:
        """Usable messages by site, and what was wrong with the others; asks again while there are too few."""
        quorum = self._reader.quorum(self.quorum, len(sites))
        messages: dict[str, _Message] = {}
        problems: dict[str, Code] = {}
        for _ in range(self.attempts):
            missing = [site for site in sites if site not in messages]
            answers = self.backend.run_round(
                replace(request, heads=self._heads.newest()).encode(),
                sites=missing,
                quorum=quorum - len(messages),
                deadline_seconds=self.deadline_seconds,
            )
            for site in missing:
                read = self._message(answers.get(site, SiteError(Code.NO_ANSWER)), site, request, state)
                if isinstance(read, _Message):
                    messages[site] = read
                    problems.pop(site, None)
                else:
                    problems[site] = read
                    _LOG.warning("round %d: %s: %s", request.round, site, read)
            if Code.LEDGER_CONFLICT in problems.values():
                # Whoever objects has evidence, which the silo in question should see.
                self._ask_for_heads(replace(request, kind="heads", body=b""))
            if len(messages) >= quorum:
                return messages, problems
        raise QuorumError(_too_few(request.round, len(messages), quorum, problems))

    def _message(self, answer: Answer, site: str, request: Request, state: RunState) -> _Message | Code:
        """The message in an answer, if there is one that can be added up."""
        reply = answer_to(answer, site, request, self._reader.sent_bytes)
        if isinstance(reply, Code):
            return reply
        if state.digests.get(site) == _digest(reply.body):
            return Code.REPLAYED
        if not self._heads.answered(site, reply.head, run=request.run, round=request.round):
            return Code.BAD_MESSAGE
        content = self._reader.read(reply.body)
        return Code.BAD_MESSAGE if content is None else _Message(reply, content)

    def _finish(self, state: RunState) -> Finished:
        parameters = self.job.algorithm.server.output(state.server.update).cpu()
        body = point_to_bytes(parameters)
        request = Request("certify", state.run, state.round, self.job.digest, state.accepted, body)
        silos: dict[str, bytes | None] = dict.fromkeys(self.job.sites)
        for _ in range(self.attempts):
            missing = [site for site, silo in silos.items() if silo is None]
            if not missing:
                break
            answers = self.backend.run_round(
                replace(request, heads=self._heads.newest()).encode(),
                sites=missing,
                quorum=len(missing),
                deadline_seconds=self.deadline_seconds,
            )
            for site in missing:
                silos[site] = self._certificate(answers.get(site, SiteError(Code.NO_ANSWER)), site, request)
        facts: dict[str, Any] = {
            "rounds": state.round,
            "messages_used": dict(state.answered),
            "problems": dict(state.problems),
        }
        certificate = testify_run(self.job, state.run, parameters, silos, facts, self.signer, self.directory)
        return Finished(state.run, parameters, certificate, dict(state.problems), dict(state.answered))

    def _certificate(self, answer: Answer, site: str, request: Request) -> bytes | None:
        read = answer_to(answer, site, request, CERTIFICATE_LIMIT)
        if isinstance(read, Code):
            _LOG.warning("certificate of %s: %s", site, read)
            return None
        try:
            body = read_signed(read.body)
            mine = (body.get("kind"), body.get("site"), body.get("run"), body.get("job"))
            if mine != ("silo", site, request.run, request.job):
                raise CertificateError("it is about another site, run or job")
            check_silo(body, read_basis(body, None, Trusted(job=self.job.text.encode())))
        except CertificateError as error:
            _LOG.warning("certificate of %s: %s", site, error)
            return None
        return read.body


def _digest(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()


def _too_few(round: int, got: int, quorum: int, problems: Mapping[str, Code]) -> str:
    what = ", ".join(f"{site}: {code}" for site, code in sorted(problems.items()))
    return (
        f"round {round}: {got} usable answers, and the quorum is {quorum} ({what}); bring the sites back and "
        "start the server again in the same directory, or lower the quorum"
    )
