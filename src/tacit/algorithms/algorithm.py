"""An algorithm: what clients compute, how they send it, how the server uses it, and who takes part."""

from __future__ import annotations

from dataclasses import dataclass, field

from tacit.algorithms.trust import Nobody, Travel, Trust
from tacit.client.work import Work
from tacit.compress.uplink import Uplink
from tacit.server.participation import Everyone, Participation
from tacit.server.update import ServerUpdate


@dataclass(frozen=True)
class Algorithm:
    """A composition of parts. It holds no state.

    The amount of noise is not part of it: `tacit.algorithms.calibrate` derives every client's noise from a
    target, and `tacit.simulate` accepts no other noise.
    """

    name: str
    """how it is called in recipes and reports"""
    work: Work
    """what a client does in a round, from the point to a private vector"""
    uplink: Uplink
    """how that vector becomes a message, and messages become a direction"""
    server: ServerUpdate
    """how the server moves the point"""
    participation: Participation = field(default_factory=Everyone)
    """which clients take part in a round"""
    trust: Trust = field(default_factory=Nobody)
    """whom the promise trusts, and so how messages travel"""

    @property
    def length(self) -> int:
        """How many numbers a client sends, before compression: all parts of its message, one after the other."""
        return sum(self.work.parts.values())

    @property
    def travel(self) -> Travel:
        """How its messages reach the server."""
        return self.trust.travel(self.work)
