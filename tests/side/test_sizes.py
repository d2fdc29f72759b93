"""How large features are, as a private release."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tacit.federation import Federation
from tacit.privacy import Adjacency, Target
from tacit.side.sizes import EXPECTED, private_sizes, sizes_release

TARGET = Target(0.5, 1e-5)


def _held(features: torch.Tensor, clients: int = 3) -> Federation:
    return Federation.from_arrays(features, features[:, 0], np.arange(len(features)) % clients)


def _normal(records: int, *sizes: float) -> torch.Tensor:
    drawn = torch.randn(records, len(sizes), generator=torch.Generator().manual_seed(1))
    return drawn * torch.tensor(sizes)


@given(
    arrays(np.float64, (3, 2), elements=st.floats(allow_nan=False, allow_infinity=False, width=32)),
    st.sampled_from([60, 30_000]),
)
def test_no_record_contributes_more_than_the_bound(rows: np.ndarray, records: int) -> None:
    """Whether columns are measured or, with few records, lengths."""
    release = sizes_release(_held(_normal(records, 1.0, 1.0)), target=Target(4.0, 1e-5), seed=0)
    assert release is not None
    assert (release.columns == 2) == (records == 30_000)
    norms = torch.linalg.vector_norm(release.contributions(torch.from_numpy(rows)), dim=1)
    assert float(norms.max()) <= release.means.bound * (1 + 1e-12)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_event_keeps_the_target(adjacency: Adjacency) -> None:
    release = private_sizes(_held(_normal(3000, 1.0, 1.0)), target=Target(0.5, 1e-5, adjacency), seed=0)
    assert release is not None
    assert 0.45 < release.guarantee.epsilon <= 0.5


def test_every_column_is_measured_where_noise_allows_it() -> None:
    found = private_sizes(_held(_normal(30_000, 0.001, 1.0, 5000.0)), target=TARGET, seed=0)
    assert found is not None
    small, usual, large = found.value
    assert 0.0002 < small < 0.003
    assert usual == EXPECTED
    assert 1000 < large < 16_000
    assert all(math.frexp(size)[0] == 0.5 for size in found.value)  # powers of two: dividing is exact


def test_zeros_do_not_make_a_column_small() -> None:
    sparse = torch.zeros(30_000, 2)
    sparse[::4] = torch.tensor([1.0, 0.01])
    found = private_sizes(_held(sparse), target=TARGET, seed=0)
    assert found is not None
    assert found.value[0] == EXPECTED
    assert found.value[1] < 0.04


def test_with_few_records_only_their_length_is_measured_and_with_fewer_nothing() -> None:
    some = private_sizes(_held(_normal(1000, *[0.01] * 30)), target=TARGET, seed=0)
    assert some is not None
    assert len(some.value) == 1
    assert 0.002 < some.value[0] < 0.04
    assert private_sizes(_held(_normal(60, *[0.01] * 30)), target=TARGET, seed=0) is None


def test_columns_that_are_mostly_zero_are_measured_together() -> None:
    """One dense column of the usual size, and many that are small where they are not zero."""
    rows = torch.zeros(12_000, 21)
    rows[:, 0] = 1.0
    for column in range(1, 21):
        rows[column::10, column] = 0.004
    found = private_sizes(_held(rows), target=TARGET, seed=0)
    assert found is not None
    assert len(found.value) == 21
    assert found.value[0] == 1.0
    assert set(found.value[1:]) <= {2.0**-9, 2.0**-8, 2.0**-7}


def test_columns_that_stay_uncertain_are_never_taken_for_large() -> None:
    rows = torch.zeros(6000, 21)
    rows[:, 0] = 3000.0
    rows[::300, 1:] = 1.0
    found = private_sizes(_held(rows), target=TARGET, seed=0)
    assert found is not None
    assert found.value[0] > 1000
    assert max(found.value[1:]) <= EXPECTED


def test_noise_does_not_make_alike_columns_differ() -> None:
    """Thirty columns twice as large as expected, each measured through noise of almost a factor of e."""
    for seed in range(20):
        found = private_sizes(_held(_normal(4800, *[1.8] * 30), 10), target=Target(1.5, 1e-5), seed=seed)
        assert found is not None
        assert len(found.value) == 30
        assert len(set(found.value)) == 1


def test_one_column_among_many_is_told_apart() -> None:
    found = private_sizes(_held(_normal(20_000, *[0.02] * 19, 3000.0)), target=Target(1.5, 1e-5), seed=0)
    assert found is not None
    assert set(found.value[:-1]) <= {2.0**-8, 2.0**-7, 2.0**-6}
    assert len(set(found.value[:-1])) == 1
    assert found.value[-1] > 500
