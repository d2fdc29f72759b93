"""The noise of the paper: its constants, and by how much the experiments break its condition."""

from __future__ import annotations

import math

import pytest

from tacit.errors import RequestError
from tacit.theory import soteriafl as theory


@pytest.mark.parametrize(
    ("algorithm", "factor"),
    [
        ("cdp-sgd", 8),
        ("ldp-sgd", 8),
        ("soteriafl-gd", 12),
        ("soteriafl-sgd", 12),
        ("soteriafl-svrg", 96),
        ("soteriafl-saga", 96),
        ("ldp-svrg", 96),
    ],
)
def test_published_noise_has_the_constants_of_the_experiments(algorithm: str, factor: float) -> None:
    std = theory.published_noise_std(
        algorithm, gradient_bound=0.5, records=3256, rounds=25, epsilon=2.0, delta=1e-3
    )
    assert std**2 == pytest.approx(factor * 0.25 * 25 * math.log(1000) / (3256 * 2) ** 2)


def test_published_noise_is_eq_4() -> None:
    constants = theory.svrg_constants(batch=1, snapshot_probability=0.5, smoothness=1.0, gradient_bound=3.0)
    std = theory.published_noise_std(
        "soteriafl-svrg", gradient_bound=3.0, records=7, rounds=5, epsilon=0.5, delta=0.01
    )
    assert std**2 == pytest.approx(48 * constants.noise_gain * 5 * math.log(100) / (7 * 0.5) ** 2)


@pytest.mark.parametrize(
    ("epsilon", "batch", "records", "rounds", "factor"),
    [(1.0, 10, 3256, 25, 4241), (10.0, 103, 3256, 150, 66.6), (1.0, 128, 6000, 150, 14.6)],
)
def test_the_experiments_break_the_condition_of_theorem_2(
    epsilon: float, batch: int, records: int, rounds: int, factor: float
) -> None:
    excess = theory.amplification_excess(epsilon, batch=batch, records=records, rounds=rounds)
    assert excess == pytest.approx(factor, rel=5e-3)


def test_unknown_algorithms_are_named() -> None:
    with pytest.raises(RequestError, match="unknown algorithm 'spider'"):
        theory.published_noise_std("spider", gradient_bound=1.0, records=1, rounds=1, epsilon=1.0, delta=0.1)
