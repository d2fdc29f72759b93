"""How the server moves: a few lines of optimiser, with all state in the open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from tacit.errors import RequestError, positive
from tacit.server.projection import Everywhere, Projection

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
    """x^{t+1} = nearest point of W to x^t - step v^t; the last point is the model.

    papers/000, Algorithm 3, line 17; with a projection papers/001, Algorithm 2, line 10.
    """

    step_size: float
    projection: Projection = field(default_factory=Everywhere)

    def __post_init__(self) -> None:
        positive("step", self.step_size)

    def init(self, point: Tensor) -> State:
        """The point itself."""
        self.projection.check_start(point)
        return {"point": point}

    def broadcast(self, state: State, round: int) -> Tensor:
        """The current point."""
        return state["point"]

    def step(self, state: State, direction: Tensor, round: int) -> State:
        """A step against the direction, and back into W."""
        return {"point": self.projection.nearest(state["point"] - self.step_size * direction)}

    def output(self, state: State) -> Tensor:
        """The last point."""
        return state["point"]


@dataclass(frozen=True)
class Averaged:
    """The weighted average of all points that were broadcast, with weights growing by a constant factor.

    papers/001, Algorithm 2, line 12: w_hat = sum_r gamma_r w_r / sum_r gamma_r with gamma_r = growth^r. Lemma D.6
    takes growth 1 (the plain average) for convex losses and 1/(1 - mu step) for strongly convex ones.
    """

    update: Descent
    growth: float = 1.0

    def __post_init__(self) -> None:
        if self.growth < 1:
            raise RequestError(f"growth must be at least 1 (later points count no less), not {self.growth!r}")

    def init(self, point: Tensor) -> State:
        """The update's own memory, and an average of nothing yet."""
        return {
            **self.update.init(point),
            "average": point.double(),
            "mass": torch.zeros((), dtype=torch.float64),
        }

    def broadcast(self, state: State, round: int) -> Tensor:
        """What the update broadcasts."""
        return self.update.broadcast(state, round)

    def step(self, state: State, direction: Tensor, round: int) -> State:
        """Take the point that was broadcast into the average, then move on."""
        point = self.broadcast(state, round)
        # sum of the weights over the newest weight: no power of `growth` ever overflows
        mass = state["mass"] / self.growth + 1
        average = state["average"] + (point.double() - state["average"]) / mass
        return {**self.update.step(state, direction, round), "average": average, "mass": mass}

    def output(self, state: State) -> Tensor:
        """The average."""
        return state["average"].to(state["point"].dtype)
