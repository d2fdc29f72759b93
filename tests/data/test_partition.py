"""Partitioners: disjoint covers, deterministic, and what each promises about sizes and labels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.data import PARTITIONERS, Partition, parse_partition
from tacit.data.partitioners import dirichlet
from tacit.errors import DataError, RequestError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


LABELS = np.repeat(np.arange(10), 60)
SPELLINGS = [
    "iid",
    "dirichlet:0.5",
    "shards:5",
    "pathological:3",
    "sorted",
    "sorted-target",
    "digit-pairs",
    "natural-id:ward",
]


def test_every_partitioner_is_tested_here() -> None:
    assert {text.partition(":")[0] for text in SPELLINGS} == set(PARTITIONERS)


def covers(parts: list[np.ndarray], records: int) -> bool:
    return sorted(np.concatenate(parts).tolist()) == list(range(records)) and all(len(part) for part in parts)


@given(
    spelling=st.sampled_from(["iid", "dirichlet:1", "shards:2", "pathological:2", "sorted", "sorted-target"]),
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=80),
    clients=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_a_partition_is_a_disjoint_cover_or_a_clear_refusal(
    spelling: str, labels: list[int], clients: int, seed: int
) -> None:
    targets = np.array(labels)
    parts, refusal = None, ""
    try:
        parts = parse_partition(spelling).split(targets, clients, rng(seed))
    except RequestError as error:
        refusal = str(error)
    if parts is not None:
        assert len(parts) == clients
        assert covers(parts, len(targets))
        return
    assert f"partition {spelling.partition(':')[0]}" in refusal
    # Where everyone could have two records of every class, there is no excuse.
    plenty = min(np.bincount(targets)) >= 2 * clients and len(set(labels)) >= 2 and clients >= 3
    assert not plenty or spelling == "sorted-target"


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_seed_decides(spelling: str) -> None:
    partition = parse_partition(spelling)
    clients = 10 if partition.column else 25
    first, again, other = (partition.split(LABELS, clients, rng(seed)) for seed in (1, 1, 2))
    assert covers(first, len(LABELS))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    random = spelling not in ("sorted", "sorted-target", "natural-id:ward")
    assert random != all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_sizes_differ_by_at_most_one() -> None:
    sizes = [len(part) for part in parse_partition("iid").split(np.zeros(107), 10, rng())]
    assert sorted(sizes) == [10] * 3 + [11] * 7


@given(st.integers(1, 2000), st.integers(1, 50))
def test_sorted_target_follows_the_paper(records: int, clients: int) -> None:
    targets = rng(records).standard_normal(records)
    size = math.ceil(records / clients)
    if size * (clients - 1) >= records:
        with pytest.raises(RequestError, match=r"partition sorted-target.*use another number of clients"):
            parse_partition("sorted-target").split(targets, clients, rng())
        return
    parts = parse_partition("sorted-target").split(targets, clients, rng())
    assert [len(part) for part in parts[:-1]] == [size] * (clients - 1)
    assert np.array_equal(targets[np.concatenate(parts)], np.sort(targets))


def test_sorted_is_equal_and_in_order() -> None:
    targets = rng().standard_normal(103)
    parts = parse_partition("sorted").split(targets, 10, rng())
    assert {len(part) for part in parts} == {10, 11}
    assert np.array_equal(targets[np.concatenate(parts)], np.sort(targets))


def test_shards_are_pure_where_they_can_be() -> None:
    parts = parse_partition("shards:5").split(LABELS, 12, rng())
    assert all(len(part) == 50 and len(set(LABELS[part])) <= 5 for part in parts)


@given(st.integers(1, 10), st.integers(10, 30), st.integers(0, 2**32))
def test_pathological_gives_exactly_so_many_classes(classes: int, clients: int, seed: int) -> None:
    parts = parse_partition(f"pathological:{classes}").split(LABELS, clients, rng(seed))
    assert [len(set(LABELS[part])) for part in parts] == [classes] * clients


def test_dirichlet_is_more_skewed_for_a_smaller_alpha() -> None:
    def largest_share(alpha: float) -> float:
        parts = parse_partition(f"dirichlet:{alpha}").split(LABELS, 6, rng(3))
        return float(np.mean([np.bincount(LABELS[part]).max() / len(part) for part in parts]))

    assert largest_share(0.1) > largest_share(1.0) > largest_share(1000.0)
    assert largest_share(1000.0) < 0.13


def test_dirichlet_proportions_have_the_right_spread() -> None:
    # A share of Dirichlet(a, ..., a) over n clients has variance (n - 1) / (n^2 (n a + 1)).
    labels, clients, alpha = np.repeat(np.arange(400), 500), 5, 2.0
    parts = dirichlet(labels, clients, rng(5), alpha=alpha)
    shares = np.stack([np.bincount(labels[part], minlength=400) for part in parts]) / 500
    expected = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert shares.mean() == pytest.approx(1 / clients)
    assert shares.var() == pytest.approx(expected, rel=0.1)


def test_digit_pairs_hold_one_odd_and_one_even_digit() -> None:
    parts = parse_partition("digit-pairs").split(LABELS, 25, rng())
    pairs = [tuple(sorted(set(LABELS[part]), key=lambda digit: digit % 2)) for part in parts]
    assert len(set(pairs)) == 25
    assert all(even % 2 == 0 and odd % 2 == 1 for even, odd in pairs)
    assert [len(part) for part in parts] == [24] * 25


@pytest.mark.parametrize(
    ("spelling", "targets", "clients", "message"),
    [
        ("iid", LABELS[:3], 4, "partition iid needs at least 4 records"),
        ("iid", LABELS, 0, "clients must be a whole number of at least 1"),
        ("shards:5", LABELS, 200, "partition shards:5 needs at least 1000 records"),
        ("dirichlet:0.001", LABELS, 300, "partition dirichlet:0.001 left one of 300 clients"),
        ("dirichlet:1", LABELS * 1.5, 3, "partition dirichlet divides by class"),
        ("pathological:2", LABELS * 1.5, 3, "partition pathological divides by class"),
        ("pathological:11", LABELS, 3, "classes per client must be 4 to 10"),
        ("pathological:2", LABELS, 3, "classes per client must be 4 to 10"),
        ("pathological:1", np.array([0, 1, 1, 1]), 4, "2 clients share a class of 1 records"),
        ("digit-pairs", LABELS, 10, "makes 25 clients, not 10"),
        ("digit-pairs", LABELS % 5, 25, "the digits 0 to 9"),
        ("digit-pairs", np.repeat(np.arange(10), 4), 25, "at least five records of every digit"),
        ("natural-id:ward", LABELS, 3, "makes 10 clients here, not 3"),
    ],
)
def test_a_client_left_empty_is_a_clear_error(
    spelling: str, targets: np.ndarray, clients: int, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        parse_partition(spelling).split(targets, clients, rng())


def test_natural_id_without_a_value() -> None:
    with pytest.raises(DataError, match="record 1 has no value"):
        parse_partition("natural-id:ward").split(np.array(["a", None], dtype=object), 1, rng())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spelling_round_trips(spelling: str) -> None:
    assert str(parse_partition(spelling)) == spelling
    assert parse_partition(str(parse_partition(spelling))) == parse_partition(spelling)


def test_the_column_is_for_natural_id_alone() -> None:
    assert parse_partition("natural-id:a:b") == Partition("natural-id", "a:b")
    assert parse_partition("natural-id:a:b").column == "a:b"
    assert parse_partition("shards:2").column is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlt:1", "unknown partition 'dirichlt'; did you mean 'dirichlet:ALPHA'"),
        ("dirichlet", "must be written dirichlet:ALPHA"),
        ("dirichlet:", "must be written dirichlet:ALPHA"),
        ("dirichlet:x", "must be written dirichlet:ALPHA, a number above 0"),
        ("dirichlet:nan", "must be written dirichlet:ALPHA, a number above 0"),
        ("dirichlet:-1", "must be written dirichlet:ALPHA, a number above 0"),
        ("shards:2.5", "must be written shards:S, a number above 0"),
        ("pathological:0", "must be written pathological:C"),
        ("iid:3", "must be written iid"),
        ("natural-id", "must be written natural-id:COLUMN"),
    ],
)
def test_bad_spellings(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse_partition(text)
