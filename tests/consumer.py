"""Code as a user of tacit writes it, for the type checker: every name below must have a type of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from torch import Tensor, nn

import tacit


@dataclass(frozen=True)
class HalfSteps:
    """A server update of the user's own."""

    step_size: float

    def init(self, point: Tensor) -> tacit.State:
        return {"point": point}

    def broadcast(self, state: tacit.State, round: int) -> tacit.State:
        return {"point": state["point"]}

    def step(self, state: tacit.State, direction: Tensor, round: int) -> tacit.State:
        return {"point": state["point"] - self.step_size / 2 * direction}

    def output(self, state: tacit.State) -> Tensor:
        return state["point"]


def composed(model: tacit.Model) -> tacit.Algorithm:
    """An algorithm of parts."""
    sampling: tacit.Sampling = tacit.Poisson(0.1)
    bound: tacit.Bound = tacit.ClipNorm(1.0)
    uplink: tacit.Uplink = tacit.Shifted(tacit.RandK(fraction=0.2))
    server: tacit.ServerUpdate = HalfSteps(0.1)
    work = tacit.PrivateGradient(model, tacit.Minibatch(sampling), bound)
    assert_type(work, tacit.PrivateGradient)
    return tacit.Algorithm("half-steps", work, uplink, server, tacit.Everyone(), tacit.Nobody())


def trained() -> tacit.Run:
    """From data to a run."""
    federation = tacit.load("digits", clients=5)
    assert_type(federation, tacit.Federation)
    model = tacit.models.ModuleModel(nn.Linear(64, 10))
    assert_type(model, tacit.ModuleModel)
    plan = tacit.plan(composed(model), federation, rounds=2, privacy=tacit.Target(epsilon=8, delta=1e-5))
    assert_type(plan, tacit.Plan)
    run = tacit.simulate(plan)
    assert_type(run.guarantee, tacit.Guarantee | None)
    return run


def others(model: tacit.Model) -> list[tacit.Algorithm]:
    """Algorithms by name, and local work."""
    local = tacit.NoisyLocalSteps(model, tacit.Full(), tacit.Normalise(1.0), steps=2, step_size=0.1)
    return [
        tacit.fed_spa(model),
        tacit.dp_fed(model),
        tacit.cpsgd(model),
        tacit.noisy_mb_sgd(model),
        tacit.Algorithm("local", local, tacit.Direct(tacit.Identity()), tacit.Descent(1.0)),
    ]
