"""Heterogeneity, on problems whose minimiser and whose supremum are known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models import (
    Quadratic,
    least_squares,
    logistic_regression,
    nonconvex_logistic_regression,
    quadratic_federation,
    quadratic_minimiser,
    softmax_regression,
)
from tacit.models.linear import LinearModel
from tacit.noise.randomness import Purpose, Randomness
from tacit.theory import isrl_dp as theory
from tacit.theory.isrl_dp import measured


def _federation(*, silos: int, classes: int | None, seed: int = 2) -> Federation:
    draw = Randomness(seed).generator(Purpose.DATA)
    clients = []
    for silo in range(silos):
        records = 20 + 3 * silo
        features = draw.normal(size=(records, 4)) + draw.normal(size=(1, 4))
        if classes is None:
            targets = features @ np.array([1.0, -1.0, 0.5, 0.0]) + draw.normal(size=records) + silo
        else:
            targets = draw.integers(0, classes, size=records)
        clients.append((features, targets))
    return Federation.from_clients(clients, dtype=torch.float64)


def test_quadratics_with_a_known_minimiser() -> None:
    federation = quadratic_federation(clients=30, dim=6, rank=3, seed=4)
    model = Quadratic(dim=6, rank=3)
    known = quadratic_minimiser(federation)
    found = theory.minimiser(model, federation)
    torch.testing.assert_close(found, known, rtol=0, atol=1e-7)
    features = federation.features.double()
    hessians = torch.einsum("jdr,jer->jde", features[:, :, :-1], features[:, :, :-1])
    gradients = torch.einsum("jde,je->jd", hessians, known - features[:, :, -1])
    expected = float(gradients.square().sum(1).mean())
    assert theory.heterogeneity_at_minimiser(model, federation) == pytest.approx(expected, rel=1e-6)


def test_ridge_regression_with_a_known_minimiser() -> None:
    """The normal equations of the mean over silos of the mean over records, penalty included."""
    federation = _federation(silos=3, classes=None)
    model = least_squares(features=4, ridge=0.2)
    hessian, pull, rows = 0.2 * np.eye(5), np.zeros(5), []
    for i in range(3):
        own = federation.client(i)
        x = np.hstack([own.features.numpy(), np.ones((own.records, 1))])
        y = own.targets.numpy()
        hessian += x.T @ x / own.records / 3
        pull += x.T @ y / own.records / 3
        rows.append((x, y))
    known = np.linalg.solve(hessian, pull)
    assert theory.minimiser(model, federation).numpy() == pytest.approx(known, abs=1e-8)
    gradients = [x.T @ (x @ known - y) / len(y) + 0.2 * known for x, y in rows]
    expected = float(np.mean([np.sum(g**2) for g in gradients]))
    assert theory.heterogeneity_at_minimiser(model, federation) == pytest.approx(expected)
    # There the mean gradient vanishes, so both notions agree at w*.
    at = theory.heterogeneity_at(model, federation, torch.from_numpy(known))
    assert at == pytest.approx(expected)


@pytest.mark.parametrize(
    ("model", "classes"),
    [
        (logistic_regression(features=4, ridge=0.01), 2),
        (logistic_regression(features=4), 2),
        (softmax_regression(features=4, classes=3), 3),
        (softmax_regression(features=4, classes=3, ridge=0.01), 3),
    ],
)
def test_newton_finds_where_the_gradient_vanishes(model: LinearModel, classes: int) -> None:
    federation = _federation(silos=4, classes=classes)
    point = theory.minimiser(model, federation)
    gradients = theory.client_gradients(model, federation, point)
    assert float(gradients.mean(0).norm()) < 1e-9
    assert theory.heterogeneity_at_minimiser(model, federation) == pytest.approx(
        float(gradients.square().sum(1).mean())
    )


def test_silos_with_the_same_records_do_not_differ() -> None:
    one = _federation(silos=1, classes=2)
    pair = (one.features.numpy(), one.targets.numpy())
    same = Federation.from_clients([pair, pair, pair], dtype=torch.float64)
    model = logistic_regression(features=4, ridge=0.1)
    assert theory.heterogeneity_at_minimiser(model, same) < 1e-18
    draw = Randomness(0).generator(Purpose.INIT)
    assert theory.heterogeneity_squared(model, same, diameter=4.0, generator=draw) < 1e-24


def test_chunks_of_silos_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = _federation(silos=5, classes=2)
    model = logistic_regression(features=4, ridge=0.1)
    whole = theory.heterogeneity_at_minimiser(model, federation)
    draw = Randomness(0).generator(Purpose.INIT)
    supremum = theory.heterogeneity_squared(model, federation, diameter=2.0, generator=draw, starts=1)
    monkeypatch.setattr(measured, "RECORDS_AT_A_TIME", 50)
    assert theory.heterogeneity_at_minimiser(model, federation) == pytest.approx(whole)
    again = Randomness(0).generator(Purpose.INIT)
    assert theory.heterogeneity_squared(
        model, federation, diameter=2.0, generator=again, starts=1
    ) == pytest.approx(supremum)


def test_the_supremum_of_a_quadratic_in_two_dimensions() -> None:
    """Against a fine grid of the circle: a convex function is largest on the boundary."""
    federation = quadratic_federation(clients=7, dim=2, rank=1, seed=1)
    model = Quadratic(dim=2, rank=1)
    angles = np.linspace(0, 2 * np.pi, 2001)
    circle = 1.5 * torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    grid = max(theory.heterogeneity_at(model, federation, point) for point in circle[::10])
    draw = Randomness(0).generator(Purpose.INIT)
    found = theory.heterogeneity_squared(model, federation, diameter=3.0, generator=draw)
    assert grid * (1 - 1e-9) <= found <= 1.01 * grid


def test_the_supremum_is_above_random_points_and_below_the_lipschitz_bound() -> None:
    federation = _federation(silos=4, classes=2)
    model = logistic_regression(features=4)
    draw = Randomness(5).generator(Purpose.INIT)
    found = theory.heterogeneity_squared(model, federation, diameter=6.0, generator=draw, starts=2)
    for _ in range(30):
        point = torch.from_numpy(draw.normal(size=5))
        point *= 3 * draw.random() / point.norm()
        assert theory.heterogeneity_at(model, federation, point) <= found
    norm = float(torch.linalg.vector_norm(federation.features, dim=1).max())
    limit = model.lipschitz(norm)
    assert limit is not None
    assert found <= limit**2
    small = theory.heterogeneity_squared(model, federation, diameter=0.1, generator=draw, starts=1)
    assert small <= found


def test_single_precision_data_are_measured_in_double() -> None:
    federation = _federation(silos=3, classes=2)
    single = dataclasses.replace(federation, features=federation.features.float())
    model = logistic_regression(features=4, ridge=0.05)
    point = theory.minimiser(model, single)
    assert point.dtype == torch.float64
    assert float(theory.client_gradients(model, single, point).mean(0).norm()) < 1e-9


def test_what_cannot_be_measured_is_refused() -> None:
    federation = _federation(silos=2, classes=2)
    model = logistic_regression(features=4)
    draw = Randomness(0).generator(Purpose.INIT)
    with pytest.raises(RequestError, match="the model has 5 parameters, the point 4"):
        theory.heterogeneity_at(model, federation, torch.zeros(4))
    for settings in ({"diameter": 0.0}, {"diameter": 1.0, "starts": 0}, {"diameter": 1.0, "steps": 0}):
        with pytest.raises(RequestError, match=next(reversed(settings))):
            theory.heterogeneity_squared(model, federation, generator=draw, **settings)  # type: ignore[arg-type]


def test_a_loss_that_has_no_minimiser_is_not_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = _federation(silos=2, classes=2)
    monkeypatch.setattr(measured, "MOST_STEPS", 1)
    with pytest.raises(RequestError, match="no minimiser was found"):
        theory.minimiser(nonconvex_logistic_regression(features=4), federation)
