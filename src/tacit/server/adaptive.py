"""A server that scales each coordinate by how much it has moved, like Adam but without memory at the clients."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.errors import RequestError, positive
from tacit.schedules import Constant, Schedule
from tacit.state import State


@dataclass(frozen=True)
class Adaptive:
    """Fed-SPA (Hu et al. 2021), Algorithm 1, lines 13 to 15; D_t is the mean of the messages (a pseudo-gradient):

        u_t = beta_1 u_{t-1} + (1 - beta_1) D_t,      u_{-1} = 0
        v_t = beta_2 v_{t-1} + (1 - beta_2) u_t^2,    v_{-1} = kappa^2
        x^{t+1} = x^t - step_t u_t / (sqrt(v_t) + kappa)

    coordinate by coordinate. `kappa` sets the size from which a coordinate is scaled: if kappa is far above the
    size of u_t, this is momentum with step/(2 kappa); far below it, every coordinate moves by about one step.

    >>> update = Adaptive(step_size=0.1, beta_1=0.0, beta_2=0.0, kappa=1e-6)
    >>> update.step(update.init(torch.zeros(2)), torch.tensor([100.0, -0.01]), 0)["point"]
    tensor([-0.1000,  0.1000])
    """

    step_size: float
    """the length of a step"""
    beta_1: float = 0.9
    """the share of the old mean of messages in the new one"""
    beta_2: float = 0.99
    """the share of the old mean of squares in the new one"""
    kappa: float = 1e-3
    schedule: Schedule = field(default_factory=Constant)
    """how the step changes from round to round"""

    def __post_init__(self) -> None:
        positive("step", self.step_size)
        positive("kappa", self.kappa)
        for name, value in (("beta_1", self.beta_1), ("beta_2", self.beta_2)):
            if not 0 <= value < 1:
                raise RequestError(f"{name} must be at least 0 and below 1, not {value!r}")

    def init(self, point: Tensor) -> State:
        """The point, u_{-1} and v_{-1}."""
        return {
            "point": point,
            "movement": torch.zeros_like(point),
            "squares": torch.full_like(point, self.kappa**2),
        }

    def broadcast(self, state: State, round: int) -> State:
        return {"point": state["point"]}

    def step(self, state: State, direction: Tensor, round: int) -> State:
        """One move, with a separate step size for each coordinate."""
        movement = self.beta_1 * state["movement"] + (1 - self.beta_1) * direction
        squares = self.beta_2 * state["squares"] + (1 - self.beta_2) * movement.square()
        step = self.step_size * self.schedule.factor(round)
        point = state["point"] - step * movement / (squares.sqrt() + self.kappa)
        return {"point": point, "movement": movement, "squares": squares}

    def output(self, state: State) -> Tensor:
        return state["point"]
