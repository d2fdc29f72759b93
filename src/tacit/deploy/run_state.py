"""What the server of a deployed run knows between two rounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor

from tacit.engine.checkpoint import Checkpoint
from tacit.engine.round import ServerState
from tacit.errors import DataError


@dataclass(frozen=True)
class RunState:
    """Everything that the server knows after `round` rounds."""

    run: str
    round: int
    server: ServerState
    accepted: dict[str, int] = field(default_factory=dict)
    """the last round whose message of a site was used"""
    digests: dict[str, str] = field(default_factory=dict)
    """of those messages"""
    problems: Counter[str] = field(default_factory=Counter)
    """"site code" -> how often"""
    answered: Counter[str] = field(default_factory=Counter)
    """how many messages of a site were used"""

    def to_checkpoint(self, fingerprint: str) -> Checkpoint:
        """As one file: sums and acknowledgements must not come apart."""
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
        """The inverse of `to_checkpoint`; a `DataError` for what was not written by it."""
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
            raise DataError(f"a checkpoint holds no state of a server: {error!r}") from error
