"""Splits and preparation of features."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from tacit.data.prepare import project, split, standardise, unit_norm
from tacit.errors import RequestError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=60),
    fraction=st.floats(0, 0.5),
    seed=st.integers(0, 1000),
)
def test_a_split_is_a_cover_with_every_class_in_proportion(labels: list[int], fraction: float, seed: int) -> None:
    targets = np.array(labels)
    train, test = split(targets, fraction, rng(seed))
    assert sorted([*train, *test]) == list(range(len(targets)))
    share = len(test) / len(targets)
    for label in set(labels):
        assert abs((targets[test] == label).sum() - share * (targets == label).sum()) < 1 + 1e-9


def test_the_papers_sizes() -> None:
    train, test = split(np.zeros(1338), 0.2, rng())
    assert (len(train), len(test)) == (1070, 268)


def test_regression_splits_are_random_and_seeded() -> None:
    targets = np.arange(50.0)
    one, again, other = (split(targets, 0.2, rng(seed))[1].tolist() for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_bad_fractions(fraction: float) -> None:
    with pytest.raises(RequestError, match="test_fraction must be"):
        split(np.zeros(5), fraction, rng())


def test_nothing_left_to_train_on() -> None:
    with pytest.raises(RequestError, match="leaves none of 2 records"):
        split(np.zeros(2), 0.9, rng())


def test_standardise_uses_the_training_records_only() -> None:
    train, test = np.array([[1.0, 7.0, 5.0], [3.0, 9.0, 5.0]]), np.array([[5.0, 1.0, 6.0]])
    standard, other = standardise(train, test, (0, 2))
    assert standard.tolist() == [[-1, 7, 0], [1, 9, 0]]
    assert other.tolist() == [[3, 1, 1]]
    assert train[0, 0] == 1


def test_project_is_pca() -> None:
    train = rng().standard_normal((200, 6)) @ rng(1).standard_normal((6, 6)) + 3
    test = rng(2).standard_normal((20, 6))
    ours, other = project(train, test, 3)
    reference = PCA(3, svd_solver="full").fit(train)
    signs = np.sign((ours * reference.transform(train)).sum(axis=0))
    np.testing.assert_allclose(ours * signs, reference.transform(train), atol=1e-9)
    np.testing.assert_allclose(other * signs, reference.transform(test), atol=1e-9)


@pytest.mark.parametrize("dim", [0, 7])
def test_project_needs_a_possible_dimension(dim: int) -> None:
    with pytest.raises(RequestError, match="pca must be 1 to 6"):
        project(np.zeros((9, 6)), np.zeros((1, 6)), dim)


@given(st.integers(0, 2**32), st.floats(1e-3, 1e6))
def test_unit_norm_bounds_every_record_and_keeps_its_direction(seed: int, scale: float) -> None:
    features = (rng(seed).standard_normal((5, 4)) * scale).astype(np.float32)
    scaled = unit_norm(features)
    norms = np.linalg.norm(features, axis=1)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), np.minimum(norms, 1), rtol=1e-5)
    np.testing.assert_allclose(scaled * np.maximum(norms, 1)[:, None], features, rtol=1e-5)
