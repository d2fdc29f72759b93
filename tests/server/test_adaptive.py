"""The adaptive server, against the recursion of Fed-SPA written down once more in plain numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.schedules import InverseSqrt
from tacit.server.adaptive import Adaptive


def test_the_recursion_of_the_paper() -> None:
    update = Adaptive(0.3, beta_1=0.8, beta_2=0.95, kappa=0.02, schedule=InverseSqrt())
    directions = [[0.5, -2.0], [0.1, 3.0], [-0.4, 0.0], [0.0, 0.7]]
    state = update.init(torch.tensor([1.0, -1.0], dtype=torch.float64))
    theta, u, v = [1.0, -1.0], [0.0, 0.0], [0.02**2] * 2
    for t, direction in enumerate(directions):
        assert torch.equal(update.broadcast(state, t)["point"], state["point"])
        state = update.step(state, torch.tensor(direction, dtype=torch.float64), t)
        for j in range(2):
            # Delta_t, the mean update of the clients, is minus the pseudo-gradient that they send.
            u[j] = 0.8 * u[j] + 0.2 * -direction[j]
            v[j] = 0.95 * v[j] + 0.05 * u[j] ** 2
            theta[j] += 0.3 / math.sqrt(t + 1) * u[j] / (math.sqrt(v[j]) + 0.02)
    assert state["point"].tolist() == pytest.approx(theta, rel=1e-12)
    assert torch.equal(update.output(state), state["point"])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0.0, 0.99), st.floats(0.0, 0.999))
def test_no_coordinate_moves_far(directions: list[float], beta_1: float, beta_2: float) -> None:
    """v_t >= (1 - beta_2) u_t^2, so a step is at most step / sqrt(1 - beta_2), whatever anybody sends."""
    update = Adaptive(0.1, beta_1, beta_2, kappa=1e-3)
    state = update.init(torch.zeros(1, dtype=torch.float64))
    for t, direction in enumerate(directions):
        before = state["point"]
        state = update.step(state, torch.tensor([direction], dtype=torch.float64), t)
        assert float((state["point"] - before).abs()) <= 0.1 / math.sqrt(1 - beta_2) * (1 + 1e-9)


def test_a_quadratic_of_uneven_curvature_is_solved() -> None:
    hessian = torch.logspace(-3, 0, 20)
    update = Adaptive(0.05, 0.9, 0.99, 1e-4, InverseSqrt())
    state = update.init(torch.ones(20))
    for t in range(800):
        state = update.step(state, hessian * update.broadcast(state, t)["point"], t)
    assert float(update.output(state).abs().max()) < 0.05


@pytest.mark.parametrize("bad", [{"beta_1": 1.0}, {"beta_2": -0.1}, {"kappa": 0.0}, {"step_size": 0.0}])
def test_bad_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(RequestError, match=next(iter(bad)).replace("_size", "")):
        Adaptive(**{"step_size": 0.1, **bad})
