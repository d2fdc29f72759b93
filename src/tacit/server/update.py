"""How the server updates the model: small optimisers with explicit state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from tacit.errors import RequestError, positive, unknown_name
from tacit.noise.randomness import Purpose, Randomness
from tacit.schedules import Constant, Schedule
from tacit.server.projection import Everywhere, Projection
from tacit.state import State


class ServerUpdate(Protocol):
    """Moves from the direction of a round to the next point."""

    def init(self, point: Tensor) -> State:
        """The server's memory before the first round."""
        ...

    def broadcast(self, state: State, round: int) -> State:
        """What the clients receive in this round, by name: the `point` (dim,), and whatever else they need."""
        ...

    @property
    def step(self) -> Callable[..., State]:
        """`step(state, direction, round)`: one move along the combined direction of the messages.

        If a work sends more than a direction, its other parts are passed by name, as further arguments.
        """
        ...

    def output(self, state: State) -> Tensor:
        """The final model."""
        ...


@dataclass(frozen=True)
class Descent:
    """x^{t+1} = nearest point of W to x^t - step_t m^t, m^t = momentum m^{t-1} + v^t. The last point is kept.

    SoteriaFL (Li et al. 2022), Algorithm 3, line 17; with a projection ISRL-DP (Lowy & Razaviyayn 2023),
    Algorithm 2, line 10; with momentum and a schedule DP-NormFedAvg (Das et al. 2022), appendix H.
    """

    step_size: float
    """the length of a step"""
    projection: Projection = field(default_factory=Everywhere)
    """the set W that points are projected onto"""
    schedule: Schedule = field(default_factory=Constant)
    """how the step changes from round to round"""
    momentum: float = 0.0
    """the share of the last movement that is kept"""

    def __post_init__(self) -> None:
        positive("step", self.step_size)
        if not 0 <= self.momentum < 1:
            raise RequestError(f"momentum must be at least 0 and below 1, not {self.momentum!r}")

    def init(self, point: Tensor) -> State:
        """The point, and a velocity if there is momentum."""
        self.projection.check_start(point)
        return {"point": point, **({"velocity": torch.zeros_like(point)} if self.momentum else {})}

    def broadcast(self, state: State, round: int) -> State:
        return {"point": state["point"]}

    def step(self, state: State, direction: Tensor, round: int) -> State:
        """A step against the direction, projected back onto W."""
        step = self.step_size * self.schedule.factor(round)
        if not self.momentum:
            return {"point": self.projection.nearest(state["point"] - step * direction)}
        velocity = self.momentum * state["velocity"] + direction
        return {"point": self.projection.nearest(state["point"] - step * velocity), "velocity": velocity}

    def output(self, state: State) -> Tensor:
        return state["point"]


@dataclass(frozen=True)
class Averaged:
    """The weighted average of all points that were broadcast, with weights growing by a constant factor.

    ISRL-DP, Algorithm 2, line 12: w_hat = sum_r gamma_r w_r / sum_r gamma_r with gamma_r = growth^r. Lemma D.6
    takes growth 1 (the plain average) for convex losses and 1/(1 - mu step) for strongly convex ones.
    """

    update: Descent
    """the descent whose points are averaged"""
    growth: float = 1.0
    """the factor between the weights of two rounds"""

    def __post_init__(self) -> None:
        if self.growth < 1:
            raise RequestError(f"growth must be at least 1 (later points count no less), not {self.growth!r}")

    def init(self, point: Tensor) -> State:
        """The inner update's memory, and an empty average."""
        return {
            **self.update.init(point),
            "average": point.double(),
            "mass": torch.zeros((), dtype=torch.float64),
        }

    def broadcast(self, state: State, round: int) -> State:
        return self.update.broadcast(state, round)

    def step(self, state: State, direction: Tensor, round: int) -> State:
        """Add the point that was broadcast to the average, then make the inner update's step."""
        point = self.broadcast(state, round)["point"]
        # The sum of the weights divided by the newest weight, so that no power of `growth` overflows.
        mass = state["mass"] / self.growth + 1
        average = state["average"] + (point.double() - state["average"]) / mass
        return {**self.update.step(state, direction, round), "average": average, "mass": mass}

    def output(self, state: State) -> Tensor:
        return state["average"].to(state["point"].dtype)


@dataclass(frozen=True)
class Kept:
    """The point that was broadcast in one round, chosen in advance: DP-NormFedAvg, Algorithm 1, line 16.

    Until that round the model is the newest point.
    """

    update: Descent
    """the descent"""
    round: int
    """the round whose point is kept, from 0"""

    def init(self, point: Tensor) -> State:
        return {**self.update.init(point), "kept": point}

    def broadcast(self, state: State, round: int) -> State:
        return self.update.broadcast(state, round)

    def step(self, state: State, direction: Tensor, round: int) -> State:
        """Make the inner update's step; keep the newest point until the chosen round."""
        moved = self.update.step(state, direction, round)
        return {**moved, "kept": state["kept"] if round >= self.round else moved["point"]}

    def output(self, state: State) -> Tensor:
        return state["kept"]


Output = Callable[[Descent], ServerUpdate]
"""Turns a descent into one whose model is the last point, an average, or the point of a chosen round."""


def parse_output(name: str, rounds: int, randomness: Randomness) -> Output:
    """Read an output rule: `last`, `average`, or `random` (a round from 0 to rounds - 1, by a public coin)."""
    if name == "random":
        chosen = int(randomness.generator(Purpose.OUTPUT).integers(rounds))
        return partial(Kept, round=chosen)
    if name not in OUTPUTS:
        raise unknown_name("output", name, [*OUTPUTS, "random"])
    return OUTPUTS[name]


def last_point(update: Descent) -> ServerUpdate:
    """The newest point is the model."""
    return update


OUTPUTS: dict[str, Output] = {"last": last_point, "average": Averaged}


def describe_output(output: Output) -> str:
    """The inverse of `parse_output` for rules without a random choice."""
    return next(name for name, known in OUTPUTS.items() if known is output)
