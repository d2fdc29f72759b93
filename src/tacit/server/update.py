"""How the server moves: a few lines of optimiser, with all state in the open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from tacit.errors import positive

State = dict[str, Tensor]


class ServerUpdate(Protocol):
    """From the direction of a round to the next point."""

    def init(self, point: Tensor) -> State:
        """The server's memory before the first round."""
        ...

    def broadcast(self, state: State, round: int) -> Tensor:
        """What the clients get to see in this round: (dim,)."""
        ...

    def step(self, state: State, direction: Tensor, round: int) -> State:
        """One move along the direction that the messages add up to."""
        ...

    def output(self, state: State) -> Tensor:
        """The model to keep."""
        ...


@dataclass(frozen=True)
class Descent:
    """x^{t+1} = x^t - step v^t; the last point is the model (papers/000, Algorithm 3, line 17)."""

    step_size: float

    def __post_init__(self) -> None:
        positive("step", self.step_size)

    def init(self, point: Tensor) -> State:
        """The point itself."""
        return {"point": point}

    def broadcast(self, state: State, round: int) -> Tensor:
        """The current point."""
        return state["point"]

    def step(self, state: State, direction: Tensor, round: int) -> State:
        """A step against the direction."""
        return {"point": state["point"] - self.step_size * direction}

    def output(self, state: State) -> Tensor:
        """The last point."""
        return state["point"]
