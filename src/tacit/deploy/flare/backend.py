"""The server's FLARE backend. Rounds run inside a FLARE job, which the steward keeps alive."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.deploy.flare.kits import settle_server
from tacit.deploy.flare.processes import Keeper, kept_running, last_lines, server_command, steward_command
from tacit.deploy.flare.relay import listening, receive_frame, send_frame
from tacit.deploy.notices import Notices
from tacit.deploy.seam import Answer, Code, SiteError
from tacit.errors import MessageError, TacitError

START_SECONDS = 300.0
"""How long the engine may take to get a job running.

Silos have the same time to connect to an engine that has just started, before a round's deadline begins."""

FIRST_NOTICE_SECONDS = 10.0
"""Delay before the first message about who is missing."""

GRACE_SECONDS = 1
"""How long to wait for the slower silos of a round once a quorum has answered."""

_SLACK_SECONDS = 10.0
_PAUSE_SECONDS = 0.5
_LOOK_SECONDS = 1.0


Seen = Callable[[tuple[str, ...]], None]
"""Called about every second with the silos that are connected."""


Ended = Callable[[], Mapping[str, str]]
"""Returns the parties of this machine whose processes have ended, each with the end of its output."""


class EngineError(TacitError):
    """FLARE is not running the job."""


@dataclass
class FlareBackend:
    """Rounds over FLARE; made by `flare_backend`, used by one thread."""

    parties: tuple[str, ...] = ()
    needed: int = 1
    """how many of them must be connected for a job"""
    grace_seconds: int = GRACE_SECONDS
    start_seconds: float = START_SECONDS
    notify: Callable[[str], None] = lambda text: None
    """called with who is missing, early and then at regular intervals"""
    ended: Ended = dict
    """parties that will not come back"""
    _sighting: dict[str, Any] = field(default_factory=dict)
    _controller: socket.socket | None = None
    _keepers: list[Keeper] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _starts: int = 0
    """number of engine starts at the last check"""
    _patience: float = 0.0
    """seconds left for silos to connect to an engine that has just started"""

    @property
    def connected(self) -> tuple[str, ...]:
        """The silos that were connected when the steward last looked."""
        return tuple(self._sighting.get("connected", ()))

    @property
    def trouble(self) -> str | None:
        """The steward's last complaint; None if it has reported anything else since."""
        return self._sighting.get("trouble")

    def run_round(
        self, request: bytes, *, sites: Sequence[str], quorum: int, deadline_seconds: float
    ) -> dict[str, Answer]:
        """See `Backend.run_round`.

        The deadline counts time while a job runs and while too few silos are connected; engine restarts do not
        count. A silo that reconnects joins the next job, so missing answers are requested until the deadline.
        A silo that has already answered would send the same bytes again.
        """
        answers: dict[str, Answer] = {}
        wanted, left = min(quorum, len(sites)), deadline_seconds
        notices = Notices(self.notify, FIRST_NOTICE_SECONDS, time.monotonic)
        while left > 0 and (not answers or len(answers) < wanted):
            controller, starved_seconds = self._wait_for_controller(left, notices)
            if controller is None:
                break
            began = time.monotonic() - starved_seconds
            header = {
                "sites": [site for site in sites if site not in answers],
                "quorum": wanted - len(answers),
                "deadline_seconds": left - starved_seconds,
                "grace_seconds": self.grace_seconds,
            }
            try:
                self._ask(controller, header, request, answers, notices)
            except (EOFError, OSError, MessageError, ValueError):
                self._forget(controller)
            if len(answers) < wanted:
                notices.tell(self._who_is_silent(sites, answers))
                time.sleep(_PAUSE_SECONDS)
            left -= time.monotonic() - began
        if "connected" in self._sighting:
            gone = [site for site in sites if site not in answers and site not in self.connected]
            answers |= dict.fromkeys(gone, SiteError(Code.NOT_CONNECTED))
        return answers

    def _wait_for_controller(self, left: float, notices: Notices) -> tuple[socket.socket | None, float]:
        """A controller, and how much of the deadline was lost waiting for silos; no controller if all was."""
        starved = engine = 0.0
        before = time.monotonic()
        with self._changed:
            while self._controller is None:
                self._changed.wait(_LOOK_SECONDS)
                now = time.monotonic()
                passed, before = now - before, now
                if self._starved:
                    patience = min(passed, self._renewed_patience())
                    self._patience -= patience
                    starved += passed - patience
                else:
                    engine += passed
                if starved >= left:
                    return None, starved
                self._raise_if_something_died()
                if engine >= self.start_seconds:
                    raise EngineError(self._no_job(engine))
                notices.tell(self._who_is_missing())
            return self._controller, starved

    def _raise_if_something_died(self) -> None:
        """There is no use in waiting for a process that cannot start, or for silos that are gone."""
        for keeper in self._keepers:
            if keeper.hopeless:
                raise EngineError(
                    f"a process of FLARE ended {keeper.quick_deaths} times right after its start. "
                    f"{last_lines(keeper.log)}"
                )
        ended = self.ended()
        if len(self.parties) - len(ended) < self.needed:
            said = "\n".join(f"{party} has ended. {lines}" for party, lines in ended.items())
            raise EngineError(f"a round needs {self.needed} of {len(self.parties)} parties. {said}")

    @property
    def _starved(self) -> bool:
        """Whether the engine works but too few silos are connected to start a job."""
        return "connected" in self._sighting and len(self.connected) < self.needed

    def _renewed_patience(self) -> float:
        starts = sum(keeper.starts for keeper in self._keepers[:1])
        if starts > self._starts:
            self._starts, self._patience = starts, self.start_seconds
        return self._patience

    def _who_is_missing(self) -> str:
        if not self._starved:
            return (
                f"waiting for FLARE to start a job{f'; its last error: {self.trouble}' if self.trouble else ''}"
            )
        missing = ", ".join(party for party in self.parties if party not in self.connected)
        here = ", ".join(self.connected) or "nobody"
        return f"waiting for {missing}: a round needs {self.needed} connected, now connected: {here}"

    def _who_is_silent(self, asked: Sequence[str], answers: Mapping[str, Answer]) -> str:
        missing = (site for site in asked if site not in answers)
        said = (f"{site}{'' if site in self.connected else ' (not connected)'}" for site in missing)
        return f"waiting for the answers of {', '.join(said)}"

    def _no_job(self, seconds: float) -> str:
        said = f" Its last error: {self.trouble}." if self.trouble else ""
        missing = ", ".join(party for party in self.parties if party not in self.connected)
        return (
            f"FLARE got no job to run in {seconds:.0f} seconds; {len(self.connected)} parties are connected "
            f"and it needs {self.needed}{f' (not connected: {missing})' if missing else ''}.{said} "
            "See log.txt and steward.txt in the server's folder"
        )

    def _ask(
        self,
        controller: socket.socket,
        header: dict[str, Any],
        request: bytes,
        answers: dict[str, Answer],
        notices: Notices,
    ) -> None:
        """Runs the round in one job and collects answers as they arrive."""
        asked: list[str] = header["sites"]
        controller.settimeout(header["deadline_seconds"] + _SLACK_SECONDS)
        latest = time.monotonic() + header["deadline_seconds"] + _SLACK_SECONDS
        send_frame(controller, json.dumps(header).encode())
        send_frame(controller, request)
        while True:
            ready, _, _ = select.select([controller], [], [], _LOOK_SECONDS)
            if not ready:
                if time.monotonic() > latest:
                    raise TimeoutError("FLARE's controller no longer answers")
                notices.tell(self._who_is_silent(asked, answers))
                continue
            site = json.loads(receive_frame(controller))["site"]
            if site is None:
                return
            frame = receive_frame(controller)
            if site in asked:
                answers[site] = frame

    def _forget(self, controller: socket.socket) -> None:
        with self._changed:
            if self._controller is controller:
                self._controller = None
            controller.close()

    def _greeted(self, connection: socket.socket) -> None:
        """Waits for the first message on a new connection: controllers greet, lifelines never send anything."""
        try:
            receive_frame(connection)
        except (EOFError, OSError, MessageError):
            connection.close()
            return
        with self._changed:
            if self._controller is not None:
                # The previous job is over or will be soon: silos answer only the newest.
                self._controller.close()
            self._controller = connection
            # Silos have connected: from now on, missing silos count against the deadline.
            self._renewed_patience()
            self._patience = 0.0
            self._changed.notify_all()


@contextlib.contextmanager
def flare_backend(
    folder: Path,
    sites: Sequence[str],
    *,
    quorum: int,
    listen: str = "127.0.0.1",
    seen: Seen = lambda connected: None,
    notify: Callable[[str], None] = lambda text: None,
    ended: Ended = dict,
) -> Iterator[FlareBackend]:
    """Runs FLARE's server in a provisioned folder, with a steward for the job, until the block ends."""
    settle_server(folder / "engine")
    backend = FlareBackend(tuple(sites), quorum, notify=notify, ended=ended)
    with contextlib.ExitStack() as stack:
        relay = stack.enter_context(listening(backend._greeted, folder))

        def hear(line: str) -> None:
            with contextlib.suppress(ValueError):
                backend._sighting = dict(json.loads(line))
                seen(backend.connected)

        backend._keepers = [
            stack.enter_context(kept_running(command, relay=relay, log=folder / log, hear=ear))
            for command, log, ear in (
                (server_command(folder / "engine", listen), "log.txt", None),
                (steward_command(folder / "admin", sites, quorum), "steward.txt", hear),
            )
        ]
        yield backend
