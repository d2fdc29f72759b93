"""The server side inside FLARE: broadcasts requests from the `tacit server` process and collects the answers."""

from __future__ import annotations

import json
import threading
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable

from tacit.deploy.flare.job import PAYLOAD, TASK
from tacit.deploy.flare.lifeline import hold_lifeline
from tacit.deploy.flare.relay import connect_to_owner, receive_frame, send_frame

CHECK_SECONDS = 0.02
"""How often FLARE checks whether a round is over; FLARE's default adds 0.2 seconds to every round."""


class RelayController(Controller):  # type: ignore[misc]  # FLARE has no types
    """Runs rounds for the `tacit server` process it is connected to, until told to stop or disconnected.

    Protocol: it sends a greeting {"sites": [...]}; the server sends a header {"sites", "quorum",
    "deadline_seconds", "grace_seconds"} and the request. Each answer is forwarded as it arrives, as
    {"site": name} followed by its frame; {"site": null} ends the round.
    """

    def __init__(self) -> None:
        super().__init__(task_check_period=CHECK_SECONDS)

    def set_communicator(self, communicator: Any) -> None:
        """Sets the polling period on FLARE's communicator itself; the attribute that FLARE sets is never read."""
        super().set_communicator(communicator)
        communicator._task_check_period = CHECK_SECONDS

    def start_controller(self, fl_ctx: Any) -> None:
        """Does nothing."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Does nothing."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: Any
    ) -> None:
        """Drops an answer that arrives after its round; the silo will be asked again in the next one."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Serve rounds."""
        hold_lifeline()
        with connect_to_owner() as owner:
            sites = sorted(client.name for client in self._engine.get_clients())
            send_frame(owner, json.dumps({"sites": sites}).encode())
            while not abort_signal.triggered:
                try:
                    header = json.loads(receive_frame(owner))
                    request = receive_frame(owner)
                except EOFError:
                    return
                self._round(owner, header, request, abort_signal, fl_ctx)

    def _round(self, owner: Any, header: dict[str, Any], request: bytes, abort_signal: Any, fl_ctx: Any) -> None:
        turn, over = threading.Lock(), threading.Event()

        def hand_on(site: str | None, *answer: bytes) -> None:
            with turn:
                if not over.is_set():
                    for frame in (json.dumps({"site": site}).encode(), *answer):
                        send_frame(owner, frame)

        def collect(client_task: ClientTask, fl_ctx: Any) -> None:
            result = client_task.result
            payload = result.get(PAYLOAD) if isinstance(result, Shareable) else None
            if isinstance(payload, bytes) and result.get_return_code() == ReturnCode.OK:
                hand_on(client_task.client.name, payload)
            # Otherwise FLARE keeps the answer in memory until the round is over.
            client_task.result = None

        data = Shareable()
        data[PAYLOAD] = request
        task = Task(
            name=TASK, data=data, timeout=max(1, round(header["deadline_seconds"])), result_received_cb=collect
        )
        here = {client.name for client in self._engine.get_clients()}
        targets = [site for site in header["sites"] if site in here]
        if targets:
            self.broadcast_and_wait(
                task,
                fl_ctx,
                targets=targets,
                min_responses=min(header["quorum"], len(targets)),
                wait_time_after_min_received=header["grace_seconds"],
                abort_signal=abort_signal,
            )
        hand_on(None)
        over.set()
