"""The vector sum: unbiased, with the stated variance, whatever goes in; nothing is seen but the ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as sizes
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from tacit.errors import DataError, RequestError
from tacit.noise.entropy import Keystream
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Adjacency
from tacit.shuffle import VectorSum, vector_sum


def sources(clients: int, round: int = 0) -> list[np.random.Generator]:
    return [Randomness(11).generator(Purpose.NOISE, client=i, round=round) for i in range(clients)]


def ball(clients: int, dim: int, radius: float) -> torch.Tensor:
    rows = Randomness(3).generator(Purpose.DATA).standard_normal((clients, dim))
    return torch.from_numpy(radius * rows / np.linalg.norm(rows, axis=1, keepdims=True))


@pytest.mark.parametrize("coins", [5, 64, 69])
def test_unbiased_and_of_the_stated_variance(coins: int) -> None:
    clients, dim, repeats = 12, 40, 200
    total = VectorSum(clients, dim, clip_norm=2.0, levels=4, coins=coins)
    rows = ball(clients, dim, 1.9)
    results = torch.stack(
        [total.analyse(total.randomise(rows, sources(clients, t)).sum(0)) for t in range(repeats)]
    )
    variances = total.variances(rows)
    standardised = (results - rows.sum(0)) / variances.sqrt()
    assert float(standardised.mean().abs()) < 4 / math.sqrt(repeats * dim)
    assert float((standardised**2).mean()) == pytest.approx(1.0, rel=0.1)
    assert float(variances.max()) <= total.variance_bound
    assert float((standardised.mean(0) ** 2).mean()) * repeats == pytest.approx(1.0, rel=0.9)


def test_vectors_on_the_lattice_have_the_noise_of_the_coins_alone() -> None:
    total = VectorSum(clients=4, dim=2, clip_norm=1.0, levels=2, coins=6)
    rows = torch.tensor([[0.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]) * (1 - 1e-6)
    assert total.variances(rows).tolist() == pytest.approx([4 * 6 / 4, 4 * 6 / 4], abs=1e-4)


def test_no_noise_at_all_would_give_the_sum_back() -> None:
    # Ones as expected, client by client: shift, scale and both centrings must cancel.
    total = VectorSum(clients=3, dim=2, clip_norm=2.0, levels=10, coins=7)
    rows = torch.tensor([[1.0, -1.0], [0.5, 0.25], [-1.5, 0.0]], dtype=torch.float64)
    expected = (rows + 2.0) / 4.0 * 10 + 7 / 2
    assert total.analyse(expected.sum(0)).tolist() == pytest.approx(rows.sum(0).tolist())


def test_the_shuffler_keeps_the_ones_and_nothing_else() -> None:
    total = VectorSum(clients=5, dim=3, clip_norm=1.0, levels=4, coins=9)
    ones = total.randomise(ball(5, 3, 0.7), sources(5))
    bits = total.bits(ones)
    assert bits.shape == (5, 3, 13)
    assert torch.equal(bits.sum(2), ones)
    seen = total.shuffle(bits, Randomness(1).generator(Purpose.DATA))
    assert seen.shape == (3, 5 * 13)
    assert torch.equal(seen.sum(1), ones.sum(0))
    assert not torch.equal(seen, bits.transpose(0, 1).reshape(3, -1))
    assert torch.equal(total.analyse(seen.sum(1)), total.analyse(ones.sum(0)))


@sizes(max_examples=60)
@given(
    arrays.arrays(np.float64, (3, 4), elements=st.floats(allow_nan=False, allow_infinity=False)),
    st.integers(1, 9),
    st.integers(1, 70),
)
def test_whatever_goes_in_the_ones_fit_their_bits(rows: np.ndarray, levels: int, coins: int) -> None:
    total = VectorSum(3, 4, clip_norm=1.0, levels=levels, coins=coins)
    ones = total.randomise(torch.from_numpy(rows), sources(3))
    assert int(ones.min()) >= 0
    assert int(ones.max()) <= levels + coins


def test_long_vectors_are_scaled_to_the_norm() -> None:
    total = VectorSum(1, 2, clip_norm=1.0, levels=1000, coins=1)
    for scale in (1.0, 1e3, 1e30):
        ones = total.randomise(scale * torch.tensor([[6.0, -8.0]]), sources(1))
        assert (ones[0] - torch.tensor([800, 100])).abs().max() <= 2


def test_a_client_draws_alone_what_it_draws_in_a_cohort() -> None:
    total = VectorSum(4, 6, clip_norm=1.0, levels=3, coins=40)
    rows = ball(4, 6, 0.5).float()
    together = total.randomise(rows, sources(4))
    assert torch.equal(total.randomise(rows[2:3], sources(4)[2:3]), together[2:3])
    assert not torch.equal(total.randomise(rows, sources(4, round=1)), together)


@pytest.mark.parametrize("coins", [3, 64, 70])
@pytest.mark.parametrize("source", [Randomness(2).generator(Purpose.NOISE), Keystream(bytes(32))])
def test_the_noise_is_binomial(coins: int, source: np.random.Generator | Keystream) -> None:
    dim = 40_000
    total = VectorSum(1, dim, clip_norm=1.0, levels=2, coins=coins)
    # Zero is the middle level, exactly: what is left are the heads.
    heads = total.randomise(torch.zeros(1, dim), [source])[0].numpy() - 1
    values = np.arange(coins + 1)
    expected = dim * stats.binom.pmf(values, coins, 0.5)
    common = expected > 5
    seen = np.bincount(heads, minlength=coins + 1)
    observed, wanted = (np.append(x[common], x[~common].sum()) for x in (seen, expected))
    keep = wanted > 1
    statistic = float(((observed - wanted)[keep] ** 2 / wanted[keep]).sum())
    assert statistic < stats.chi2.isf(1e-6, int(keep.sum()))


def test_fewest_coins_that_keep_the_target() -> None:
    total = vector_sum(epsilon=2.0, delta=1e-4, clients=60, dim=10, clip_norm=1.0)
    fewer = VectorSum(60, 10, 1.0, total.levels, total.coins - 1)
    assert total.levels == 8
    assert total.epsilon(1e-4) <= 2.0 < fewer.epsilon(1e-4)


def test_rounds_records_and_adjacency_enter_the_noise() -> None:
    once = vector_sum(epsilon=2.0, delta=1e-4, clients=60, dim=10, clip_norm=1.0)
    thrice = vector_sum(epsilon=2.0, delta=1e-4, clients=60, dim=10, clip_norm=1.0, rounds=3)
    assert thrice.coins > 2 * once.coins
    assert thrice.noise(rounds=3).epsilon(1e-4) <= 2.0
    zeroed = vector_sum(
        epsilon=2.0, delta=1e-4, clients=60, dim=10, clip_norm=1.0, adjacency=Adjacency.ADD_REMOVE
    )
    assert zeroed.coins < once.coins / 2
    averaged = vector_sum(epsilon=2.0, delta=1e-4, clients=60, dim=10, clip_norm=1.0, records=20)
    assert averaged.variance_bound < once.variance_bound / 100


def test_who_keeps_coins_to_themselves_matters() -> None:
    total = VectorSum(100, 5, clip_norm=1.0, levels=10, coins=200)
    by_honest = [total.epsilon(1e-5, honest=honest) for honest in (1, 10, 50, 100)]
    assert by_honest == sorted(by_honest, reverse=True)
    assert total.exposed_epsilon(1e-5) == by_honest[0] > 4 * total.epsilon(1e-5)
    assert total.epsilon(1e-5) == by_honest[-1]


def test_bits_are_counted_with_their_labels() -> None:
    total = VectorSum(10, 50, clip_norm=1.0, levels=4, coins=6)
    assert (total.messages, total.uplink_bits) == (500, 500 * 7)
    scalar = VectorSum(10, 1, clip_norm=1.0, levels=4, coins=6)
    assert (scalar.messages, scalar.uplink_bits) == (10, 10)


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (torch.zeros(2, 4), DataError),
        (torch.zeros(3), DataError),
        (torch.zeros(2, 3, dtype=torch.int64), DataError),
        (torch.tensor([[0.0, math.nan, 0.0], [0.0, 0.0, 0.0]]), DataError),
        (torch.tensor([[0.0, 0.0, 0.0], [0.0, math.inf, 0.0]]), DataError),
        (torch.zeros(1, 3), RequestError),
    ],
)
def test_wrong_rows_are_refused(rows: torch.Tensor, error: type[Exception]) -> None:
    with pytest.raises(error):
        VectorSum(2, 3, clip_norm=1.0, levels=2, coins=4).randomise(rows, sources(2))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: VectorSum(0, 3, 1.0, 2, 4),
        lambda: VectorSum(2, 3, math.inf, 2, 4),
        lambda: VectorSum(2, 3, 1.0, 0, 4),
        lambda: VectorSum(2, 3, 1.0, 2, 0),
        lambda: VectorSum(2, 3, 1.0, 2, 4).epsilon(1e-5, honest=3),
        lambda: VectorSum(2, 3, 1.0, 2, 4).analyse(torch.zeros(2)),
        lambda: vector_sum(epsilon=0.0, delta=1e-5, clients=2, dim=3, clip_norm=1.0),
        lambda: vector_sum(epsilon=1.0, delta=1.0, clients=2, dim=3, clip_norm=1.0),
        lambda: vector_sum(epsilon=1e-9, delta=1e-5, clients=2, dim=1, clip_norm=1.0),
    ],
)
def test_wrong_requests_are_refused(wrong: object) -> None:
    with pytest.raises(RequestError):
        wrong()  # type: ignore[operator]
