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
from tacit.shuffle import VectorSum


def sources(clients: int, round: int = 0) -> list[np.random.Generator]:
    return [Randomness(11).generator(Purpose.NOISE, client=i, round=round) for i in range(clients)]


def ball(clients: int, dim: int, radius: float) -> torch.Tensor:
    rows = Randomness(3).generator(Purpose.DATA).standard_normal((clients, dim))
    return torch.from_numpy(radius * rows / np.linalg.norm(rows, axis=1, keepdims=True))


@pytest.mark.parametrize("coins", [5, 64, 69])
def test_unbiased_and_of_the_stated_variance(coins: int) -> None:
    clients, dim, repeats = 12, 40, 200
    total = VectorSum(dim, clip_norm=2.0, levels=4, coins=coins)
    rows = ball(clients, dim, 1.9)
    results = torch.stack(
        [total.centred(total.randomise(rows, sources(clients, t))).sum(0) for t in range(repeats)]
    )
    # (2L/g)^2 (N b/4 + sum_i f_i (1 - f_i)), f_i the fractional part of g (x_i + L)/(2L)
    parts = (rows.double() / 2 + 1) * 2 % 1
    variances = clients * coins / 4 + (parts * (1 - parts)).sum(0)
    standardised = (results - rows.sum(0)) / variances.sqrt()
    assert float(standardised.mean().abs()) < 4 / math.sqrt(repeats * dim)
    assert float((standardised**2).mean()) == pytest.approx(1.0, rel=0.1)
    assert float((standardised.mean(0) ** 2).mean()) * repeats == pytest.approx(1.0, rel=0.9)


def test_no_noise_at_all_would_give_the_sum_back() -> None:
    # Ones as expected, client by client: shift, scale and both centrings must cancel.
    total = VectorSum(dim=2, clip_norm=2.0, levels=10, coins=7)
    rows = torch.tensor([[1.0, -1.0], [0.5, 0.25], [-1.5, 0.0]], dtype=torch.float64)
    expected = (rows + 2.0) / 4.0 * 10 + 7 / 2
    assert total.centred(expected).flatten().tolist() == pytest.approx(rows.flatten().tolist())


@sizes(max_examples=60)
@given(
    arrays.arrays(np.float64, (3, 4), elements=st.floats(allow_nan=False, allow_infinity=False)),
    st.integers(1, 9),
    st.integers(1, 70),
)
def test_whatever_goes_in_the_ones_fit_their_bits(rows: np.ndarray, levels: int, coins: int) -> None:
    total = VectorSum(4, clip_norm=1.0, levels=levels, coins=coins)
    ones = total.randomise(torch.from_numpy(rows), sources(3))
    assert int(ones.min()) >= 0
    assert int(ones.max()) <= levels + coins


def test_long_vectors_are_scaled_to_the_norm() -> None:
    total = VectorSum(2, clip_norm=1.0, levels=1000, coins=1)
    for scale in (1.0, 1e3, 1e30):
        ones = total.randomise(scale * torch.tensor([[6.0, -8.0]]), sources(1))
        assert (ones[0] - torch.tensor([800, 100])).abs().max() <= 2


def test_a_client_draws_alone_what_it_draws_in_a_cohort() -> None:
    total = VectorSum(6, clip_norm=1.0, levels=3, coins=40)
    rows = ball(4, 6, 0.5).float()
    together = total.randomise(rows, sources(4))
    assert torch.equal(total.randomise(rows[2:3], sources(4)[2:3]), together[2:3])
    assert not torch.equal(total.randomise(rows, sources(4, round=1)), together)


@pytest.mark.parametrize("coins", [3, 64, 70])
@pytest.mark.parametrize("source", [Randomness(2).generator(Purpose.NOISE), Keystream(bytes(32))])
def test_the_noise_is_binomial(coins: int, source: np.random.Generator | Keystream) -> None:
    dim = 40_000
    total = VectorSum(dim, clip_norm=1.0, levels=2, coins=coins)
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
        VectorSum(3, clip_norm=1.0, levels=2, coins=4).randomise(rows, sources(2))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: VectorSum(0, 1.0, 2, 4),
        lambda: VectorSum(3, math.inf, 2, 4),
        lambda: VectorSum(3, 1.0, 0, 4),
        lambda: VectorSum(3, 1.0, 2, 0),
    ],
)
def test_wrong_requests_are_refused(wrong: object) -> None:
    with pytest.raises(RequestError):
        wrong()  # type: ignore[operator]
