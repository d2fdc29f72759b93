"""L, beta and mu: what the model and a stated bound give covers every record within the bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.models import (
    LinearModel,
    Quadratic,
    least_squares,
    logistic_regression,
    nonconvex_logistic_regression,
    softmax_regression,
)
from tacit.noise.randomness import Purpose, Randomness
from tacit.theory import isrl_dp as theory

MODELS = [
    (logistic_regression(features=3, ridge=0.3), None),
    (logistic_regression(features=3, intercept=False), None),
    (softmax_regression(features=3, classes=4, ridge=0.1), None),
    (least_squares(features=3, ridge=0.2), 2.0),
]


@pytest.mark.parametrize(("model", "target_bound"), MODELS)
def test_constants_cover_every_record_within_the_bounds(model: LinearModel, target_bound: float | None) -> None:
    draw = Randomness(1).generator(Purpose.DATA)
    norm, diameter, records = 1.5, 4.0, 4000
    features = draw.normal(size=(records, 3))
    features *= norm / np.linalg.norm(features, axis=1, keepdims=True)
    if target_bound is None:
        targets = torch.from_numpy(draw.integers(0, max(2, model.outputs), size=records))
    else:
        targets = torch.from_numpy(draw.choice([-target_bound, target_bound], size=records))
    batch = Batch(torch.from_numpy(features), targets, torch.ones(records, dtype=torch.int64))
    points = draw.normal(size=(2, records, model.dim))
    points *= diameter / 2 / np.linalg.norm(points, axis=2, keepdims=True)
    first, second = torch.from_numpy(points[0]), torch.from_numpy(points[1])
    second = first + 0.05 * (second - first)  # smoothness shows best nearby
    found = theory.model_constants(model, feature_norm=norm, diameter=diameter, target_bound=target_bound)
    rows = [model.gradients(p, batch).rows(0, records) for p in (first, second)]
    strength = found.strong_convexity
    slopes = torch.linalg.vector_norm(rows[0], dim=1)
    assert 0.8 * found.record_lipschitz < float(slopes.max()) <= found.record_lipschitz * (1 + 1e-9)
    whole = torch.linalg.vector_norm(rows[0] + strength * first, dim=1)
    assert float(whole.max()) <= found.lipschitz * (1 + 1e-9)
    apart, moved = second - first, rows[1] - rows[0] + strength * (second - first)
    lengths = torch.linalg.vector_norm(apart, dim=1)
    bends = torch.linalg.vector_norm(moved, dim=1) / lengths
    assert found.smoothness / 2 < float(bends.max()) <= found.smoothness * (1 + 1e-9)
    curvatures = (moved * apart).sum(1) / lengths**2
    assert float(curvatures.min()) >= strength * (1 - 1e-9)


def test_a_problem_is_made_of_public_numbers() -> None:
    federation = Federation.from_clients([(np.eye(3)[:, :2], [0, 1, 0]), (np.eye(2), [1, 0])])
    model = logistic_regression(features=2, ridge=0.1)
    problem = theory.problem_of(
        model, federation, epsilon=1.0, delta=0.01, feature_norm=1.0, diameter=6.0, cohort=1.5
    )
    assert (problem.clients, problem.records, problem.dim, problem.reporting) == (2, 2, 3, 1.5)
    assert problem.lipschitz == pytest.approx(math.sqrt(2) + 0.3)
    assert problem.smoothness == pytest.approx(0.6)
    assert problem.strong_convexity == 0.1
    other = Federation.from_clients([(9 * np.ones((3, 2)), [1, 1, 0]), (7 * np.eye(2), [0, 0])])
    assert problem == theory.problem_of(
        model, other, epsilon=1.0, delta=0.01, feature_norm=1.0, diameter=6.0, cohort=1.5
    )


def test_unknown_constants_are_asked_for() -> None:
    with pytest.raises(RequestError, match="target_bound must be given"):
        theory.model_constants(least_squares(features=2), feature_norm=1.0, diameter=1.0)
    with pytest.raises(RequestError, match="target_bound"):
        theory.model_constants(least_squares(features=2), feature_norm=1.0, diameter=1.0, target_bound=math.nan)
    with pytest.raises(RequestError, match="not Quadratic: no constants"):
        theory.model_constants(Quadratic(dim=2, rank=1), feature_norm=1.0, diameter=1.0)
    with pytest.raises(RequestError, match="convex penalty"):
        theory.model_constants(nonconvex_logistic_regression(features=2), feature_norm=1.0, diameter=1.0)
    for setting in ("feature_norm", "diameter"):
        bounds = {"feature_norm": 1.0, "diameter": 1.0, setting: math.inf}
        with pytest.raises(RequestError, match=setting):
            theory.model_constants(logistic_regression(features=2), **bounds)
