"""Definition 1 of SoteriaFL: E C(x) = x and E ||C(x) - x||^2 <= omega ||x||^2, by 10,000 draws each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.compress import Chain, Compressor, Identity, Natural, Qsgd, RandK, parse_compressor
from tacit.compress.wire import OVERHEAD_BYTES
from tacit.errors import DivergedError, RequestError

Generators = Callable[..., list[np.random.Generator]]

DRAWS = 10_000
SIGMAS = 5.0
"""Two sided, about 6e-7 for each of some 150 comparisons."""

VECTORS = {
    "mixed": [0.3, -1.7, 0.0, 2.5, -0.06, 0.9, 1.0, -4.1],
    "single": [-0.7],
    "huge": [1e37, -2.3e37, 4e36, 0.0],
    "small": [1e-30, -2.3e-30, 4e-31, 0.0],
}
SPARSE = ["rand-k:1", "rand-k:3", "rand-k:0.9", "rand-k:3+qsgd:2", "rand-k:3+natural"]
DENSE = ["qsgd:1", "qsgd:4", "natural"]
CASES = [
    *itertools.product(SPARSE + DENSE, ["mixed"]),
    *itertools.product(DENSE, ["single", "huge", "small"]),
]


def draws(compressor: Compressor, vector: torch.Tensor, generators: Generators) -> torch.Tensor:
    # One generator drawn from again and again: independent rows, and quick to make.
    return compressor.compress(vector.expand(DRAWS, -1).contiguous(), generators(1, seed=5) * DRAWS).dense()


@pytest.mark.parametrize(("name", "vector"), CASES)
def test_unbiased_with_variance_omega(name: str, vector: str, generators: Generators) -> None:
    compressor, x = parse_compressor(name), torch.tensor(VECTORS[vector])
    scale = x.double().norm()
    errors = (draws(compressor, x, generators).double() - x.double()) / scale
    rounding = 1e-7
    allowed = SIGMAS * errors.std(0) / math.sqrt(DRAWS) + rounding
    assert (errors.mean(0).abs() <= allowed).all()

    squares = errors.square().sum(1)
    margin = float(SIGMAS * squares.std() / math.sqrt(DRAWS)) + rounding
    omega = compressor.omega(len(x))
    assert squares.mean() <= omega + margin
    if isinstance(compressor, RandK):
        assert squares.mean() >= omega - margin, "for rand-k the bound is an equality"


@pytest.mark.parametrize("name", ["identity", "rand-k:8", "rand-k:1.0", "rand-k:500"])
def test_keeping_everything_loses_nothing(name: str, generators: Generators) -> None:
    compressor = parse_compressor(name)
    rows = torch.tensor([VECTORS["mixed"]] * 3)
    assert compressor.omega(8) == 0
    assert torch.equal(compressor.compress(rows, generators(3)).dense(), rows)


def test_zero_stays_zero(spec: str, generators: Generators) -> None:
    compressor = parse_compressor(spec)
    packets = compressor.compress(torch.zeros(2, 30), generators(2))
    assert not packets.dense().any()
    assert not compressor.decode(packets.encode(), 30).dense().any()


def test_omega_as_in_the_papers() -> None:
    assert RandK(count=5).omega(100) == 19
    assert RandK(fraction=0.05).omega(100) == 19
    assert Qsgd(4).omega(4) == 0.25
    assert Qsgd(4).omega(10_000) == 25
    assert Natural().omega(7) == 0.125
    assert Identity().omega(7) == 0
    assert Chain(RandK(count=4), Qsgd(4)).omega(16) == 4 * 1.25 - 1


@given(dim=st.integers(1, 10**7))
def test_five_per_cent_is_soterias_k(dim: int) -> None:
    compressor = RandK(fraction=0.05)
    assert compressor.kept(dim) == max(1, dim // 20)
    assert compressor.message_bytes(dim) <= max(4, 0.05 * 4 * dim) + 64
    assert compressor.message_bytes(dim) - 4 * compressor.kept(dim) <= 48


@given(percent=st.integers(1, 100), hundreds=st.integers(1, 10**5))
def test_a_decimal_fraction_means_its_decimal(percent: int, hundreds: int) -> None:
    assert RandK(fraction=percent / 100).kept(100 * hundreds) == percent * hundreds


def test_message_sizes() -> None:
    dim, kept = 1000, 50
    assert Identity().message_bytes(dim) == OVERHEAD_BYTES + 4 * dim
    assert RandK(count=kept).message_bytes(dim) == OVERHEAD_BYTES + 8 + 4 * kept
    assert Qsgd(16).message_bytes(dim) == OVERHEAD_BYTES + 4 + 6 * dim // 8
    assert Natural().message_bytes(dim) == OVERHEAD_BYTES + 9 * dim // 8
    assert Chain(RandK(count=kept), Natural()).message_bytes(dim) == OVERHEAD_BYTES + 8 + 57


@pytest.mark.parametrize(
    ("levels", "width"), [(1, 2), (3, 3), (4, 4), (7, 4), (8, 5), (16, 6), (127, 8), (128, 9), (32767, 16)]
)
def test_qsgd_uses_no_more_bits_than_its_codes_need(levels: int, width: int) -> None:
    assert Qsgd(levels).message_bytes(8000) == OVERHEAD_BYTES + 4 + 1000 * width


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nothing_is_encoded_that_is_not_finite(spec: str, bad: float, generators: Generators) -> None:
    rows = torch.zeros(3, 40)
    rows[1, 27] = bad
    with pytest.raises(DivergedError, match=r"row 1 .* coordinate 27"):
        parse_compressor(spec).compress(rows, generators(3))


def test_large_finite_rows_are_not_mistaken_for_infinite_ones(generators: Generators) -> None:
    rows = torch.full((2, 4), 3e38)
    assert torch.equal(Identity().compress(rows, generators(2)).dense(), rows)


@pytest.mark.parametrize(
    ("name", "row", "says"),
    [
        ("rand-k:1", [3e38, 3e38], "times d/k = 2"),
        ("qsgd:4", [3e38, 3e38], "norm below"),
        ("natural", [2.1e38, 0.0], "natural"),
        ("rand-k:1+natural", [1e38, 1e38], "natural"),
    ],
)
def test_values_without_a_code_are_refused(
    name: str, row: list[float], says: str, generators: Generators
) -> None:
    with pytest.raises((RequestError, DivergedError), match=says):
        parse_compressor(name).compress(torch.tensor([row]), generators(1))


@pytest.mark.parametrize(
    ("rows", "count", "says"),
    [
        (torch.zeros(4), 1, "shape"),
        (torch.zeros(2, 0), 2, "shape"),
        (torch.zeros(2, 3, dtype=torch.float64), 2, "float32"),
        (torch.zeros(2, 3), 3, "generators"),
        (torch.zeros(2, 3, requires_grad=True), 2, "detach"),
    ],
)
def test_rows_of_the_wrong_kind(
    spec: str, rows: torch.Tensor, count: int, says: str, generators: Generators
) -> None:
    with pytest.raises(RequestError, match=says):
        parse_compressor(spec).compress(rows, generators(count))
