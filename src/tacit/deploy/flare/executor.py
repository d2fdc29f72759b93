"""The silo side inside FLARE: passes requests to the silo's own process and returns its answers."""

from __future__ import annotations

import threading
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode as TaskReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.fuel.f3.cellnet import utils as cells
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message

from tacit.deploy.flare.job import CHANNEL, TOPIC
from tacit.deploy.flare.relay import connect_to_owner, receive_frame, send_frame


class RelayExecutor(Executor):  # type: ignore[misc]  # FLARE has no types
    """Answers requests of the server's job with the bytes that the silo's process returns.

    Guarantee: no record and no exception text passes through here. The silo's process is reached over a local
    socket; any failure on the way becomes FLARE's plain code PROCESS_EXCEPTION. Requests of other silos, which
    FLARE would pass on, are refused here if they say so; those that do not are refused by the silo's process,
    because they lack the server's signature (`tacit.deploy.signed_requests`).
    """

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.Lock()

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """From the start of the run, answer requests."""
        if event_type == EventType.START_RUN:
            cell = fl_ctx.get_engine().get_cell()
            cell.register_request_cb(channel=CHANNEL, topic=TOPIC, cb=self.answer)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: Any, abort_signal: Any) -> Shareable:
        """Refuses every task: requests do not come as tasks."""
        return make_reply(TaskReturnCode.TASK_UNKNOWN)

    def answer(self, message: Message) -> Message:
        """One request, one answer; one at a time."""
        origin, request = message.get_header(MessageHeaderKey.ORIGIN), message.payload
        if not isinstance(origin, str) or FQCN.split(origin)[0] != FQCN.ROOT_SERVER:
            return cells.make_reply(ReturnCode.UNAUTHENTICATED)
        if not isinstance(request, bytes | bytearray | memoryview):
            return cells.make_reply(ReturnCode.INVALID_REQUEST)
        try:
            with self._turn, connect_to_owner() as connection:
                send_frame(connection, bytes(request))
                answer = receive_frame(connection)
        except Exception:  # FLARE would log the text and could carry it to the server
            return cells.make_reply(ReturnCode.PROCESS_EXCEPTION)
        return cells.make_reply(ReturnCode.OK, body=answer)
