"""Calibration lands on the safe side of the target, close to it, and says so where there is no such place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.privacy import Adjacency, calibrate_noise, epsilon, events
from tacit.privacy.accountant import calibrate, gaussian

Make = Callable[[float], Any]

RUNS: dict[str, Make] = {
    "full": lambda z: events.repeated(events.gaussian(z), 150),
    "poisson, few rounds": lambda z: events.repeated(events.poisson(0.003, z), 25),
    "poisson, many rounds": lambda z: events.repeated(events.poisson(0.1, z), 5000),
    "poisson, half": lambda z: events.repeated(events.poisson(0.5, z), 500),
    "two levels": lambda z: events.repeated(events.two_level(0.03, z, 1.97, 0.03), 150),
    "without replacement": lambda z: events.repeated(events.without_replacement(3256, 103, z), 150),
    "with replacement": lambda z: events.repeated(events.with_replacement(3256, 103, z), 150),
    "revealed batches": lambda z: events.revealed_batches(150, 0.03, z, 1.97, 0.03),
    "one pass": lambda z: events.one_pass(z, 30),
    "fixed-size two levels": lambda z: events.repeated(
        events.fixed_size_two_level(3256, 103, False, z, 2.0, 0.03), 150
    ),
}


SLOW = "fixed-size two levels"
"""Seconds for each answer: asked for one target."""


@pytest.mark.parametrize(
    ("name", "target", "delta"),
    [*((name, 1.0, 1e-3) for name in RUNS), *((name, 8.0, 1e-6) for name in RUNS if name != SLOW)],
)
def test_noise_is_enough_and_hardly_more(name: str, target: float, delta: float) -> None:
    make = RUNS[name]
    z = calibrate_noise(make, epsilon=target, delta=delta)
    assert epsilon(make(z), delta) <= target
    assert epsilon(make(z / 1.005), delta) > target


@pytest.mark.parametrize("name", ["full", "poisson, few rounds", "two levels", "revealed batches"])
def test_removing_a_record_needs_less_noise_than_replacing_one(name: str) -> None:
    make = RUNS[name]
    z = calibrate_noise(make, epsilon=1.0, delta=1e-5, adjacency=Adjacency.ADD_REMOVE)
    assert epsilon(make(z), 1e-5, Adjacency.ADD_REMOVE) <= 1.0
    assert epsilon(make(z / 1.005), 1e-5, Adjacency.ADD_REMOVE) > 1.0
    assert z < calibrate_noise(make, epsilon=1.0, delta=1e-5)


@settings(max_examples=8)
@given(st.floats(1e-3, 0.8), st.integers(1, 1000), st.floats(0.05, 30.0), st.floats(-8.0, -4.0))
def test_poisson_calibration_is_safe_and_tight_everywhere(
    rate: float, rounds: int, target: float, power: float
) -> None:
    def make(z: float) -> Any:
        return events.repeated(events.poisson(rate, z), rounds)

    z = calibrate_noise(make, epsilon=target, delta=10**power)
    assert epsilon(make(z), 10**power) <= target
    assert epsilon(make(z / 1.006), 10**power) > target


def test_the_gaussian_is_calibrated_to_its_closed_form() -> None:
    z = calibrate_noise(lambda z: events.repeated(events.gaussian(z), 49), epsilon=2.0, delta=1e-6)
    exact = gaussian.epsilon([2 * 7 / z], [1.0], math.log(1e-6))
    assert 2.0 * (1 - 1e-3) < exact <= 2.0


def test_the_same_question_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(z: float) -> Any:
        return events.repeated(events.gaussian(z), 17)

    first = calibrate_noise(make, epsilon=1.7, delta=1e-5)
    monkeypatch.setattr(calibrate, "_least_noise", lambda *_: pytest.fail("asked twice"))
    assert calibrate_noise(make, epsilon=1.7, delta=1e-5) == first
    with pytest.raises(pytest.fail.Exception):
        calibrate_noise(make, epsilon=1.7, delta=1e-6)
    with pytest.raises(pytest.fail.Exception):
        calibrate_noise(lambda z: events.repeated(events.gaussian(2 * z), 17), epsilon=1.7, delta=1e-5)


def test_fixed_parts_are_charged_and_may_leave_no_room() -> None:
    def make(z: float, fixed: float) -> Any:
        return events.composed([events.repeated(events.gaussian(z), 10), events.gaussian(fixed)])

    alone = calibrate_noise(lambda z: events.repeated(events.gaussian(z), 10), epsilon=1.0, delta=1e-5)
    assert calibrate_noise(lambda z: make(z, 10.0), epsilon=1.0, delta=1e-5) > alone
    with pytest.raises(RequestError, match="no noise multiplier up to 1e"):
        calibrate_noise(lambda z: make(z, 1.0), epsilon=1.0, delta=1e-5)
    with pytest.raises(RequestError, match="not private at any noise level"):
        calibrate_noise(
            lambda z: events.composed([events.gaussian(z), events.non_private()]), epsilon=1.0, delta=1e-5
        )


def test_a_delta_that_permits_publishing_the_record_is_refused() -> None:
    with pytest.raises(RequestError, match="met without noise"):
        calibrate_noise(lambda z: events.poisson(1e-4, z), epsilon=1.0, delta=1e-3)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_epsilons_are_refused(bad: float) -> None:
    with pytest.raises(RequestError, match="epsilon must be"):
        calibrate_noise(events.gaussian, epsilon=bad, delta=1e-5)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1.0, math.nan])
def test_bad_deltas_are_refused(bad: float) -> None:
    with pytest.raises(RequestError, match="delta must be"):
        calibrate_noise(events.gaussian, epsilon=1.0, delta=bad)
