"""The server's side of the seam over FLARE: rounds go out to whatever job the steward keeps running."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.deploy.flare.kits import settle_server
from tacit.deploy.flare.processes import Keeper, kept_running, server_command, steward_command
from tacit.deploy.flare.relay import listening, receive_frame, send_frame
from tacit.deploy.seam import Answer
from tacit.errors import MessageError, TacitError

START_SECONDS = 300.0
"""How long the engine may take to get a job running, at the start and after a failure."""

GRACE_SECONDS = 1
"""How long the slower silos of a round are waited for once a quorum has answered."""

QUICK_DEATHS = 4
"""So often in a row may one of FLARE's processes fail to come up."""

_SLACK_SECONDS = 10.0
_PAUSE_SECONDS = 0.5


Seen = Callable[[tuple[str, ...]], None]
"""Told which silos are connected, every second or so."""


class EngineError(TacitError):
    """FLARE does not do what it is there for."""


@dataclass
class FlareBackend:
    """Rounds over FLARE; made by `flare_backend`, used by one thread."""

    grace_seconds: int = GRACE_SECONDS
    start_seconds: float = START_SECONDS
    _sighting: dict[str, Any] = field(default_factory=dict)
    _controller: socket.socket | None = None
    _keepers: list[Keeper] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def connected(self) -> tuple[str, ...]:
        """The silos that were connected when the steward last looked."""
        return tuple(self._sighting.get("connected", ()))

    @property
    def trouble(self) -> str | None:
        """What the steward last complained about, if that was the last thing it said."""
        return self._sighting.get("trouble")

    def run_round(
        self, request: bytes, *, sites: Sequence[str], quorum: int, deadline_seconds: float
    ) -> dict[str, Answer]:
        """See `Backend.run_round`. The deadline runs while a job does: it is not spent on the engine's restarts.

        A job that ends in the middle takes its answers with it, and a silo that comes back is let into the next
        one, so what is missing is asked for until the deadline; who has answered already gives the same bytes.
        """
        answers: dict[str, Answer] = {}
        wanted, left = min(quorum, len(sites)), deadline_seconds
        while left > 0 and (not answers or len(answers) < wanted):
            controller = self._wait_for_controller()
            began = time.monotonic()
            header = {
                "sites": [site for site in sites if site not in answers],
                "quorum": wanted - len(answers),
                "deadline_seconds": left,
                "grace_seconds": self.grace_seconds,
            }
            try:
                answers |= _ask(controller, header, request)
            except (EOFError, OSError, MessageError, ValueError):
                self._forget(controller)
            if len(answers) < wanted:
                time.sleep(_PAUSE_SECONDS)
            left -= time.monotonic() - began
        return answers

    def _wait_for_controller(self) -> socket.socket:
        latest = time.monotonic() + self.start_seconds
        with self._changed:
            while self._controller is None:
                left = latest - time.monotonic()
                hopeless = any(keeper.quick_deaths >= QUICK_DEATHS for keeper in self._keepers)
                if left <= 0 or hopeless:
                    said = f" Its last word: {self.trouble}." if self.trouble else ""
                    names = ", ".join(self.connected) or "none"
                    raise EngineError(
                        f"FLARE got no job to run in {self.start_seconds - max(0.0, left):.0f} seconds; "
                        f"connected silos: {names}.{said} See log.txt and steward.txt in the server's folder"
                    )
                self._changed.wait(min(left, 1.0))
            return self._controller

    def _forget(self, controller: socket.socket) -> None:
        with self._changed:
            if self._controller is controller:
                self._controller = None
            controller.close()

    def _greeted(self, connection: socket.socket) -> None:
        """Wait for the first word of whoever connected: a controller greets, a lifeline never speaks."""
        try:
            receive_frame(connection)
        except (EOFError, OSError, MessageError):
            connection.close()
            return
        with self._changed:
            if self._controller is not None:
                # The job before is over, or will be: a silo answers the newest.
                self._controller.close()
            self._controller = connection
            self._changed.notify_all()


def _ask(controller: socket.socket, header: dict[str, Any], request: bytes) -> dict[str, Answer]:
    controller.settimeout(header["deadline_seconds"] + _SLACK_SECONDS)
    send_frame(controller, json.dumps(header).encode())
    send_frame(controller, request)
    arrived = json.loads(receive_frame(controller))["sites"]
    return {site: receive_frame(controller) for site in arrived}


@contextlib.contextmanager
def flare_backend(
    folder: Path,
    sites: Sequence[str],
    *,
    quorum: int,
    listen: str = "127.0.0.1",
    seen: Seen = lambda connected: None,
) -> Iterator[FlareBackend]:
    """FLARE's server in a provisioned folder, and a steward that keeps the job running, until the block ends."""
    settle_server(folder / "engine")
    backend = FlareBackend()
    with contextlib.ExitStack() as stack:
        relay = stack.enter_context(listening(backend._greeted))

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
