"""The server side inside FLARE: passes requests of the `tacit server` process to the silos, and answers back.

Requests go straight from cell to cell (a cell is FLARE's endpoint of a process), on a channel of tacit's own.
FLARE's tasks would have silos ask for work at intervals, which took most of a short round.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from functools import partial
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message

from tacit.deploy.flare.job import CHANNEL, TOPIC
from tacit.deploy.flare.lifeline import hold_lifeline
from tacit.deploy.flare.relay import connect_to_owner, receive_frame, send_frame

_AGAIN_SECONDS = 0.1
"""Pause before a silo that could not be reached is asked again; its job may still be starting."""

_FIRST_PATIENCE_SECONDS = 2.0
_LONGEST_PATIENCE_SECONDS = 64.0
"""How long to wait before a silent silo is asked again, in case request or answer was lost: doubled every time.

A silo that is still computing answers the repeated request with the same bytes."""

_LOOK_SECONDS = 0.5

_MOST_BYTES_AT_ONCE = 2**22
"""Longer requests are streamed, as are their answers. A stream takes several more messages per request."""


class RelayController(Controller):  # type: ignore[misc]  # FLARE has no types
    """Runs rounds for the `tacit server` process it is connected to, until told to stop or disconnected.

    Protocol: it sends a greeting {"sites": [...]}; the server sends a header {"sites", "quorum",
    "deadline_seconds", "grace_seconds"} and the request. Each answer is forwarded as it arrives, as
    {"site": name} followed by its frame; {"site": null} ends the round.
    """

    def start_controller(self, fl_ctx: Any) -> None:
        """Does nothing."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Does nothing."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: Any
    ) -> None:
        """Drops it: there are no tasks."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Serve rounds."""
        hold_lifeline()
        cell, job = self._engine.get_cell(), fl_ctx.get_job_id()
        with connect_to_owner() as owner:
            sites = sorted(client.name for client in self._engine.get_clients())
            send_frame(owner, json.dumps({"sites": sites}).encode())
            while not abort_signal.triggered:
                try:
                    header = json.loads(receive_frame(owner))
                    request = receive_frame(owner)
                except EOFError:
                    return
                here = {client.name: FQCN.join([client.get_fqcn(), job]) for client in self._engine.get_clients()}
                targets = {site: here[site] for site in header["sites"] if site in here}
                serve_round(owner, cell, header, request, targets, abort_signal)


def serve_round(
    owner: Any, cell: Any, header: dict[str, Any], request: bytes, targets: dict[str, str], abort_signal: Any
) -> None:
    """Send a request to silos, and forward their answers to the owner as they arrive.

    The round is over when all have answered, at the deadline, or `grace_seconds` after `quorum` answers. Later
    answers are dropped.

    targets: the address of each silo's cell.
    """
    arrived: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
    over = Signal()
    for site, address in targets.items():
        asking = (cell, site, address, request, arrived, over)
        threading.Thread(target=_ask_until_answered, args=asking, daemon=True).start()
    missing, until = set(targets), time.monotonic() + header["deadline_seconds"]
    while missing and not abort_signal.triggered:
        left = until - time.monotonic()
        if left <= 0:
            break
        try:
            site, answer = arrived.get(timeout=min(left, _LOOK_SECONDS))
        except queue.Empty:
            continue
        for frame in (json.dumps({"site": site}).encode(), answer):
            send_frame(owner, frame)
        missing.discard(site)
        if len(targets) - len(missing) == header["quorum"]:
            until = min(until, time.monotonic() + header["grace_seconds"])
    over.trigger(True)
    send_frame(owner, json.dumps({"site": None}).encode())


def _ask_until_answered(
    cell: Any, site: str, address: str, request: bytes, arrived: queue.SimpleQueue[tuple[str, bytes]], over: Any
) -> None:
    patience = _FIRST_PATIENCE_SECONDS
    streamed = len(request) > _MOST_BYTES_AT_ONCE
    send = partial(cell.send_request, abort_signal=over) if streamed else cell.core_cell.send_request
    while not over.triggered:
        try:
            reply = send(
                channel=CHANNEL,
                topic=TOPIC,
                target=address,
                request=Message(payload=request),
                timeout=patience,
                optional=True,
            )
            code, answer = reply.get_header(MessageHeaderKey.RETURN_CODE), reply.payload
        except Exception:  # FLARE raises whatever its network raised
            code, answer = ReturnCode.COMM_ERROR, None
        if code == ReturnCode.OK and isinstance(answer, bytes | bytearray | memoryview):
            arrived.put((site, bytes(answer)))
            return
        if code == ReturnCode.TIMEOUT:
            patience = min(2 * patience, _LONGEST_PATIENCE_SECONDS)
        else:
            time.sleep(_AGAIN_SECONDS)
