"""Keeps FLARE working at a site whose disk is full, so that the silo can report the problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvflare.fuel.sec.audit import Auditor


def outlive_full_disks() -> None:
    """Lets this process continue when FLARE's audit trail cannot be written.

    FLARE writes a line for every task and request, and drops the request if it cannot: a silo with a full disk
    would look as if it were offline. What a silo has released is recorded in its own ledger, not in this trail.
    """
    for name in ("add_event", "add_job_event"):
        setattr(Auditor, name, _if_there_is_room(getattr(Auditor, name)))


def _if_there_is_room(add: Callable[..., str]) -> Callable[..., str]:
    def added(*arguments: Any, **named: Any) -> str:
        try:
            return add(*arguments, **named)
        except OSError:
            return ""

    return added
