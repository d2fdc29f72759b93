"""Removes the unused parts of what FLARE wraps around a silo's message, which may be larger than the message."""

from __future__ import annotations

from typing import Any

from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey
from nvflare.private.fed.client import communicator

READ_BY_SERVER = (ReservedKey.RUN_NUM, ReservedKey.IDENTITY_NAME)
"""The only headers a job's process needs to send: which job it works for, and for which site."""


def wrap_thinly() -> None:
    """Makes this job process drop all other headers; this saves about 250 bytes per message."""
    whole, submit = communicator.gen_new_peer_ctx, communicator.Communicator.submit_update

    def brief(fl_ctx: FLContext) -> FLContext:
        said = whole(fl_ctx).get_all_public_props()
        context = FLContext()
        context.set_public_props({name: said[name] for name in READ_BY_SERVER if name in said})
        return context

    def submit_unaudited(self: Any, project: str, token: str, ssid: str, fl_ctx: FLContext, name: str,
                         shareable: Any, *others: Any, **named: Any) -> Any:  # fmt: skip
        # The silo keeps its own ledger and does not use FLARE's audit trail.
        shareable.get(ReservedHeaderKey.HEADERS, {}).pop(ReservedHeaderKey.AUDIT_EVENT_ID, None)
        return submit(self, project, token, ssid, fl_ctx, name, shareable, *others, **named)

    communicator.gen_new_peer_ctx = brief
    communicator.Communicator.submit_update = submit_unaudited
