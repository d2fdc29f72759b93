"""The server's side of a run: ask, check, add up, step, save; after a crash, continue from the last round.

Divisors are those of the recipe, whoever answered. With M sites asked and A of them usable,

    Direct    direction = (1/M) sum over A of v_i: the more are missing, the shorter the step, and there is never
              more noise in the direction than planned;
    Shifted   direction = s + (1/M) sum over A of v_i: the shift s_i replaces the gradient of a missing site;
              s += gamma (1/N) sum over A of v_i, and exactly the sites of A are told that their message counted.

So s stays the mean of all sites' own shifts. If nobody is missing, a round equals the simulator's, bit for bit.
Each message is protected before it arrives, so the server's choice of divisor costs no privacy. With a shuffler
(`reading.Mixed`), a round has all of its messages or is not read at all. With sums (`summed.Summed`), the server
learns one sum over a quorum of silos, and divides it by their number.
"""

from __future__ import annotations

import hashlib
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
from tacit.deploy.advice import advice
from tacit.deploy.asking_finals import FinalRounds
from tacit.deploy.frames import Request, point_to_bytes, state_to_bytes
from tacit.deploy.gathering import Gathering
from tacit.deploy.guard import check_trust
from tacit.deploy.heads import Heads
from tacit.deploy.identities import check_own_key
from tacit.deploy.job import Job
from tacit.deploy.readers import reader_for
from tacit.deploy.reading import Reader, answer_to
from tacit.deploy.rounds import RoundLog, RoundReport
from tacit.deploy.run_state import RunState
from tacit.deploy.seam import Answer, Backend, Code
from tacit.deploy.searching import learn_ranges
from tacit.deploy.signatures import CertificateError, read_signed
from tacit.deploy.silo_checks import Trusted, check_silo, read_basis
from tacit.deploy.statements import testify_run
from tacit.engine import checkpoint as checkpoints
from tacit.engine.round import broadcast, server_round, server_start, shared_coordinates
from tacit.errors import DataError, DivergedError, RequestError, TacitError, count, positive

_LOG = logging.getLogger("tacit.deploy.server")
CERTIFICATE_LIMIT = 2**23
_CHECKPOINT_COPIES = 2


class LostRunError(TacitError):
    """The server's state of a run is lost, and silos have already been charged for that run."""


@dataclass(frozen=True)
class Finished:
    """The result of a finished run."""

    run: str
    parameters: Tensor
    certificate: bytes
    problems: Mapping[str, int]
    answered: Mapping[str, int]
    correction: Mapping[str, Any] | None = None
    """how the trained model was corrected, if it was"""


@dataclass(frozen=True)
class Server:
    """A run of a job over a backend, in a directory of its own.

    The directory holds two copies of the newest checkpoint, `rounds.jsonl` and, at the end, the model and the
    certificate. A second `Server` for the same job and directory continues where the first was killed. Both
    copies of a checkpoint are on disk before the next round is requested, so a damaged copy costs nothing: either
    the other copy is just as new, or no silo has seen a later round.
    """

    job: Job
    backend: Backend
    directory: Path
    quorum: int
    """how many usable answers a round needs"""
    deadline_seconds: float
    signer: Ed25519PrivateKey
    """the server's private key, which signs the run's certificate"""
    attempts: int = 3
    """how many deadlines to wait for a quorum before the run stops"""
    progress: Callable[[RoundReport], None] = lambda report: None
    notify: Callable[[str], None] = lambda text: None
    """called with a text for people: what is missing or wrong, and what to do about it"""
    at: Callable[[str], None] = lambda moment: None
    """called before and after every change of state; tests stop the server there"""
    key: X25519PrivateKey | None = None
    """opens messages that were sealed for the server; needed with a shuffler"""

    def __post_init__(self) -> None:
        positive("deadline_seconds", self.deadline_seconds)
        count("attempts", self.attempts)
        if count("quorum", self.quorum) > len(self.job.sites):
            raise RequestError(f"quorum = {self.quorum} is more than the number of sites, {len(self.job.sites)}")
        check_trust(self.job)
        check_own_key(self.job.identities, "server", self.signer)
        # Fails early if the server could not read the messages.
        self._made_reader()

    @cached_property
    def _reader(self) -> Reader:
        return self._made_reader()

    def _made_reader(self) -> Reader:
        return reader_for(self.job, self.backend, self.key, self.directory, self.deadline_seconds, self.attempts)

    @cached_property
    def _gathering(self) -> Gathering:
        identities = check_own_key(self.job.identities, "server", self.signer)
        heads = Heads(self.job.digest, identities.silos)
        return Gathering(
            self.backend,
            self._reader,
            heads,
            self.job.sites,
            self.quorum,
            self.deadline_seconds,
            self.attempts,
            self.notify,
        )

    def run(self) -> Finished:
        """Run all remaining rounds, then collect the certificates."""
        state, told = self._load(), set[tuple[str, Code]]()
        self._gathering.ask_for_heads(Request("heads", state.run, state.round, self.job.digest))
        learned = self._learned(state)
        while state.round < self.job.rounds:
            started = time.monotonic()
            state, report = self._advance(state, learned)
            self._save(state)
            report = replace(report, seconds=time.monotonic() - started)
            self._log.note(report)
            self.progress(report)
            news = {site: code for site, code in report.problems.items() if (site, code) not in told}
            if news:
                self.notify(f"round {report.round} was completed without {advice(news)}")
                told |= set(news.items())
        return self._finish(state, learned)

    def _learned(self, state: RunState) -> bytes:
        """The means of a search that all ranges follow from, if the job leaves any open."""
        if self.job.ranges is None:
            return b""
        request = Request("range", state.run, 0, self.job.digest)
        return learn_ranges(self.job.ranges, request, self._gathering, self._means)

    @property
    def _means(self) -> Path:
        return self.directory / "ranges.json"

    def _load(self) -> RunState:
        try:
            saved = checkpoints.latest(self._checkpoints, self._fingerprint, notify=self.notify)
            state = None if saved is None else RunState.from_checkpoint(saved)
        except checkpoints.OtherRunError as error:
            raise RequestError(
                f"{error}, and can only continue with that job and version. Restore the job.toml and the version "
                "that it began with; for another recipe, provision a new consortium. "
                + self._log.price_of_another_run()
            ) from error
        except DataError as error:
            raise LostRunError(f"the run cannot continue: {error}. {self._log.price_of_another_run()}") from error
        if state is None and (self._log.paid() or self._means.exists()):
            raise LostRunError(
                f"no checkpoint is left of a run that was started. {self._log.price_of_another_run()}"
            )
        if state is None:
            state = RunState(secrets.token_hex(16), 0, server_start(self.job.algorithm, self.job.start()))
        # Saved before the first request, because a run whose name is lost would be charged again. Saved also when
        # a run is continued, to restore a copy that may have been lost.
        self._save(state)
        return state

    @property
    def _log(self) -> RoundLog:
        return RoundLog(self.directory / "rounds.jsonl")

    @property
    def _checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def _fingerprint(self) -> str:
        return hashlib.sha256(f"{__version__}|{self.job.digest}".encode()).hexdigest()

    def _save(self, state: RunState) -> None:
        self.at("before checkpoint")
        saved = state.to_checkpoint(self._fingerprint)
        checkpoints.save(self._checkpoints, saved, copies=_CHECKPOINT_COPIES)
        self.at("after checkpoint")

    def _advance(self, state: RunState, learned: bytes) -> tuple[RunState, RoundReport]:
        algorithm, sites = self.job.algorithm, self.job.cohort(state.round)
        sent = broadcast(algorithm, state.server, state.round)
        if not all(bool(torch.isfinite(tensor).all()) for tensor in sent.values()):
            raise DivergedError(f"before round {state.round} the model is no longer finite; use a smaller step")
        body = state_to_bytes(sent)
        request = Request("round", state.run, state.round, self.job.digest, state.accepted, body, learned=learned)
        self.at("before asking")
        self._reader.prepare(request)
        messages, problems = self._gathering.messages(request, sites, state.digests)
        self._reader.noted(problems)
        self.at("after answers")
        # In the order of the sites, as in the simulator.
        used = {site: messages[site].reply for site in sites if site in messages}
        total, cohort = self._reader.total(request, {site: messages[site].content for site in used})
        server = server_round(
            algorithm,
            total,
            state.server,
            round=state.round,
            cohort=cohort,
            clients=len(self.job.sites),
            at=shared_coordinates(algorithm, len(total), state.round, self.job.randomness()),
        )
        after = RunState(
            state.run,
            state.round + 1,
            server,
            {**state.accepted, **dict.fromkeys(used, state.round)},
            {**state.digests, **{site: messages[site].digest for site in used}},
            state.problems + Counter(f"{site} {code}" for site, code in problems.items()),
            state.answered + Counter(used.keys()),
        )
        uplink = sum(len(reply.body) for reply in used.values())
        report = RoundReport(after.round, self.job.rounds, tuple(used), problems, uplink, used, 0.0, state.run)
        return after, report

    def _finish(self, state: RunState, learned: bytes) -> Finished:
        parameters = self.job.algorithm.server.output(state.server.update).cpu()
        request = Request("certify", state.run, state.round, self.job.digest, state.accepted, learned=learned)
        final = FinalRounds(self.job, self._gathering, self.directory, self.at).outcome(request, parameters)
        parameters = final.parameters
        request = replace(request, body=point_to_bytes(parameters))
        silos: dict[str, bytes | None] = dict.fromkeys(self.job.sites)
        for _ in range(self.attempts):
            missing = [site for site, silo in silos.items() if silo is None]
            if not missing:
                break
            for site, answer in self._gathering.ask(request, missing, len(missing)).items():
                silos[site] = self._certificate(answer, site, request)
        facts: dict[str, Any] = {
            "rounds": state.round,
            "messages_used": dict(state.answered),
            "problems": dict(state.problems),
            **final.stated,
        }
        ranges = self.job.ranges.found(learned) if self.job.ranges is not None else {}
        certificate = testify_run(
            self.job, state.run, parameters, silos, facts, self.signer, self.directory, ranges
        )
        return Finished(
            state.run, parameters, certificate, dict(state.problems), dict(state.answered), final.correction
        )

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
