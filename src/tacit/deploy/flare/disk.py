"""FLARE at a site whose disk is full: it goes on carrying bytes, so that the silo can say what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvflare.fuel.sec.audit import Auditor


def outlive_full_disks() -> None:
    """Have this process go on where there is no room for a line of FLARE's audit trail.

    FLARE writes one for every task and every request, and drops the request if it cannot: then a silo with a full
    disk looks as if it were gone. What a silo has released is in its own ledger, not in this trail.
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
