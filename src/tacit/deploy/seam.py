"""The seam between tacit and whatever moves its bytes.

The network engine carries opaque bytes and says who is who; it decides nothing about privacy. Its server side
is a `Backend`, its client side hands every request to a `Party` (a `tacit.deploy.silo.Silo`) and sends back what
comes out. Both kinds of bytes are frames (`tacit.deploy.frames`): versioned, of limited size, with a digest.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Code(enum.StrEnum):
    """All that a failing party may say. A code carries nothing about any record."""

    OK = "ok"
    # the network's own
    NO_ANSWER = "no-answer"
    """nothing came before the deadline"""
    NOT_CONNECTED = "not-connected"
    """nor is the site connected"""
    # the silo's
    MALFORMED = "malformed"
    """the request is not one"""
    OTHER_JOB = "other-job"
    """the request is for a recipe that this silo did not agree to"""
    BAD_POINT = "bad-point"
    """the point has the wrong length, or is not finite"""
    NO_SUCH_ROUND = "no-such-round"
    """beyond the rounds of the recipe, or not this silo's turn by the public coins"""
    PAST_ROUND = "past-round"
    """an earlier round than the last one that was answered"""
    CHANGED_POINT = "changed-point"
    """this round was answered already, for another point"""
    BUDGET_SPENT = "budget-spent"
    """one more release would break the promise of the silo's policy"""
    BUSY = "busy"
    """another process of the same silo is at work"""
    STATE_LOST = "state-lost"
    """what the silo remembered of this run is gone; it cannot take part in it again"""
    FAILED = "failed"
    """anything else; the reason stays in the silo's own log"""
    STATE_RESTORED = "state-restored"
    """the silo has signed a ledger that it no longer holds: its state was set back to an older copy"""
    LEDGER_CONFLICT = "ledger-conflict"
    """the signed heads of another silo's ledger contradict each other"""
    # the shuffler's
    TOO_FEW = "too-few"
    """there is not one message of each silo of the round, and fewer are not mixed"""
    # what the server finds wrong with an answer
    REJECTED = "rejected"
    """not a frame, or not an answer to this request"""
    WRONG_ROUND = "wrong-round"
    REPLAYED = "replayed"
    """a message that was accepted before"""
    BAD_MESSAGE = "bad-message"
    """damaged, oversized, of another format, or not finite; to a shuffler, not this silo's for this round"""


@dataclass(frozen=True)
class SiteError:
    """That a site gave no usable answer, and why."""

    code: Code


Answer = bytes | SiteError


class Party(Protocol):
    """The client side: what the engine's executor at a site calls."""

    def step(self, request: bytes) -> bytes:
        """The answer to a request, always a frame; no exception leaves it, failures are bare codes."""
        ...


class Backend(Protocol):
    """The server side: what the engine's controller provides."""

    def run_round(
        self, request: bytes, *, sites: Sequence[str], quorum: int, deadline_seconds: float
    ) -> dict[str, Answer]:
        """Send one request to all of `sites` and gather their answers, each as it came, unread.

        Returns when all have answered, at the deadline, or a short grace after `quorum` answers. A site that is
        missing from the result, or has a `SiteError`, gave no answer. What arrives later must be dropped: the
        round is over then, and an answer that the server has not acknowledged does not count.
        """
        ...
