"""Projection, averaging and acceleration, on quadratics whose minimum is known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tacit.errors import RequestError
from tacit.server.accelerated import Accelerated, Stage
from tacit.server.projection import Ball, Box, Everywhere, Projection, parse_projection
from tacit.server.update import Averaged, Descent, ServerUpdate

points = st.lists(st.floats(-5, 5, width=32), min_size=3, max_size=3).map(torch.tensor)


@pytest.mark.parametrize("projection", [Ball(1.5), Box(-0.5, 2.0), Everywhere()])
@given(one=points, other=points)
def test_projections_are_nearest_points(projection: Projection, one: Tensor, other: Tensor) -> None:
    inside = projection.nearest(other)
    projection.check_start(inside * (1 - 1e-6) if isinstance(projection, Ball) else inside)
    near = projection.nearest(one)
    torch.testing.assert_close(projection.nearest(near), near)
    assert float((near - one).norm()) <= float((inside - one).norm()) + 1e-5
    assert float((near - inside).norm()) <= float((one - inside).norm()) + 1e-5


def test_projections_are_spelled_and_refused() -> None:
    assert parse_projection("none") == Everywhere()
    for text in ("ball", "ball:-1", "ball:x", "box:1:0", "disc:2"):
        with pytest.raises(RequestError):
            parse_projection(text)
    with pytest.raises(RequestError, match="outside the ball"):
        Descent(0.1, Ball(1.0)).init(torch.ones(4))
    with pytest.raises(RequestError, match="outside the box"):
        Accelerated((Stage(3, 1.0),), projection=Box(2.0, 3.0)).init(torch.ones(4))


@pytest.mark.parametrize("growth", [1.0, 1.3])
def test_the_average_has_the_weights_it_says(growth: float) -> None:
    update = Averaged(Descent(1.0), growth)
    state = update.init(torch.tensor([0.0]))
    seen = []
    for r in range(400):
        seen.append(float(update.broadcast(state, r)["point"]))
        state = update.step(state, torch.tensor([-float(r % 5)]), r)
    weights = [growth ** (r - 399) for r in range(400)]
    expected = sum(w * x for w, x in zip(weights, seen, strict=True)) / sum(weights)
    assert float(update.output(state)) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(RequestError, match="growth"):
        Averaged(Descent(1.0), 0.9)


def _run(update: ServerUpdate, hessian: Tensor, rounds: int, start: Tensor) -> list[float]:
    """The errors of the outputs on x^T H x / 2, whose minimum is 0 at 0."""
    state = update.init(start)
    errors = []
    for r in range(rounds):
        state = update.step(state, hessian * update.broadcast(state, r)["point"], r)
        x = update.output(state)
        errors.append(float((hessian * x * x).sum() / 2))
    return errors


def test_acceleration_falls_as_the_square_of_the_rounds() -> None:
    """Lemma E.1 without noise, a convex (not strongly convex) quadratic: error <= c beta D^2 / R^2."""
    hessian = torch.logspace(-6, 0, 60, dtype=torch.float64)
    start = torch.ones(60, dtype=torch.float64)
    distance = float((start * start).sum())
    for rounds in (10, 40, 160, 640):
        error = _run(Accelerated((Stage(rounds, 2.0),)), hessian, rounds, start)[-1]
        assert error <= 4 * distance / rounds**2
    plain = _run(Descent(1.0), hessian, 640, start)[-1]
    assert error < plain / 5


def test_stages_fall_exponentially_and_beat_plain_descent_on_a_bad_condition() -> None:
    """Lemma E.2 without noise: rounds ~ sqrt(kappa) log(1/error), against kappa log(1/error) for descent."""
    kappa = 1000.0
    hessian = torch.logspace(-math.log10(kappa), 0, 50, dtype=torch.float64)
    start = torch.ones(50, dtype=torch.float64)
    length = math.ceil(4 * math.sqrt(2 * kappa))
    update = Accelerated(tuple(Stage(length, 2.0) for _ in range(12)), 1 / kappa)
    errors = _run(update, hessian, update.rounds, start)
    first = float((hessian * start * start).sum() / 2)
    for k in range(1, 7):
        assert errors[k * length - 1] <= first * 2.0**-k
    target = 1e-6 * first
    accelerated = next(r for r, error in enumerate(errors) if error < target)
    plain = _run(Averaged(Descent(1.0), 1 / (1 - 1 / kappa)), hessian, 8 * accelerated, start)
    slower = next((r for r, error in enumerate(plain) if error < target), len(plain))
    assert slower > 2 * accelerated


def test_line_9_is_an_exact_argmin_with_a_projection() -> None:
    generator = torch.Generator().manual_seed(0)
    mu, projection = 0.4, Ball(0.8)
    update = Accelerated((Stage(5, 1.0),), mu, projection)
    state = update.init(torch.zeros(3))
    for r in range(3):
        direction = torch.randn(3, generator=generator)
        middle, before = update.broadcast(state, r)["point"], state["point"]
        a, e, _ = update._coefficients(r)
        state = update.step(state, direction, r)

        def value(
            v: Tensor, a: float = a, e: float = e, g: Tensor = direction, m: Tensor = middle, w: Tensor = before
        ) -> float:
            near = a * (g @ v + mu / 2 * (m - v).square().sum())
            return float(near + ((1 - a) * mu + e) / 2 * (w - v).square().sum())

        best = value(state["point"])
        for _ in range(200):
            other = projection.nearest(state["point"] + 0.2 * torch.randn(3, generator=generator))
            assert value(other) >= best - 1e-5


def test_an_accelerated_update_knows_its_limits() -> None:
    update = Accelerated((Stage(2, 1.0),))
    with pytest.raises(RequestError, match="only 2 rounds"):
        update.broadcast(update.init(torch.zeros(1)), 2)
    with pytest.raises(RequestError, match="strong_convexity"):
        Accelerated((Stage(2, 1.0),), -1.0)
    with pytest.raises(RequestError, match="at least one stage"):
        Accelerated(())
