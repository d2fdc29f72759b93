"""Top-k: the largest coordinates as they are, their positions in few bytes, and no place among unbiased ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.compress import Compressor, ControlVariates, Direct, RandK, Shifted, TopK, parse_compressor
from tacit.compress.positions import encode_positions, positions_bytes, read_positions
from tacit.errors import MessageError, RequestError

Generators = Callable[..., list[np.random.Generator]]


def _rows(clients: int, dim: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((clients, dim), dtype=np.float32))


def test_the_largest_coordinates_are_kept_as_they_are(generators: Generators) -> None:
    rows = torch.tensor([[0.5, -3.0, 0.0, 2.0, -1.0], [4.0, 0.1, -0.2, 0.3, -5.0]])
    found = TopK(count=2).compress(rows, generators(2)).dense()
    assert found.tolist() == [[0.0, -3.0, 0.0, 2.0, 0.0], [4.0, 0.0, 0.0, 0.0, -5.0]]


@pytest.mark.parametrize("fraction", [0.05, 0.3, 1.0])
def test_it_contracts_and_loses_less_than_rand_k(fraction: float, generators: Generators) -> None:
    rows, dim = _rows(20, 60), 60
    kept = TopK(fraction=fraction).kept(dim)
    lost = (TopK(fraction=fraction).compress(rows, generators(20)).dense() - rows).square().sum(1)
    assert bool((lost <= (1 - kept / dim) * rows.square().sum(1) * (1 + 1e-6)).all())
    # The best that rand-k could do with its coordinates: their values as they are.
    at = RandK(fraction=fraction).compress(rows, generators(20)).dense() != 0
    assert bool((lost <= torch.where(at, 0.0, rows).square().sum(1) * (1 + 1e-6)).all())


@pytest.mark.parametrize("make", [Direct, Shifted, ControlVariates])
def test_theories_of_unbiased_compressors_refuse_it_with_the_reason(make: Callable[[Compressor], object]) -> None:
    with pytest.raises(RequestError, match=r"top-k:0\.1 is biased.*ef21-sgdm"):
        make(TopK(fraction=0.1))
    with pytest.raises(RequestError, match="biased"):
        TopK(fraction=0.1).omega(10)


@pytest.mark.parametrize("text", ["top-k:0.05", "top-k:7"])
def test_it_is_spelled_like_rand_k(text: str) -> None:
    assert parse_compressor(text).spec() == text
    with pytest.raises(RequestError, match="must be rand-k"):
        parse_compressor(f"{text}+qsgd:4")
    with pytest.raises(RequestError, match="top-k needs exactly one"):
        TopK()


@given(st.integers(1, 400), st.data())
def test_positions_survive_and_their_length_is_fixed(dim: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, dim))
    rows = np.array([sorted(data.draw(st.permutations(range(dim)))[:k]) for _ in range(2)], dtype=np.int64)
    packed = encode_positions(rows, dim)
    assert packed.shape == (2, positions_bytes(dim, k))
    assert np.array_equal(read_positions(packed, dim, k), rows)


@given(st.integers(1, 60), st.data())
def test_hostile_positions_are_refused_or_are_positions(dim: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, dim))
    size = positions_bytes(dim, k)
    packed = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), dtype=np.uint8)[None]
    try:
        found = read_positions(packed, dim, k)
    except MessageError:
        return
    assert found.shape == (1, k)
    assert 0 <= found.min() <= found.max() < dim
    assert len(set(found[0].tolist())) == k
    assert np.array_equal(encode_positions(found, dim), packed), "no two spellings of the same positions"


@pytest.mark.parametrize(("dim", "k"), [(50_890, 2544), (10**6, 100), (10**7, 1), (1000, 100)])
def test_positions_take_little_more_than_the_least_that_any_code_needs(dim: int, k: int) -> None:
    least = (math.lgamma(dim + 1) - math.lgamma(k + 1) - math.lgamma(dim - k + 1)) / math.log(2)
    # Beyond 2^17 coordinates for each that is kept, low parts stop at 16 bits.
    assert least <= 8 * positions_bytes(dim, k) <= least + 0.8 * k + dim / 2**16 + 24
    assert 8 * positions_bytes(dim, k) < k * math.ceil(math.log2(dim)) + dim / 2**16 + 24
