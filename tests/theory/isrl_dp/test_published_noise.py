"""The published noises: as printed, monotone, refused outside their theorems, and safe where they claim to be."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.privacy import accounting, events
from tacit.theory import isrl_dp as theory

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


def test_theorem_d_1_is_safe_for_batches_with_replacement() -> None:
    settings: dict[str, Any] = {"records": 200, "rounds": 10, "epsilon": 2.0, "delta": 1e-4}
    batch = math.ceil(theory.smallest_batch(**settings))
    std = theory.resampled_noise_std(lipschitz=1.0, **settings)
    event = events.repeated(events.with_replacement(200, batch, std * batch), 10)
    assert accounting.epsilon(event, 1e-4) < 2.0 / 8


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
    for bad in (math.nan, 0.0, 1.0):
        with pytest.raises(RequestError, match="delta"):
            theory.smallest_batch(records=9, rounds=9, epsilon=1.0, delta=bad)
