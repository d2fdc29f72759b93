"""The bounds of Theorems 1 and 3, in numbers worked by hand and on a real run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.errors import RequestError
from tacit.noise.randomness import Purpose, Randomness
from tacit.theory import soteriafl as theory
from tacit.theory.soteriafl import Problem

RUN = Problem(
    clients=8,
    records=20,
    dim=12,
    omega=2.0,
    epsilon=1.0,
    delta=1e-3,
    gradient_bound=math.sqrt(12),
    loss_gap=12 * 2.0,
)


def test_the_bounds_and_rounds_are_those_worked_by_hand() -> None:
    constants = theory.sgd_constants(records=10, batch=5, gradient_bound=2.0)
    assert constants.c_2 == pytest.approx(0.4)
    problem = Problem(
        clients=8, records=10, dim=4, omega=1.0, epsilon=1.0, delta=0.1, smoothness=2.0, gradient_bound=2.0
    )
    # k = (0.05 * 2 * 2)^2, growth 4 (1 + omega): beta = k / (n - growth k), and Phi_0 = 1 + beta/L G^2.
    beta = 0.04 / (8 - 8 * 0.04)
    terms = theory.theorem_3_terms(constants, problem, step=0.05, rounds=50, noise_std=0.3)
    weight = 3 * beta / (2 * 2 * 0.05)
    assert terms["optimisation"] == pytest.approx(2 * (1 + beta / 2 * 4) / 2.5)
    assert terms["sampling"] == pytest.approx(weight * 0.4)
    assert terms["privacy"] == pytest.approx(weight * 4 * 0.09)
    for noise_rate, expected in [(0.001, 0.4 / 0.004), (0.1, math.sqrt(2 * 2 * 2 * 3 / (3 * 0.5 * 0.4)))]:
        rounds = theory.balancing_rounds(
            constants, noise_rate=noise_rate, potential=3.0, beta=0.5, dim=4, omega=1.0, smoothness=2.0
        )
        assert rounds == pytest.approx(expected)
    direct = theory.cdp_terms(problem, step=0.05, rounds=50, batch_variance=0.5 / 5, noise_std=0.3)
    assert sum(direct.values()) == pytest.approx(2 / 2.5 + 2 * 0.05 / 8 * (4 + 2 * (0.5 * 4 / 5 + 4 * 0.09)))
    potential = theory.initial_potential(3.0, beta=0.5, smoothness=2.0, shift_gap_squared=4.0)
    assert potential == pytest.approx(3 + 0.25 * 4)


def _run(problem: Problem, *, shifted: bool, step: float, rounds: int, batch: int, noise_std: float) -> float:
    """The average ||grad f||^2 for f_ij(x) = sum_k sqrt(1 + (x_k - a_ijk)^2): L is 1 and G is sqrt(d)."""
    rng = Randomness(5).generator(Purpose.NOISE)
    n, m, d = problem.clients, problem.records, problem.dim
    k = round(d / (1 + problem.omega))
    anchors = rng.normal(size=(n, m, d)) + 2 * rng.normal(size=(n, 1, d))
    assert np.sqrt(1 + anchors**2).sum(axis=2).mean() - d <= problem.loss_gap
    gamma = theory.shift_step(problem.omega) if shifted else 0.0
    x, shift, total = np.zeros(d), np.zeros((n, d)), 0.0
    for _ in range(rounds):
        gaps = x - anchors
        gradients = gaps / np.sqrt(1 + gaps**2)
        total += float(np.sum(gradients.mean(axis=(0, 1)) ** 2))
        coins = rng.random((n, m, 1)) < batch / m
        private = (coins * gradients).sum(axis=1) / batch + noise_std * rng.normal(size=(n, d))
        kept = np.argsort(rng.random((n, d)), axis=1) < k
        sent = np.where(kept, (private - shift) * d / k, 0.0)
        x = x - step * (shift + sent).mean(axis=0)
        shift = shift + gamma * sent
    return total / rounds


def test_the_bound_of_theorem_3_holds_for_a_run_and_is_not_idle() -> None:
    constants = theory.sgd_constants(records=20, batch=5, gradient_bound=RUN.gradient_bound)
    beta = theory.balanced_beta(RUN.clients, RUN.omega)
    step = theory.largest_step(
        constants, beta=beta, clients=RUN.clients, omega=RUN.omega, smoothness=RUN.smoothness
    )
    measured = _run(RUN, shifted=True, step=step, rounds=300, batch=5, noise_std=0.5)
    terms = theory.theorem_3_terms(constants, RUN, step=step, rounds=300, noise_std=0.5)
    bound = sum(terms.values())
    assert bound / 100 < measured < bound


def test_the_bound_of_theorem_1_holds_for_a_run_and_is_not_idle() -> None:
    measured = _run(RUN, shifted=False, step=0.2, rounds=300, batch=5, noise_std=0.5)
    rest = 1 - 5 / RUN.records
    terms = theory.cdp_terms(RUN, step=0.2, rounds=300, batch_variance=rest / 5, noise_std=0.5)
    bound = sum(terms.values())
    assert bound / 100 < measured < bound


def test_steps_beyond_the_theorems_are_refused() -> None:
    constants = theory.sgd_constants(records=9, batch=9, gradient_bound=1.0)
    with pytest.raises(RequestError, match="longer than Theorem 3 allows"):
        theory.theorem_3_terms(constants, RUN, step=0.9, rounds=10, noise_std=1.0)
    with pytest.raises(RequestError, match="1/smoothness"):
        theory.cdp_terms(RUN, step=1.1, rounds=10, batch_variance=1.0, noise_std=0.0)
