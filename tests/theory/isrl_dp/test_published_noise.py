"""The published noises: as printed, monotone, refused outside their theorems, and safe where they claim to be."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.privacy import accounting, events, gaussian
from tacit.theory import isrl_dp as theory
from tacit.theory.isrl_dp import Problem

DELTAS = st.floats(1e-12, 0.2)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0.01, 3), DELTAS, st.floats(0.01, 100))
def test_theorem_d_1_is_its_proof(
    records: int, rounds: int, epsilon: float, delta: float, lipschitz: float
) -> None:
    """Advanced composition, amplification 2 epsilon K/n, the Gaussian mechanism of sensitivity 2L/K."""
    batch = 7.0
    round_epsilon = epsilon / (2 * math.sqrt(2 * rounds * math.log(2 / delta)))
    round_delta = delta / (2 * rounds)
    before_sampling = round_epsilon * records / (2 * batch)
    variance = 2 * (2 * lipschitz / batch) ** 2 * math.log(1.25 / round_delta) / before_sampling**2
    found = theory.resampled_noise_std(
        lipschitz=lipschitz, records=records, rounds=rounds, epsilon=epsilon, delta=delta
    )
    assert found == pytest.approx(math.sqrt(variance))
    smallest = theory.smallest_batch(records=records, rounds=rounds, epsilon=epsilon, delta=delta)
    assert round_epsilon * records / (2 * smallest) == pytest.approx(1)  # what the Gaussian mechanism needs


@given(st.integers(1, 10**5), st.floats(0.01, 8), DELTAS, st.floats(0.01, 100))
def test_theorem_e_1_is_safe_and_wasteful(batch: int, epsilon: float, delta: float, lipschitz: float) -> None:
    std = theory.one_pass_noise_std(lipschitz=lipschitz, batch=batch, epsilon=epsilon, delta=delta)
    assert std**2 == pytest.approx(32 * lipschitz**2 * math.log(1.25 / delta) / (epsilon * batch) ** 2)
    true = gaussian.epsilon([2 * lipschitz / batch / std], [1.0], math.log(delta))
    assert true <= epsilon


def test_theorem_e_1_spends_a_third_of_what_it_may() -> None:
    """Exact accounting needs 1.7 to 3.5 times less noise."""
    for epsilon, delta in [(0.1, 1e-5), (1.0, 1e-6), (8.0, 1e-5)]:
        std = theory.one_pass_noise_std(lipschitz=1.0, batch=1, epsilon=epsilon, delta=delta)
        low, high = std / 10, std
        for _ in range(60):
            middle = math.sqrt(low * high)
            true = gaussian.epsilon([2 / middle], [1.0], math.log(delta))
            low, high = (middle, high) if true > epsilon else (low, middle)
        assert 1.6 < std / high < 3.6


def test_theorem_d_1_is_safe_for_batches_with_replacement() -> None:
    settings: dict[str, Any] = {"records": 200, "rounds": 10, "epsilon": 2.0, "delta": 1e-4}
    batch = math.ceil(theory.smallest_batch(**settings))
    std = theory.resampled_noise_std(lipschitz=1.0, **settings)
    event = events.repeated(events.with_replacement(200, batch, std * batch), 10)
    assert accounting.epsilon(event, 1e-4) < 2.0 / 8


def test_theorem_g_1_is_the_print() -> None:
    p = Problem(clients=2000, records=50, dim=3, epsilon=0.7, delta=1e-5, lipschitz=3.0, cohort=1500)
    logs = math.log(40 * 1500**2 / (2000 * 1e-5)) * math.log(40 / 1e-5) * math.log(1e5)
    expected = 2.5 * 9 * 40 * 1500 * logs / (50 * 2000 * 0.7) ** 2
    assert theory.shuffled_noise_std(p, rounds=40, noise_constant=2.5) ** 2 == pytest.approx(expected)


def test_the_experiments_noise_is_the_print() -> None:
    one = theory.experiment_noise_std(lipschitz=2.0, records=1238, rounds=35, epsilon=6.0, delta=1e-6)
    assert one**2 == pytest.approx(8 * 4 * math.log(1e6) * 35 / (1238 * 6) ** 2)
    local = theory.experiment_noise_std(
        lipschitz=2.0, records=1238, rounds=35, epsilon=6.0, delta=1e-6, local_steps=9
    )
    assert local == pytest.approx(3 * one)
    batch = theory.experiment_batch(records=1238, rounds=35, epsilon=6.0)
    assert batch == pytest.approx(1238 * math.sqrt(6) / (2 * math.sqrt(35)))


@given(st.integers(1, 10**4), st.floats(0.01, 1), DELTAS)
def test_less_privacy_more_records_and_fewer_rounds_need_less_noise(
    rounds: int, epsilon: float, delta: float
) -> None:
    def std(**change: float) -> float:
        settings: dict[str, Any] = {"records": 100, "rounds": rounds, "epsilon": epsilon, "delta": delta}
        return theory.resampled_noise_std(lipschitz=1.0, **{**settings, **change})

    assert std(epsilon=2 * epsilon) < std()
    assert std(delta=1.01 * delta) < std()
    assert std(records=101) < std()
    assert std(rounds=rounds + 1) > std()


def test_noise_is_refused_where_its_theorem_says_nothing() -> None:
    with pytest.raises(RequestError, match=r"epsilon must be at most 5\.99.* \(Theorem D\.1\)"):
        theory.resampled_noise_std(lipschitz=1.0, records=9, rounds=9, epsilon=6.0, delta=0.1)
    with pytest.raises(RequestError, match=r"Theorem E\.1"):
        theory.one_pass_noise_std(lipschitz=1.0, batch=9, epsilon=19.0, delta=0.1)
    few = Problem(clients=100, records=50, dim=3, epsilon=1.0, delta=1e-5)
    with pytest.raises(RequestError, match="cohort must be at least"):
        theory.shuffled_noise_std(few, rounds=10)
    with pytest.raises(RequestError, match=r"Theorem G\.1"):
        theory.shuffled_noise_std(dataclasses.replace(few, epsilon=13.0), rounds=10)
    for bad in (math.nan, 0.0, 1.0):
        with pytest.raises(RequestError, match="delta"):
            theory.one_pass_noise_std(lipschitz=1.0, batch=9, epsilon=1.0, delta=bad)
