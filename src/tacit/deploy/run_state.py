"""The server's state between two rounds of a deployed run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor

from tacit.engine.checkpoint import Checkpoint
from tacit.engine.round import ServerState
from tacit.errors import DataError


@dataclass(frozen=True)
class RunState:
    """The server's complete state after `round` rounds."""

    run: str
    round: int
    server: ServerState
    accepted: dict[str, int] = field(default_factory=dict)
    """for each site, the last round in which its message was used"""
    digests: dict[str, str] = field(default_factory=dict)
    """the digests of those messages"""
    problems: Counter[str] = field(default_factory=Counter)
    """"site code" -> how often"""
    answered: Counter[str] = field(default_factory=Counter)
    """for each site, how many of its messages were used"""

    def to_checkpoint(self, fingerprint: str) -> Checkpoint:
        """The state as one file, because sums and acknowledgements must stay consistent."""
        parts = {"update": self.server.update, "uplink": self.server.uplink}
        tensors = {f"{part}.{name}": t for part, named in parts.items() for name, t in named.items()}
        facts = {
            "run": self.run,
            "accepted": self.accepted,
            "digests": self.digests,
            "problems": self.problems,
            "answered": self.answered,
        }
        return Checkpoint(self.round, fingerprint, tensors, facts)

    @classmethod
    def from_checkpoint(cls, saved: Checkpoint) -> RunState:
        """The inverse of `to_checkpoint`; a `DataError` for a checkpoint of another kind."""
        parts: dict[str, dict[str, Tensor]] = {"update": {}, "uplink": {}}
        try:
            for full_name, tensor in saved.tensors.items():
                part, _, name = full_name.partition(".")
                parts[part][name] = tensor
            facts = saved.facts
            return cls(
                str(facts["run"]),
                saved.round,
                ServerState(parts["update"], parts["uplink"]),
                dict(facts["accepted"]),
                dict(facts["digests"]),
                Counter(dict(facts["problems"])),
                Counter(dict(facts["answered"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"a checkpoint does not hold a server's state: {error!r}") from error
