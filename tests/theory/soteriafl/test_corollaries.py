"""The corollaries against the theorem: steps that it allows, rounds and utilities that it gives."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.theory import soteriafl as theory
from tacit.theory.soteriafl import EstimatorConstants, Problem

PROBLEMS = st.from_type(Problem)


def _limit(problem: Problem, constants: EstimatorConstants, beta: float) -> float:
    return theory.largest_step(
        constants,
        beta=beta,
        clients=problem.clients,
        omega=problem.omega,
        smoothness=problem.smoothness,
    )


def _corollary_2(problem: Problem) -> tuple[float, float, float]:
    """Its beta, its step, and the longest step that Theorem 3 allows with that beta."""
    batch = problem.records ** (2 / 3) / 4
    p = batch / problem.records
    beta, step = theory.svrg_beta_and_step(
        clients=problem.clients,
        omega=problem.omega,
        smoothness=problem.smoothness,
        batch=batch,
        snapshot_probability=p,
    )
    # the printed batch is a real number, and only C_1 = L^2/b depends on it
    unit = theory.svrg_constants(
        batch=1, snapshot_probability=p, smoothness=problem.smoothness, gradient_bound=problem.gradient_bound
    )
    return beta, step, _limit(problem, dataclasses.replace(unit, c_1=unit.c_1 / batch), beta)


@given(problem=PROBLEMS)
def test_the_step_of_corollary_2_is_allowed_with_more_clients_or_more_compression(problem: Problem) -> None:
    assume(problem.clients > 18 or problem.omega > 1.65)
    _, step, limit = _corollary_2(problem)
    assert step <= limit * (1 + 1e-9)


@pytest.mark.parametrize(
    ("clients", "omega", "factor"), [(1, 0.0, 6.081), (6, 0.0, 1.118), (7, 0.0, 0.976), (10, 1.0, 1.335)]
)
def test_the_step_of_corollary_2_is_too_long_for_few_clients(clients: int, omega: float, factor: float) -> None:
    problem = Problem(clients=clients, records=1000, dim=10, omega=omega, epsilon=1.0, delta=1e-5)
    _, step, limit = _corollary_2(problem)
    assert step / limit == pytest.approx(factor, abs=1e-3)


@given(problem=PROBLEMS)
def test_the_step_of_corollary_3_is_allowed_where_the_batch_fits(problem: Problem) -> None:
    beta, step = theory.saga_beta_and_step(
        clients=problem.clients, omega=problem.omega, smoothness=problem.smoothness
    )
    batch = min(math.ceil(3 * problem.records ** (2 / 3)), problem.records)
    constants = theory.saga_constants(
        records=problem.records,
        batch=batch,
        smoothness=problem.smoothness,
        gradient_bound=problem.gradient_bound,
    )
    assert step <= _limit(problem, constants, beta) * (1 + 1e-9)


def _plugged_in(problem: Problem, constants: EstimatorConstants, beta: float, step: float) -> tuple[float, float]:
    """Rounds and utility of Theorem 3 with c = 1 and Phi_0 = 1, over K and L/K."""
    noise_rate = constants.noise_gain * problem.privacy_cost**2 / problem.dim
    rounds = theory.balancing_rounds(
        constants,
        noise_rate=noise_rate,
        potential=1.0,
        beta=beta,
        dim=problem.dim,
        omega=problem.omega,
        smoothness=problem.smoothness,
    )
    utility = 2 * 2 / (step * rounds)  # both terms of the bound are equal after these rounds
    return rounds / problem.rounds_scale, utility * problem.rounds_scale / problem.smoothness


@given(problem=PROBLEMS)
def test_theorem_3_gives_rounds_and_utility_of_corollaries_2_and_3(problem: Problem) -> None:
    svrg_beta, svrg_step, _ = _corollary_2(problem)
    saga = theory.saga_beta_and_step(clients=problem.clients, omega=problem.omega, smoothness=problem.smoothness)
    constants = theory.saga_constants(
        records=problem.records,
        batch=1,
        smoothness=problem.smoothness,
        gradient_bound=problem.gradient_bound,
    )
    load = max(1.0, problem.tau)
    assert _plugged_in(problem, constants, svrg_beta, svrg_step) == pytest.approx(
        (4 / math.sqrt(3) * load, 8 * math.sqrt(3))
    )
    assert _plugged_in(problem, constants, *saga) == pytest.approx((load, 12.0))


@given(problem=PROBLEMS)
def test_balanced_beta_proves_corollary_1(problem: Problem) -> None:
    constants = theory.sgd_constants(records=9, batch=9, gradient_bound=problem.gradient_bound)
    beta = theory.balanced_beta(problem.clients, problem.omega)
    load = 4 * beta * (1 + problem.omega)
    step = _limit(problem, constants, beta)
    assert step == pytest.approx(1 / ((1 + load) * problem.smoothness))
    growth = math.sqrt(1 + load)
    assert growth <= 1 + math.sqrt(2 * problem.tau)
    rounds, utility = _plugged_in(problem, constants, beta, step)
    assert rounds == pytest.approx(math.sqrt(8 / 3) * growth)
    assert utility == pytest.approx(math.sqrt(6) * growth)


@pytest.mark.parametrize(("epsilon", "batch"), [(1.0, 10), (5.0, 51), (10.0, 103)])
def test_corollary_1_sets_the_batches_of_the_experiments(epsilon: float, batch: int, a9a: Problem) -> None:
    problem = dataclasses.replace(a9a, epsilon=epsilon)
    assert int(theory.sgd_batch(problem, problem.tau / (2 * (1 + problem.omega)))) == batch


def test_svrg_refuses_a_snapshot_probability_outside_corollary_2() -> None:
    with pytest.raises(RequestError, match=r"at most 0\.0625 for a batch of 4"):
        theory.svrg_beta_and_step(clients=5, omega=1.0, smoothness=1.0, batch=4, snapshot_probability=0.07)
