"""Integers modulo 2^k: sums, sizes, rare wrapping, exact rounding in two steps, hostile bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import DataError, MessageError, RequestError
from tacit.noise.entropy import Keystream
from tacit.noise.lattice import nearest_steps, rounded_gaussian
from tacit.sums.arithmetic import MOST_BITS, STEP_EXPONENT, WRAPPING, Ring


@given(
    silos=st.integers(2, 200),
    bound=st.floats(1e-6, 1e3),
    ratio=st.floats(1e-2, 1e3),
    dim=st.integers(1, 40),
    data=st.data(),
)
def test_a_sum_of_rounded_values_is_decoded_exactly(
    silos: int, bound: float, ratio: float, dim: int, data: st.DataObject
) -> None:
    try:
        ring = Ring.for_sum(silos=silos, bound=bound, noise_std=bound * ratio, dim=dim, rounds=10)
    except RequestError:
        return
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    extreme = data.draw(st.sampled_from([-bound, bound, None]))
    values = rng.uniform(-bound, bound, (silos, dim)) if extreme is None else np.full((silos, dim), extreme)
    steps = np.floor(values / ring.step + 0.5).astype(np.int64)
    total = sum((ring.encode(row).astype(np.uint64) for row in values), np.zeros(dim, np.uint64))
    assert np.array_equal(ring.lifted(total.astype(np.uint32)), steps.sum(0))


def test_as_few_bits_as_the_bound_on_wrapping_allows() -> None:
    """A normal sum wraps with at most the promised probability; with one bit less it would not."""
    silos, bound, std, dim, rounds = 100, 0.1, 0.2, 21_840, 150
    ring = Ring.for_sum(silos=silos, bound=bound, noise_std=std, dim=dim, rounds=rounds)
    for bits, holds in ((ring.bits, True), (ring.bits - 1, False)):
        room = 2.0 ** (bits - 1) * ring.step - silos * (bound + ring.step)
        chance = dim * rounds * math.erfc(room / (math.sqrt(2 * silos) * std)) if room > 0 else 1.0
        assert (chance <= WRAPPING) == holds
    assert ring.step * 5 <= std
    assert ring.bits <= 20


def test_two_roundings_are_one_that_depends_on_the_fraction_alone() -> None:
    """Dropping bits commutes with whole coarse steps, at ties too: the theorem about sums needs nothing else."""
    ring, exponent = Ring(1.0, 12), STEP_EXPONENT + 9
    fine = np.arange(-3 << 9, 3 << 9)
    for shift in (-7, 1, 1000):
        moved = ring.coarsened(fine + (shift << 9), exponent)
        assert np.array_equal(moved, ring.coarsened(fine, exponent) + shift)
    assert np.abs(ring.coarsened(fine, exponent) * 512 - fine).max() == 256


def test_coarse_steps_hardly_add_noise() -> None:
    std, exponent, draws = 3.0, 21, 400_000
    ring = Ring.for_sum(silos=10, bound=1.0, noise_std=std, dim=draws, rounds=1)
    fine = nearest_steps(np.full(draws, 0.7), std, exponent) + rounded_gaussian(
        draws, exponent, Keystream(bytes(32))
    )
    values = ring.step * ring.lifted(ring.residues(ring.coarsened(fine, exponent)))
    assert abs(values.mean() - 0.7) < 4 * std / math.sqrt(draws)
    assert abs(values.var() / std**2 - 1) < 4 * math.sqrt(2 / draws)
    assert np.abs(values - fine * std * 2.0**-exponent).max() <= ring.step / 2 * (1 + 1e-12)


@given(bits=st.integers(2, MOST_BITS), dim=st.integers(1, 33), data=st.data())
def test_messages_have_their_exact_length_and_come_back(bits: int, dim: int, data: st.DataObject) -> None:
    ring = Ring(0.5, bits)
    residues = np.array(data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=dim, max_size=dim)), np.uint32)
    message = ring.to_bytes(residues)
    assert len(message) == ring.message_bytes(dim) == -(-dim * bits // 8)
    assert np.array_equal(ring.from_bytes(message, dim), residues)


@given(st.binary(max_size=40))
def test_hostile_bytes_are_read_or_refused(message: bytes) -> None:
    ring = Ring(1.0, 13)
    try:
        residues = ring.from_bytes(message, 11)
    except MessageError:
        return
    assert ring.to_bytes(residues) == message


def test_impossible_requests_say_why() -> None:
    with pytest.raises(RequestError, match="not both 0"):
        Ring.for_sum(silos=3, bound=0.0, noise_std=0.0, dim=1, rounds=1)
    with pytest.raises(RequestError, match="bits per coordinate"):
        Ring.for_sum(silos=100, bound=1.0, noise_std=1e-6, dim=1, rounds=1)
    with pytest.raises(RequestError, match="exponent"):
        Ring(1.0, 8).coarsened(np.zeros(1, np.int64), STEP_EXPONENT - 1)
    with pytest.raises(DataError, match="finite"):
        Ring(1.0, 8).encode(np.array([math.nan]))
    assert Ring.for_sum(silos=3, bound=1.0, noise_std=0.0, dim=5, rounds=1).bits == 17
