"""The Moreau envelope: its constants on a loss with a kink, and the beta that the theorems choose."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.theory import isrl_dp as theory
from tacit.theory.isrl_dp import Problem

PROBLEMS = st.from_type(Problem)


@given(problem=PROBLEMS)
def test_smoothing_costs_no_more_than_the_rate(problem: Problem) -> None:
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
    problem = Problem(
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
    made = theory.smoothed(problem, beta)
    assert np.abs(slopes).max() <= made.lipschitz * (1 + 1e-3)
    assert bends.max() == pytest.approx(made.smooth, rel=0.01)
    assert bends.min() == pytest.approx(made.strong_convexity, abs=0.01)


def test_unlike_silos_have_no_result_for_rough_losses(mnist: Problem) -> None:
    with pytest.raises(RequestError, match="setting with a result for losses that are not smooth 'non-iid'"):
        theory.smoothing(mnist, "non-iid")
    with pytest.raises(RequestError, match="smoothness must be given"):
        theory.prescribe("accelerated-mb-sgd", dataclasses.replace(mnist, smoothness=None))
