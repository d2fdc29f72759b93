"""The positions of rand-k: fixed for ever by the seed, and uniform over all sets of k."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.compress import rand_k_indices
from tacit.errors import RequestError

IMPROBABLE = 1e-4


def one_by_one(seed: int, dim: int, k: int) -> list[int]:
    """The definition without batches: single draws until k different positions have come up."""
    wanted = min(k, dim - k) if 2 * k > dim else k
    source = np.random.Philox(key=seed, counter=0)
    drawn: set[int] = set()
    while len(drawn) < wanted:
        drawn.add(int((int(source.random_raw()) >> 11) * 2.0**-53 * dim))
    return sorted(drawn if 2 * k <= dim else set(range(dim)) - drawn)


@given(seed=st.integers(0, 2**64 - 1), dim=st.integers(1, 60), data=st.data())
def test_batches_give_what_single_draws_give(seed: int, dim: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, dim))
    indices = rand_k_indices(seed, dim, k)
    assert indices.dtype == np.int64
    assert indices.tolist() == one_by_one(seed, dim, k)
    assert len(indices) == k


def test_the_positions_of_a_seed_never_change() -> None:
    assert rand_k_indices(2**64 - 1, 20, 4).tolist() == [4, 7, 8, 14]
    large = rand_k_indices(20240229, 1_000_003, 50_000).astype("<i8")
    assert (
        hashlib.sha256(large.tobytes()).hexdigest()
        == "4bcc57d0d91133c82425eda8fa9c053481d9d884813579dd8ea1f0d13704f05c"
    )


@pytest.mark.parametrize("k", [2, 3], ids=["drawn", "complement drawn"])
def test_all_subsets_are_equally_likely(k: int) -> None:
    seeds = np.random.Philox(key=11 + k).random_raw(10_000)
    seen = Counter(tuple(rand_k_indices(int(seed), 5, k).tolist()) for seed in seeds)
    observed = [seen[subset] for subset in itertools.combinations(range(5), k)]
    assert sum(observed) == len(seeds)
    assert stats.chisquare(observed).pvalue > IMPROBABLE


@pytest.mark.parametrize("k", [5, 40])
def test_all_coordinates_are_equally_likely(k: int) -> None:
    dim, draws = 50, 5_000
    seeds = np.random.Philox(key=k).random_raw(draws)
    kept = np.zeros(dim)
    for seed in seeds:
        kept[rand_k_indices(int(seed), dim, k)] += 1
    rate = k / dim
    # Without replacement the counts add up to k draws: their covariance is a multiple of a projection.
    statistic = ((kept - draws * rate) ** 2).sum() / (draws * rate * (1 - rate)) * (dim - 1) / dim
    assert IMPROBABLE < stats.chi2.sf(statistic, dim - 1) < 1 - IMPROBABLE


@pytest.mark.parametrize(
    ("seed", "dim", "k", "setting"),
    [(-1, 5, 2, "seed"), (2**64, 5, 2, "seed"), (0, 0, 1, "dim"), (0, 5, 0, "k must"), (0, 5, 6, "k must")],
)
def test_refuses_what_no_message_can_mean(seed: int, dim: int, k: int, setting: str) -> None:
    with pytest.raises(RequestError, match=setting):
        rand_k_indices(seed, dim, k)
