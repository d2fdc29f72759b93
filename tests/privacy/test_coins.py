"""Coins as noise: exact where the protocol can be enumerated, never below the truth elsewhere."""

from __future__ import annotations

import itertools
import math
from functools import reduce

import numpy as np
import pytest
from dp_accounting import DpEvent
from hypothesis import given
from hypothesis import settings as sizes
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from tacit.errors import RequestError
from tacit.privacy import calibrate_noise, events
from tacit.privacy.accounting import delta as delta_of
from tacit.privacy.accounting import epsilon as epsilon_of
from tacit.privacy.coins import MOST_COINS, CoinNoise, _gaussian_epsilon, shifted_delta
from tacit.privacy.composition import CannotAnswerError

Law = NDArray[np.float64]


def hockey_stick(p: Law, q: Law, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def ones(values: list[float], levels: int, coins: int) -> Law:
    """The exact law of the number of ones of all clients in one coordinate; values in levels."""
    law = stats.binom.pmf(np.arange(len(values) * coins + 1), len(values) * coins, 0.5)
    for value in values:
        below = math.floor(value)
        rounded = np.zeros(levels + 2)
        rounded[below], rounded[below + 1] = 1 - (value - below), value - below
        law = np.convolve(law, rounded)
    return law


def table(laws: list[Law]) -> Law:
    """The joint law of independent coordinates."""
    return reduce(np.multiply.outer, laws)


@given(st.integers(1, 40), st.integers(0, 45), st.floats(0.0, 6.0))
def test_shifted_coins_are_exact(coins: int, shift: int, epsilon: float) -> None:
    heads = stats.binom.pmf(np.arange(coins + 1), coins, 0.5)
    still, moved = np.pad(heads, (0, shift)), np.pad(heads, (shift, 0))
    assert shifted_delta(coins, shift, epsilon) == pytest.approx(hockey_stick(moved, still, epsilon), abs=1e-12)
    assert hockey_stick(still, moved, epsilon) == pytest.approx(hockey_stick(moved, still, epsilon), abs=1e-12)


@sizes(max_examples=30)
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(4, 40),
    st.floats(1e-4, 0.2),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_the_scalar_protocol_is_private_as_claimed(
    clients: int, levels: int, coins: int, delta: float, points: list[float]
) -> None:
    epsilon = CoinNoise(1, clients * coins, float(levels)).epsilon(delta)
    if math.isinf(epsilon):
        return
    others = [levels * x for x in points[: clients - 1]]
    here, there = (ones([levels * x, *others], levels, coins) for x in points[2:])
    assert hockey_stick(here, there, epsilon) <= delta * (1 + 1e-9)
    # The farthest two values need all of it: that many coins keep no smaller epsilon.
    lowest, highest = (ones([x, *map(math.floor, others)], levels, coins) for x in (0.0, float(levels)))
    assert hockey_stick(highest, lowest, epsilon) <= delta * (1 + 1e-9)
    if epsilon > 0:
        assert hockey_stick(highest, lowest, 0.999 * epsilon - 1e-9) > delta


@pytest.mark.parametrize(
    ("levels", "coins", "delta"), [(2, 30, 1e-3), (3, 80, 1e-4), (1, 25, 1e-2), (3, 26, 0.05)]
)
def test_the_vector_protocol_is_private_as_claimed(levels: int, coins: int, delta: float) -> None:
    epsilon = CoinNoise(2, coins, float(levels)).epsilon(delta)
    assert 0 < epsilon < math.inf
    middle = levels / 2
    for angle, radius in itertools.product(np.linspace(0, math.pi / 2, 13), (0.5, 0.9, 1.0)):
        step = radius * middle * np.array([math.cos(angle), math.sin(angle)])
        here = table([ones([middle + x], levels, coins) for x in step])
        there = table([ones([middle - x], levels, coins) for x in step])
        assert hockey_stick(here, there, epsilon) <= delta
        assert hockey_stick(there, here, epsilon) <= delta


def test_three_dimensions_and_off_centre_values() -> None:
    levels, coins, delta = 2, 40, 1e-3
    epsilon = CoinNoise(3, coins, float(levels)).epsilon(delta)
    corner = levels / 2 / math.sqrt(3)
    for start, step in (
        ((1.0, 1.0, 1.0), (corner, corner, corner)),
        ((1.0, 1.0, 1.0), (1.0, 0.0, 0.0)),
        ((1.0, 0.7, 1.2), (0.6, -0.5, 0.4)),
    ):
        here = table([ones([s + x], levels, coins) for s, x in zip(start, step, strict=True)])
        there = table([ones([s - x], levels, coins) for s, x in zip(start, step, strict=True)])
        assert hockey_stick(here, there, epsilon) <= delta


def test_two_rounds_are_private_as_claimed() -> None:
    levels, coins, delta = 2, 60, 1e-3
    epsilon = CoinNoise(1, coins, float(levels), rounds=2).epsilon(delta)
    here, there = (ones([x], levels, coins) for x in (0.0, float(levels)))
    assert hockey_stick(np.outer(here, here), np.outer(there, there), epsilon) <= delta
    assert epsilon <= 2 * CoinNoise(1, coins, float(levels)).epsilon(delta / 2)


def test_the_vector_bound_is_close_to_the_exact_one() -> None:
    # One record can put all of its influence on one coordinate, so more dimensions can only cost more.
    exact, bound = (CoinNoise(dim, 60_000, 32.0).epsilon(1e-5) for dim in (1, 2))
    assert exact < bound < 1.12 * exact


@pytest.mark.parametrize(("reach", "coins"), [(0.6, 300), (1.0, 700), (2.5, 900)])
def test_many_coins_are_worth_gaussian_noise(reach: float, coins: int) -> None:
    """Where the Gaussian bound is the smaller one, against the law of two coordinates written down."""
    delta = 1e-4
    epsilon = CoinNoise(2, coins, reach).epsilon(delta)
    assert epsilon == _gaussian_epsilon(CoinNoise(2, coins, reach), delta)
    levels = math.ceil(reach) + 1
    for angle, start in itertools.product(np.linspace(0, math.pi / 2, 7), (0.0, 0.4)):
        step = reach * np.array([math.cos(angle), math.sin(angle)])
        here = table([ones([min(start + x, levels)], levels, coins) for x in step])
        there = table([ones([start], levels, coins) for _ in step])
        for one, other in ((here, there), (there, here)):
            assert hockey_stick(one, other, epsilon) <= delta


@pytest.mark.parametrize(("dim", "coins", "most"), [(3, 2000, 1.2), (100, 2000, 1.2), (3, 100_000, 1.03)])
def test_more_dimensions_cost_little_where_coins_are_many(dim: int, coins: int, most: float) -> None:
    one, several = (CoinNoise(d, coins, 1.0).epsilon(1e-5) for d in (1, dim))
    assert one < several <= most * one


def test_how_many_coins_are_asked_for() -> None:
    # 1000 clients in 50 dimensions at 32 levels, epsilon = 1, delta = 1e-5; cpSGD's own bound asks for 191.
    assert CoinNoise(50, 1000 * 60, 32.0).epsilon(1e-5) <= 1.0
    assert CoinNoise(50, 1000 * 59, 32.0).epsilon(1e-5) > 1.0


@sizes(max_examples=15)
@given(st.integers(2, 500), st.integers(500, 50_000), st.floats(0.2, 12.0), st.integers(1, 20))
def test_more_coins_help_and_everything_else_hurts(dim: int, coins: int, reach: float, rounds: int) -> None:
    epsilon = CoinNoise(dim, coins, reach, rounds).epsilon(1e-5)
    # A search for the best order ends a little beside it.
    assert CoinNoise(dim, 2 * coins, reach, rounds).epsilon(1e-5) <= epsilon * 1.001
    assert CoinNoise(2 * dim, coins, reach, rounds).epsilon(1e-5) * 1.001 >= epsilon
    assert CoinNoise(dim, coins, 1.5 * reach, rounds).epsilon(1e-5) * 1.001 >= epsilon
    assert CoinNoise(dim, coins, reach, rounds + 1).epsilon(1e-5) * 1.001 >= epsilon


def test_too_few_coins_are_no_guarantee() -> None:
    assert CoinNoise(1, 10, 20.0).epsilon(1e-5) == math.inf
    assert CoinNoise(4, 10, 20.0).epsilon(1e-5) == math.inf
    assert CoinNoise(1, 3, 1.0).epsilon(1e-3) == math.inf
    assert CoinNoise(1, 3, 1.0).epsilon(0.126) < math.inf


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: CoinNoise(0, 10, 1.0),
        lambda: CoinNoise(2, 0, 1.0),
        lambda: CoinNoise(2, 10, 0.0),
        lambda: CoinNoise(2, 10, math.nan),
        lambda: CoinNoise(2, 10, 1.0, rounds=0),
        lambda: CoinNoise(2, 10, 1.0).epsilon(0.0),
    ],
)
def test_wrong_requests_are_refused(wrong: object) -> None:
    with pytest.raises(RequestError):
        wrong()  # type: ignore[operator]


def test_more_coins_than_can_be_counted_earn_nothing() -> None:
    few, many = CoinNoise(3, MOST_COINS, 2.5, 2), CoinNoise(3, 2**60, 2.5, 2)
    enough = 2 * few.epsilon(1e-5)
    assert many.log_delta(enough, math.log(1e-5)) == few.log_delta(enough, math.log(1e-5)) <= math.log(1e-5)
    with pytest.raises(CannotAnswerError, match="too small for so few clients"):
        many.log_delta(enough / 100, math.log(1e-5))
    with pytest.raises(CannotAnswerError, match="counts up to"):
        many.epsilon(1e-5)


@pytest.mark.parametrize("wanted", [0.01, 0.001])
def test_a_small_epsilon_is_answered(wanted: float) -> None:
    """The search for the noise goes far beyond what it needs: to numbers that nobody could count."""

    def run(noise: float) -> DpEvent:
        return events.repeated(events.coin_sum(31, 6, math.ceil((2.5 * noise) ** 2), 2.5), 2)

    noise = calibrate_noise(run, epsilon=wanted, delta=1e-7)
    assert 0.98 * wanted < epsilon_of(run(noise), 1e-7) <= wanted


def test_an_epsilon_that_takes_too_many_coins_is_refused() -> None:
    def run(noise: float) -> DpEvent:
        return events.repeated(events.coin_sum(31, 6, math.ceil((2.5 * noise) ** 2), 2.5), 2)

    with pytest.raises(RequestError, match="too small for so few clients"):
        calibrate_noise(run, epsilon=1e-6, delta=1e-5)


def test_numbers_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> float:
        raise MemoryError

    monkeypatch.setattr(CoinNoise, "log_delta", full)
    monkeypatch.setattr(CoinNoise, "epsilon", full)
    event = events.coin_sum(7, 6, 1234, 2.5)
    with pytest.raises(CannotAnswerError, match="out of range"):
        delta_of(event, 0.123)
    with pytest.raises(CannotAnswerError, match="out of range"):
        epsilon_of(event, 1.23e-5)
