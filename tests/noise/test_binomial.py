"""Coins as noise: never worth less than the Gaussian that is charged for, and hardly more expensive."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from tacit.errors import RequestError
from tacit.noise.binomial import TAIL_MASS, Binomial, fewest_coins, kappa
from tacit.noise.randomness import Generators, Purpose, Randomness
from tacit.privacy import events
from tacit.privacy.accountant.accounting import delta as delta_of
from tacit.privacy.accountant.accounting import epsilon as epsilon_of
from tacit.privacy.promises.terms import Adjacency

Masses = NDArray[np.float64]
COINS = (128, 256, 1000, 4096)
ROUNDING = 1e-12
ROOM = 12
"""Whole numbers on either side of what comes out for zero."""


def law(v: float, coins: int) -> Masses:
    """The masses of what comes out for v, on -ROOM .. coins + ROOM: written down from the definition."""
    whole = math.floor(v)
    heads = stats.binom.pmf(np.arange(-ROOM, coins + ROOM + 1) - whole, coins, 0.5)
    moved = stats.binom.pmf(np.arange(-ROOM, coins + ROOM + 1) - whole - 1, coins, 0.5)
    return (1 - (v - whole)) * heads + (v - whole) * moved


def hockey_stick(p: Masses, q: Masses, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def gaussian_delta(shift: float, epsilon: float) -> float:
    return float(
        stats.norm.cdf(shift / 2 - epsilon / shift)
        - math.exp(epsilon) * stats.norm.cdf(-shift / 2 - epsilon / shift)
    )


@given(
    coins=st.sampled_from(COINS),
    start=st.floats(-4, 4),
    reach=st.floats(0.01, 5),
    epsilon=st.floats(0, 6),
)
def test_no_pair_is_easier_to_tell_apart_than_the_gaussian(
    coins: int, start: float, reach: float, epsilon: float
) -> None:
    p, q = law(start + reach, coins), law(start, coins)
    allowed = gaussian_delta(kappa(coins) * reach, epsilon) + ROUNDING
    assert hockey_stick(p, q, epsilon) <= allowed
    assert hockey_stick(q, p, epsilon) <= allowed


@pytest.mark.parametrize("coins", COINS)
def test_kappa_is_as_small_as_it_can_be(coins: int) -> None:
    """Just below a whole number some threshold needs all of it, and none within the tails needs more."""
    steepest, step = 0.0, 1e-5
    for v in (0.5, 0.9, 0.99, 0.9999):
        after, before = (np.cumsum(law(moved, coins)) for moved in (v + step, v))
        seen = (after > 100 * TAIL_MASS) & (before < 0.5)
        rates = (stats.norm.ppf(before[seen]) - stats.norm.ppf(after[seen])) / step
        steepest = max(steepest, float(rates.max()))
    assert 0.8 * kappa(coins) <= steepest <= kappa(coins) * (1 + 1e-6)


def test_the_gaussian_of_the_same_variance_would_be_too_little() -> None:
    """What kappa adds to 1/std is needed: far out, coins reveal more than the Gaussian of their variance."""
    coins, epsilon = 128, 5.0
    exact = max(hockey_stick(law(v + 1, coins), law(v, coins), epsilon) for v in (0.0, 0.5, 0.9))
    assert exact > gaussian_delta(2 / math.sqrt(coins), epsilon)
    assert exact <= gaussian_delta(kappa(coins), epsilon)


@settings(max_examples=15)
@given(q=st.floats(0.02, 0.9), reach=st.floats(0.2, 6), other=st.floats(0.2, 6), epsilon=st.floats(0, 3))
def test_sampled_batches(q: float, reach: float, other: float, epsilon: float) -> None:
    """Lemma A for coins: a record that is drawn or not, replaced by one that pulls to the other side."""
    coins, base = 256, 0.3
    still = law(base, coins)
    p = (1 - q) * still + q * law(base + reach, coins)
    r = (1 - q) * still + q * law(base - other, coins)
    event = events.poisson(q, 1 / (kappa(coins) * max(reach, other)))
    assert hockey_stick(p, r, epsilon) <= delta_of(event, epsilon) + ROUNDING
    removed = delta_of(event, epsilon, Adjacency.ADD_REMOVE) + ROUNDING
    assert max(hockey_stick(p, still, epsilon), hockey_stick(still, p, epsilon)) <= removed


def test_vectors_by_enumeration() -> None:
    """Two coordinates, all outcomes: the exact epsilon is below the accountant's, and not far below."""
    coins, moves = 1000, (3.5, -2.8)
    sides = [(law(0.25 + t, coins), law(0.25, coins)) for t in moves]
    p, q = (np.multiply.outer(a, b) for a, b in zip(*sides, strict=True))
    shift = kappa(coins) * math.hypot(*moves)
    charged = epsilon_of(Binomial(bits=11).charged(events.gaussian(2 / shift), dim=2, releases=1), 1e-5)
    assert hockey_stick(p, q, charged) <= 1e-5
    assert hockey_stick(p, q, 0.65 * charged) > 1e-5


def test_more_coins_are_never_worth_less() -> None:
    values = [kappa(coins) for coins in range(100, 3000, 50)]
    assert all(a >= b for a, b in itertools.pairwise(values))
    assert kappa(20) == math.inf, "twenty coins end too early"
    assert 1.0 < kappa(32768) * math.sqrt(32768) / 2 < 1.06
    least = fewest_coins(0.05, 4096)
    assert kappa(least) <= 0.05 < kappa(least - 2)
    assert fewest_coins(1e-6, 4096) == 0


@given(bits=st.integers(8, 16), std=st.floats(1e-6, 1e6))
def test_the_grid_has_enough_coins_and_fits(bits: int, std: float) -> None:
    grid = Binomial(bits).grid(std)
    assert kappa(grid.coins) * std <= grid.spacing, "a record of one bound moves the grid by 1 / spacing bounds"
    assert grid.levels + grid.coins // 2 == 2 ** (bits - 1) - 1
    assert grid.levels >= 2 ** (bits - 2)
    assert grid.noise_std >= std


@given(bits=st.integers(8, 16), std=st.floats(1e-6, 1e6), ratio=st.floats(1e-3, 1e9))
def test_the_grid_reaches_as_far_as_the_numbers(bits: int, std: float, ratio: float) -> None:
    """Whatever the noise is, which is never less than was asked for."""
    grid, largest = Binomial(bits).grid(std, ratio * std), ratio * std
    assert grid.levels * grid.spacing >= largest
    assert kappa(grid.coins) * std <= grid.spacing
    assert grid.levels + grid.coins // 2 == 2 ** (bits - 1) - 1
    assert grid.noise_std >= std
    alone = Binomial(bits).grid(std)
    assert grid == alone or grid.spacing <= 2 * largest / (2 ** (bits - 2)), "no coarser than it must be"


@pytest.mark.parametrize("secret", [False, True])
def test_what_is_drawn(secret: bool) -> None:
    """Unbiased between two steps too, of the variance it says, on the grid; seeded and not."""
    noise, draws = Binomial(bits=8, secret=secret), 40_000
    stds = torch.tensor([0.5, 0.02], dtype=torch.float64)
    between = [[2.5 * noise.grid(0.5).spacing], [-3.8 * noise.grid(0.02).spacing]]
    rows = torch.tensor(between).expand(2, draws)
    noisy, _ = noise.add(rows, stds, stds, Generators(Randomness(3), Purpose.NOISE, (0, 1)), {})
    for row, noisy_row, std in zip(rows, noisy.double(), stds.tolist(), strict=True):
        grid = noise.grid(std)
        steps = noisy_row / grid.spacing
        assert torch.equal(steps, steps.round())
        fraction = float(row[0]) / grid.spacing % 1
        variance = grid.noise_std**2 + grid.spacing**2 * fraction * (1 - fraction)
        assert float(noisy_row.var()) == pytest.approx(variance, rel=0.04)
        assert float(noisy_row.mean()) == pytest.approx(float(row[0]), abs=6 * math.sqrt(variance / draws))


def test_numbers_beyond_the_levels_are_clipped() -> None:
    noise, std = Binomial(bits=8), 1.0
    grid = noise.grid(std)
    rows = torch.tensor([[1e30, -1e30, float(grid.levels * grid.spacing)]])
    one = torch.ones(1, dtype=torch.float64)
    noisy, _ = noise.add(rows, one, one, Generators(Randomness(0), Purpose.NOISE, (0,)), {})
    assert float(noisy.abs().max()) <= (2**7 - 1) * grid.spacing


@pytest.mark.parametrize("bits", [0, 7, 17])
def test_bad_settings_are_refused(bits: int) -> None:
    with pytest.raises(RequestError, match="bits"):
        Binomial(bits)
    with pytest.raises(RequestError, match="coins must be even"):
        kappa(101)


@pytest.mark.parametrize("exponent", [-40, -3, 0, 17])
def test_every_grid_has_coins(exponent: int) -> None:
    """Also for deviations at which the step is a power of two but for the rounding of a logarithm."""
    exact = math.ldexp(1 / kappa(2**7 - 2), exponent)
    for ulps in range(-12, 13):
        std = exact * (1 + ulps * 2.0**-52)
        grid = Binomial(bits=8).grid(std)
        assert grid.coins
        assert kappa(grid.coins) <= grid.spacing / std
