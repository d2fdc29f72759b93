"""Prescriptions can be run, are proved, and refuse what makes no sense."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.theory import soteriafl as theory
from tacit.theory.soteriafl import Problem

ALGORITHMS = (
    "cdp-sgd",
    "ldp-sgd",
    "ldp-svrg",
    "soteriafl-gd",
    "soteriafl-sgd",
    "soteriafl-svrg",
    "soteriafl-saga",
)
PROBLEMS = st.from_type(Problem)


def _prescribe(algorithm: str, problem: Problem, noise_constant: float = 1.0) -> theory.Prescription:
    return theory.prescribe(algorithm, problem, noise_constant=noise_constant)


@given(
    algorithm=st.sampled_from(ALGORITHMS),
    problem=PROBLEMS,
    records=st.integers(1, 60),
    small=st.booleans(),
    few=st.booleans(),
)
def test_prescriptions_can_be_run_and_proved(
    algorithm: str, problem: Problem, records: int, small: bool, few: bool
) -> None:
    problem = dataclasses.replace(
        problem,
        records=records if small else problem.records,
        clients=1 + problem.clients % 20 if few else problem.clients,
    )
    p = _prescribe(algorithm, problem)
    assert isinstance(p.batch, int)
    assert 1 <= p.batch <= problem.records
    assert isinstance(p.rounds, int)
    assert p.rounds >= 1
    assert 0 < p.step <= 1 / problem.smoothness * (1 + 1e-9)
    if algorithm in ("cdp-sgd", "ldp-sgd"):
        return
    omega = 0.0 if algorithm.startswith("ldp") else problem.omega
    constants = theory.sgd_constants(records=problem.records, batch=p.batch, gradient_bound=1.0)
    numbers = {"clients": problem.clients, "omega": omega, "smoothness": problem.smoothness}
    assert p.step <= theory.longest_step(constants, **numbers) * (1 + 1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("records", [1, 2, 3, 7, 8, 9, 26, 27, 28])
def test_clients_with_few_records_get_a_prescription(algorithm: str, records: int, a9a: Problem) -> None:
    for clients, omega in [(1, 0.0), (3, 1.0), (500, 0.0), (500, 40.0)]:
        p = _prescribe(algorithm, dataclasses.replace(a9a, records=records, clients=clients, omega=omega))
        assert 1 <= p.batch <= records


@pytest.mark.parametrize(
    ("algorithm", "records", "batch"),
    [
        ("soteriafl-svrg", 1000, 25),
        ("soteriafl-svrg", 999, 24),
        ("soteriafl-svrg", 2, 1),
        ("soteriafl-saga", 1000, 300),
        ("soteriafl-saga", 1001, 301),
        ("soteriafl-saga", 9, 9),
        ("soteriafl-gd", 77, 77),
    ],
)
def test_batches_are_rounded_to_the_safe_side(algorithm: str, records: int, batch: int, a9a: Problem) -> None:
    assert _prescribe(algorithm, dataclasses.replace(a9a, records=records)).batch == batch


@given(problem=PROBLEMS)
def test_without_a_compressor_omega_counts_as_zero(problem: Problem) -> None:
    dense = dataclasses.replace(problem, omega=0.0)
    assert _prescribe("ldp-sgd", problem) == _prescribe("cdp-sgd", dense)
    assert _prescribe("ldp-svrg", problem) == _prescribe("soteriafl-svrg", dense)


@given(problem=PROBLEMS)
def test_sgd_is_gd_when_the_batch_is_everything(problem: Problem) -> None:
    loose = dataclasses.replace(problem, epsilon=1e9 * problem.epsilon)
    assume(theory.sgd_batch(loose, loose.tau / (2 * (1 + loose.omega))) == loose.records)
    sgd, gd = _prescribe("soteriafl-sgd", loose), _prescribe("soteriafl-gd", loose)
    assert sgd.step == gd.step
    assert sgd.batch <= gd.batch == loose.records
    assert sgd.batch < loose.records or sgd == gd


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_more_noise_or_less_privacy_budget_never_helps(algorithm: str, a9a: Problem) -> None:
    base = _prescribe(algorithm, a9a)
    strict = _prescribe(algorithm, dataclasses.replace(a9a, epsilon=0.5))
    noisy = _prescribe(algorithm, a9a, noise_constant=4.0)
    assert strict.rounds < base.rounds
    assert noisy.rounds < base.rounds


def test_svrg_lowers_the_step_of_corollary_2_where_it_is_too_long() -> None:
    lone = Problem(clients=1, records=1000, dim=10, omega=0.0, epsilon=1.0, delta=1e-5)
    # u/(2L) with u = p^(2/3) b^(1/3) for b = m^(2/3)/4 and p = b/m
    printed = (25 / 1000) ** (2 / 3) * 25 ** (1 / 3) / 2
    assert printed / _prescribe("ldp-svrg", lone).step == pytest.approx(6.081, abs=1e-3)
    many = dataclasses.replace(lone, clients=100)
    assert _prescribe("ldp-svrg", many).step == pytest.approx(printed)


def test_direct_compression_keeps_the_condition_of_theorem_4_if_a_batch_can() -> None:
    problem = Problem(clients=100, records=5000, dim=50, omega=9.0, epsilon=1.0, delta=1e-5)
    p = _prescribe("cdp-sgd", problem)
    assert theory.amplification_excess(1.0, batch=p.batch, records=5000, rounds=p.rounds) < 1
    assert theory.amplification_excess(1.0, batch=p.batch - 1, records=5000, rounds=p.rounds) >= 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("clients", 0),
        ("records", 2.5),
        ("dim", -1),
        ("omega", -0.1),
        ("omega", math.nan),
        ("epsilon", 0.0),
        ("epsilon", math.inf),
        ("delta", 0.0),
        ("delta", 1.0),
        ("delta", math.nan),
        ("smoothness", -1.0),
        ("gradient_bound", math.nan),
        ("loss_gap", 0.0),
    ],
)
def test_a_problem_names_the_setting_that_is_wrong(setting: str, value: float, a9a: Problem) -> None:
    with pytest.raises(RequestError, match=setting):
        dataclasses.replace(a9a, **{setting: value})
    with pytest.raises(RequestError, match="noise_constant"):
        _prescribe("soteriafl-sgd", a9a, noise_constant=0.0)


def test_unknown_algorithms_are_named(a9a: Problem) -> None:
    with pytest.raises(RequestError, match="did you mean 'soteriafl-sgd'"):
        _prescribe("soteriafl-sdg", a9a)
