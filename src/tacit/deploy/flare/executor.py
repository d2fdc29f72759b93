"""The silo side inside FLARE: passes requests to the silo's own process and returns its answers."""

from __future__ import annotations

from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from tacit.deploy.flare.job import PAYLOAD, TASK
from tacit.deploy.flare.relay import connect_to_owner, receive_frame, send_frame


class RelayExecutor(Executor):  # type: ignore[misc]  # FLARE has no types
    """Answers the task `tacit_round` with the bytes that the silo's process returns.

    Guarantee: no record and no exception text passes through here. The silo's process is reached over a local
    socket; any failure on the way becomes FLARE's plain code EXECUTION_EXCEPTION.
    """

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: Any, abort_signal: Any) -> Shareable:
        """One request, one answer."""
        request = shareable.get(PAYLOAD)
        if task_name != TASK or not isinstance(request, bytes):
            return make_reply(ReturnCode.BAD_TASK_DATA)
        try:
            with connect_to_owner() as connection:
                send_frame(connection, request)
                answer = receive_frame(connection)
        except Exception:  # FLARE would log the text and could carry it to the server
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        reply = make_reply(ReturnCode.OK)
        reply[PAYLOAD] = answer
        return reply
