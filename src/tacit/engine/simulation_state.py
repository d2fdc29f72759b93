"""The whole state of a simulated run, which a checkpoint stores."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.engine.checkpoint import Checkpoint
from tacit.engine.history import History
from tacit.engine.round import ClientState, ServerState


@dataclass(frozen=True)
class SimulationState:
    """The whole state of a run after `round` rounds."""

    round: int
    clients: ClientState
    server: ServerState
    releases: Tensor
    """(clients,) int64: the number of rounds in which each client took part"""
    uplink_bits: int = 0
    evaluations: float = 0.0
    signal_to_noise: float | None = None
    """signal-to-noise ratio of the newest round, if it was measured"""
    history: History = field(default_factory=History)
    seconds: float = 0.0

    def to_checkpoint(self, fingerprint: str) -> Checkpoint:
        """The whole state, as named tensors and plain values."""
        parts = {
            "work": self.clients.work,
            "uplink": self.clients.uplink,
            "update": self.server.update,
            "server_uplink": self.server.uplink,
            "run": {"releases": self.releases},
        }
        tensors = {f"{part}.{name}": t for part, named in parts.items() for name, t in named.items()}
        facts = {
            "uplink_bits": self.uplink_bits,
            "evaluations": self.evaluations,
            "signal_to_noise": self.signal_to_noise,
            "history": self.history.to_list(),
            "seconds": self.seconds,
        }
        return Checkpoint(self.round, fingerprint, tensors, facts)

    @classmethod
    def from_checkpoint(cls, saved: Checkpoint, device: torch.device) -> SimulationState:
        """The inverse of `to_checkpoint`, with what the clients and the server compute on `device`."""
        parts: dict[str, dict[str, Tensor]] = {
            name: {} for name in ("work", "uplink", "update", "server_uplink", "run")
        }
        on_cpu = ("keys", "releases")
        of_messages = ("uplink", "server_uplink")
        for full_name, tensor in saved.tensors.items():
            part, _, name = full_name.partition(".")
            stays = name.endswith(on_cpu) or part in of_messages
            parts[part][name] = tensor if stays else tensor.to(device)
        return cls(
            round=saved.round,
            clients=ClientState(parts["work"], parts["uplink"]),
            server=ServerState(parts["update"], parts["server_uplink"]),
            releases=parts["run"]["releases"],
            uplink_bits=saved.facts["uplink_bits"],
            evaluations=saved.facts["evaluations"],
            signal_to_noise=saved.facts["signal_to_noise"],
            history=History.from_list(saved.facts["history"]),
            seconds=saved.facts["seconds"],
        )
