"""A clip norm that follows a quantile of the clients' updates (Andrew et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.errors import RequestError, positive
from tacit.server.update import ServerUpdate
from tacit.state import State

_RATE = 0.2
"""How fast the clip norm moves (Andrew et al. 2021, section 3)."""
_FARTHEST = 1e6
"""The clip norm stays within this factor of its start."""


@dataclass(frozen=True)
class QuantileClip:
    """Moves by `update`, and the clip norm C by C <- C exp(-0.2 (share below C - quantile)).

    Messages are `direction`, the updates clipped to C in units of C, and `below`, both scaled by the weights that
    the work gave them. All of it is post-processing of noisy messages.

    Args:
        update: how the point moves along the mean of the clipped updates.
        quantile: the share of the clients whose updates should not be clipped.
        start: the clip norm of the first round.
        weights: the factors on `direction` and on `below` (which is plus or minus its weight) in a message.
    """

    update: ServerUpdate
    quantile: float
    start: float
    weights: tuple[float, float]

    def __post_init__(self) -> None:
        positive("clip_norm", self.start)
        if not 0 < self.quantile < 1:
            raise RequestError(f"clip_quantile must be between 0 and 1, not {self.quantile!r}")

    def init(self, point: Tensor) -> State:
        return {**self.update.init(point), "clip_norm": torch.full((1,), self.start)}

    def broadcast(self, state: State, round: int) -> State:
        return {**self.update.broadcast(state, round), "clip_norm": state["clip_norm"]}

    def step(self, state: State, direction: Tensor, round: int, below: Tensor) -> State:
        """A step of the update in its own units, then one of the clip norm."""
        clip, (scale, weight) = state["clip_norm"], self.weights
        moved = self.update.step(state, direction * (clip / scale), round)
        share = (below / weight + 1) / 2
        next_clip = clip * torch.exp(-_RATE * (share - self.quantile))
        return {**moved, "clip_norm": next_clip.clamp(self.start / _FARTHEST, self.start * _FARTHEST)}

    def output(self, state: State) -> Tensor:
        return self.update.output(state)
