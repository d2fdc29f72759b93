"""The interface between tacit and the network engine that moves its bytes.

The engine carries opaque bytes and authenticates the parties; it decides nothing about privacy. Its server side
is a `Backend`. Its client side hands every request to a `Party` (a `tacit.deploy.silo.Silo`) and sends back the
answer. Requests and answers are frames (`tacit.deploy.frames`): versioned, of limited size, with a digest.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Code(enum.StrEnum):
    """Everything that a failing party may say. A code carries no information about any record."""

    OK = "ok"
    # from the network
    NO_ANSWER = "no-answer"
    """no answer came before the deadline"""
    NOT_CONNECTED = "not-connected"
    """no answer came, and the site is not connected"""
    # from the silo
    MALFORMED = "malformed"
    """the request cannot be read"""
    OTHER_JOB = "other-job"
    """the request is for a recipe that this silo did not agree to"""
    BAD_POINT = "bad-point"
    """the point has the wrong length, or is not finite"""
    NO_SUCH_ROUND = "no-such-round"
    """the recipe has no such round, or the public coins did not choose this silo for it"""
    PAST_ROUND = "past-round"
    """the round is earlier than the last one that was answered"""
    CHANGED_POINT = "changed-point"
    """this round was already answered for another point"""
    BUDGET_SPENT = "budget-spent"
    """one more release would break the promise of the silo's policy"""
    BUSY = "busy"
    """another process of the same silo holds the ledger"""
    STATE_LOST = "state-lost"
    """the silo's memory of this run is gone; it cannot take part in the run again"""
    FAILED = "failed"
    """anything else; the reason stays in the silo's own log"""
    OTHER_SCHEMA = "other-schema"
    """the silo's table does not fit the schema of the job; which column, and why, stays at the silo"""
    STATE_RESTORED = "state-restored"
    """the silo has signed a ledger that it no longer has: its state was set back to an older copy"""
    LEDGER_CONFLICT = "ledger-conflict"
    """the signed heads of another silo's ledger contradict each other"""
    # from the shuffler
    TOO_FEW = "too-few"
    """messages of some silos of the round are missing, and fewer are not mixed"""
    # found by the server in an answer
    REJECTED = "rejected"
    """not a frame, or not an answer to this request"""
    WRONG_ROUND = "wrong-round"
    REPLAYED = "replayed"
    """a message that was already accepted"""
    BAD_MESSAGE = "bad-message"
    """damaged, oversized, of another format or not finite; for a shuffler, not this silo's for this round"""


@dataclass(frozen=True)
class SiteError:
    """Says that a site gave no usable answer, and why."""

    code: Code


Answer = bytes | SiteError


class Party(Protocol):
    """The client side, called by the engine's executor at a site."""

    def step(self, request: bytes) -> bytes:
        """The answer to a request. It is always a frame: failures become codes, and no exception is raised."""
        ...


class Backend(Protocol):
    """The server side, provided by the engine's controller."""

    def run_round(
        self, request: bytes, *, sites: Sequence[str], quorum: int, deadline_seconds: float
    ) -> dict[str, Answer]:
        """Send one request to all `sites` and collect their answers as raw bytes.

        Returns when all have answered, at the deadline, or shortly after `quorum` answers. A site that is missing
        from the result, or has a `SiteError`, gave no answer. Later answers must be dropped: the round is over,
        and an answer that the server has not acknowledged does not count.
        """
        ...
