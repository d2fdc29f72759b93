"""The Moreau envelope: its constants on a loss with a kink, and the beta that the theorems choose."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models import build_model, logistic_regression
from tacit.models.linear import support_vector_machine
from tacit.theory import isrl_dp as theory
from tacit.theory.isrl_dp import ConvexProblem

PROBLEMS = st.from_type(ConvexProblem)


@given(problem=PROBLEMS)
def test_smoothing_costs_no_more_than_the_rate(problem: ConvexProblem) -> None:
    """L^2/beta is the rate of Theorem 2.1 (D.2), and that of Theorem 4.1 without its logarithm (F.2)."""
    cost = 2 * theory.smoothing_loss(problem, theory.smoothing(problem, "iid"))
    assert cost == pytest.approx(theory.upper_bound("iid", problem))
    cost = 2 * theory.smoothing_loss(problem, theory.smoothing(problem, "erm"))
    log = -math.log(problem.delta)
    rate = theory.upper_bound("erm", problem) / (log if problem.is_strongly_convex else math.sqrt(log))
    assert cost == pytest.approx(rate)


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_the_envelope_is_as_smooth_curved_and_steep_as_claimed(mu: float) -> None:
    """f(w) = |w| + mu/2 w^2 on [-1, 1], minimised over a grid."""
    problem = ConvexProblem(
        clients=1, records=9, dim=1, epsilon=1.0, delta=0.1, lipschitz=1 + mu, diameter=2.0, strong_convexity=mu
    )
    beta, grid = 4.0, np.linspace(-1, 1, 20_001)
    points = np.linspace(-1, 1, 401)
    values = np.abs(grid) + mu / 2 * grid**2
    envelope = np.array([np.min(values + beta / 2 * (w - grid) ** 2) for w in points])
    gap = np.abs(points) + mu / 2 * points**2 - envelope
    assert 0 <= gap.min() <= gap.max() <= theory.smoothing_loss(problem, beta)
    slopes = np.diff(envelope) / np.diff(points)
    bends = np.diff(slopes) / np.diff(points)[1:]
    assert np.abs(slopes).max() <= problem.lipschitz * (1 + 1e-3)
    assert bends.max() == pytest.approx(beta, rel=0.01)
    assert bends.min() == pytest.approx(mu * beta / (mu + beta), abs=0.01)


def test_unlike_silos_have_no_result_for_rough_losses(mnist: ConvexProblem) -> None:
    with pytest.raises(RequestError, match="setting with a result for losses that are not smooth 'non-iid'"):
        theory.smoothing(mnist, "non-iid")


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("setting", ["iid", "erm"])
def test_a_model_takes_its_smoothing_from_the_theorem(setting: str, ridge: float) -> None:
    clients = [(np.eye(3) * (k + 1) / 9, [0, 1, 0]) for k in range(8)]
    federation = Federation.from_clients(clients)
    numbers = {"epsilon": 1.0, "delta": 0.01, "feature_norm": 1.0, "diameter": 4.0, "cohort": 5.0}
    rough = support_vector_machine(features=3, ridge=ridge)
    problem = theory.problem_of(rough, federation, **numbers)
    assert problem.smoothness is None
    beta = theory.model_smoothing(rough, federation, setting=setting, **numbers)
    # By hand, with L = sqrt(2) + ridge D/2, M = 5, n = 3, d = 4.
    steep, private = math.sqrt(2) + 2 * ridge, 2 * math.sqrt(math.log(100) if setting == "iid" else 1) / 3
    statistical = 1 / math.sqrt(3) if setting == "iid" else 0.0
    flat = steep * math.sqrt(5) / (4 * (statistical + private))
    assert beta == pytest.approx(ridge * 5 / (statistical**2 + private**2) if ridge else flat)
    smooth = build_model("svm", federation, {"ridge": ridge, "smoothing": beta})
    made = theory.problem_of(smooth, federation, **numbers)
    # The ridge stays outside of the envelope, so it adds to the smoothness and is all of mu.
    assert made == dataclasses.replace(problem, smoothness=beta + ridge)


def test_a_smooth_model_is_given_no_smoothing() -> None:
    federation = Federation.from_clients([(np.eye(2), [0, 1])])
    numbers = {"epsilon": 1.0, "delta": 0.01, "feature_norm": 1.0, "diameter": 4.0}
    with pytest.raises(RequestError, match="this one is smooth"):
        theory.model_smoothing(logistic_regression(features=2), federation, setting="erm", **numbers)
