"""Runs one party in its folder: the server, a silo or the shuffler."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import logging.handlers
import os
import signal
import time
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from types import FrameType

from tacit.deploy.flare.backend import Ended, EngineError, flare_backend
from tacit.deploy.flare.namesake import WARNING, LogWatch
from tacit.deploy.flare.processes import kept_running, last_lines, site_command
from tacit.deploy.flare.relay import SOCKET_VARIABLE, answering
from tacit.deploy.frames import Reply
from tacit.deploy.learning import OpenTable
from tacit.deploy.mixing import Covers
from tacit.deploy.party_folder import PartyFolder
from tacit.deploy.refusing import Refusing
from tacit.deploy.seam import Code, Party
from tacit.deploy.server import CERTIFICATE_LIMIT, Finished, Server
from tacit.deploy.shuffler import SHUFFLER, ShufflerParty
from tacit.deploy.signed_requests import OnlyForServer, SigningBackend
from tacit.deploy.silo import Silo
from tacit.deploy.spending import exposure, standing
from tacit.deploy.status import Board, SiloStatus
from tacit.engine.lock import held
from tacit.errors import MessageError, RequestError
from tacit.federation import Federation
from tacit.privacy.promises.guarantee import against
from tacit.privacy.promises.terms import PERSONS

_LOG = logging.getLogger("tacit.deploy.parties")
LOOK_SECONDS = 1.0
"""How often a silo checks whether its connection is up."""

QUIET_SECONDS = 60.0
"""Time before a warning is repeated."""

MOST_LOG_BYTES = 2**23
"""A server may invent runs as often as it likes, and the silo logs why it refuses each."""


def require_flare() -> None:
    """Raise an error that says how to install FLARE if it is missing."""
    if importlib.util.find_spec("nvflare") is None:
        raise RequestError("deployment needs NVIDIA FLARE, which is not installed: pip install 'tacit[deploy]'")


def new_board(party: PartyFolder) -> Board:
    """An empty status board for a server's run."""
    job = party.job
    title = f"{job.recipe.algorithm}, {len(job.sites)} silos, quorum {party.quorum}{', sums only' * job.summed}"
    silos = {site: SiloStatus() for site in job.sites}
    return Board(
        title,
        job.rounds,
        silos,
        insecure=job.insecure,
        reports=job.report is not None,
        against=against(job.adversary, job.parts.trust.colluding),
    )


def run_server(party: PartyFolder, board: Board, say: Callable[[str], None], ended: Ended = dict) -> Finished:
    """Run the job, or continue it, until it is done. The results are in `state/`.

    Messages about who is missing and what else is wrong go to `say`, the board and the log. `ended` names parties
    that will not come back: without enough others the run ends with an error.
    """
    if party.party != "server":
        raise RequestError(
            f"{party.folder} is the folder of {party.party!r}: use tacit {_verb(party)} {party.folder}"
        )

    def notify(text: str) -> None:
        _LOG.warning("%s", text)
        board.tell(text)
        say(text)

    with (
        _alone(party),
        _logging_to(party.folder / "log.jsonl"),
        flare_backend(
            party.folder,
            party.clients,
            quorum=_needed(party),
            listen=party.address(),
            seen=board.saw,
            notify=notify,
            ended=ended,
        ) as backend,
    ):
        sealing, signer = party.sealing(), party.signing_key()
        server = Server(
            party.job,
            SigningBackend(backend, signer),
            party.state,
            quorum=party.quorum,
            deadline_seconds=party.deadline_seconds,
            signer=signer,
            progress=board.update,
            notify=notify,
            key=sealing[0] if sealing else None,
        )
        return server.run()


def run_silo(party: PartyFolder, records: Federation | OpenTable, say: Callable[[str], None]) -> None:
    """Answer the server until stopped."""
    if party.party not in party.job.sites:
        raise RequestError(f"{party.folder} is not a silo's folder: use tacit {_verb(party)} {party.folder}")
    site, sealing = party.party, party.sealing()
    covers = Covers(site, *sealing) if sealing else None
    with _alone(party), _logging_to(party.folder / "log.jsonl", say):
        silo = Silo.open(
            party.job.text,
            party.policy_text(),
            records,
            party.state,
            site=site,
            key=party.signing_key(),
            covers=covers,
        )
        terms = silo.terms
        say(f"{site}: job {party.job.digest}")
        noise = f"noise multiplier {terms.noise_multiplier:.4g}"
        what = "persons" if PERSONS in terms.public else "records"
        say(f"{site}: {terms.records} {what}, {noise}, {terms.planned} rounds")
        if party.job.summed:
            trust = party.job.algorithm.trust
            say(
                f"{site}: the server can open only sums over at least {trust.quorum} silos, of which "
                f"{trust.colluding} may help it; multipliers are those of such a sum"
            )
        with silo.ledger.page() as page:
            say(f"{site}: {standing(terms, page.account)}")
        if exposed := exposure(terms):
            say(f"{site}: {exposed}")
        _answer_until_stopped(party, silo, say)


def refuse_silo(party: PartyFolder, code: Code, say: Callable[[str], None]) -> None:
    """Answer every request of the server with a code until stopped: the silo takes no part."""
    with _alone(party), _logging_to(party.folder / "log.jsonl", say):
        _answer_until_stopped(party, Refusing(party.party, code), say)


def run_shuffler(party: PartyFolder, say: Callable[[str], None]) -> None:
    """Mix messages until stopped."""
    sealing = party.sealing()
    if party.party != SHUFFLER or sealing is None:
        raise RequestError(f"{party.folder} is not the shuffler's: use tacit {_verb(party)} {party.folder}")
    with _alone(party), _logging_to(party.folder / "log.jsonl"):
        _answer_until_stopped(party, ShufflerParty(party.job, *sealing), say)


def _needed(party: PartyFolder) -> int:
    """The number of connected parties that a FLARE job needs to start."""
    return len(party.clients) if party.job.shuffled else party.quorum


def _verb(party: PartyFolder) -> str:
    return party.party if party.party in ("server", SHUFFLER) else "silo"


def _answer_until_stopped(party: PartyFolder, answerer: Party, say: Callable[[str], None]) -> None:
    """Run FLARE's client for the party, and restart it whenever it ends. Only the server gets answers."""
    if party.job.identities is None:
        raise RequestError("the job names no signing keys, so nobody could tell who asks: provision it again")
    answerer = OnlyForServer(answerer, party.party, party.job.identities.server)
    command, log = site_command(party.folder / "engine", party.party), party.folder / "log.txt"
    watch, quiet_until = LogWatch(log), 0.0
    with (
        answering(_narrated(answerer, say), party.folder) as relay,
        kept_running(command, relay=relay, log=log) as keeper,
    ):
        deaths = 0
        while True:
            time.sleep(LOOK_SECONDS)
            if watch.sees_namesake() and time.monotonic() > quiet_until:
                say(f"{party.party}: {WARNING}")
                quiet_until = time.monotonic() + QUIET_SECONDS
            if keeper.hopeless and SOCKET_VARIABLE in os.environ:
                # A rehearsal on one machine: whoever started it is told now instead of waiting.
                raise EngineError(f"FLARE's client cannot start. {last_lines(log)}")
            if keeper.quick_deaths > deaths:
                say(f"{party.party}: FLARE's client ended right after its start; trying again. {last_lines(log)}")
            deaths = keeper.quick_deaths


def _narrated(answerer: Party, say: Callable[[str], None]) -> Callable[[bytes], bytes]:
    """Answers, and says what was answered. A refusal that is repeated, round by round, is said once."""
    refused: Code | None = None

    def answer(request: bytes) -> bytes:
        nonlocal refused
        frame = answerer.step(request)
        # The console may be closed or the disk full; the answer must be sent anyway.
        with contextlib.suppress(MessageError, OSError):
            reply = Reply.decode(frame, body_limit=2**30)
            if reply.body.startswith(b"{\n") and len(reply.body) < CERTIFICATE_LIMIT:
                say(f"{reply.site}: certificate written for run {reply.run}")
            elif reply.body.startswith(b'{"heads"'):
                say(f"{reply.site}: told the server which ledger heads it has witnessed")
            elif reply.code is Code.OK or reply.code is not refused:
                say(f"{reply.site}: round {reply.round}: {reply.code}, {len(reply.body)} bytes")
            refused = None if reply.code is Code.OK else reply.code
        return frame

    return answer


@contextlib.contextmanager
def stopping_in_order() -> Iterator[None]:
    """Make SIGTERM unwind like Ctrl-C, so that no process is left behind."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _alone(party: PartyFolder) -> Iterator[None]:
    """Lock the folder: two processes under one name would answer for each other."""
    party.state.mkdir(mode=0o700, exist_ok=True)
    with held(party.state, "another process is running for this party: stop that one first"):
        yield


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": self.formatTime(record), "level": record.levelname, "message": record.getMessage()}
        return json.dumps(line)


class _OwnLog(logging.handlers.RotatingFileHandler):
    """A file that only the owner can read, and one older one: whoever causes errors cannot fill the disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MOST_LOG_BYTES, backupCount=1)

    def _open(self) -> TextIOWrapper:
        os.close(os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT, 0o600))
        return super()._open()


class _Said(logging.Handler):
    """Shows errors on the console too, but does not repeat the same one."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._say, self._last = say, ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        # The console may be closed.
        with contextlib.suppress(OSError):
            if text != self._last:
                self._say(f"ATTENTION: {text}")
        self._last = text


@contextlib.contextmanager
def _logging_to(path: Path, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Log to a file that only the owner can read, one JSON object per line; errors also go to `say`."""
    file = _OwnLog(path)
    file.setFormatter(_JsonLines())
    handlers = [file, *([] if say is None else [_Said(say)])]
    logger = logging.getLogger("tacit.deploy")
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
