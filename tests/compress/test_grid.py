"""Whole steps of a power of two: nothing is lost, and what cannot be written so is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.compress.grid import WholeSteps
from tacit.errors import MessageError, RequestError

Generators = Callable[..., list[np.random.Generator]]

bits_and_codes = st.integers(2, 16).flatmap(
    lambda bits: st.tuples(
        st.just(bits),
        st.integers(-149, 100),
        st.lists(st.integers(-(2 ** (bits - 1)) + 1, 2 ** (bits - 1) - 1), min_size=1, max_size=40),
    )
)


@given(bits_and_codes)
def test_nothing_is_lost(case: tuple[int, int, list[int]]) -> None:
    bits, exponent, codes = case
    row = np.ldexp(np.array(codes, dtype=np.float64), exponent).astype(np.float32)
    rows = torch.from_numpy(np.stack([row, -row, np.zeros_like(row)]))
    compressor, generators = WholeSteps(bits), [np.random.default_rng(0)] * 3
    packets = compressor.compress(rows, generators)
    assert torch.equal(packets.dense(), rows)
    messages = packets.encode()
    assert {8 * len(message) for message in messages} == {packets.bits}
    assert compressor.message_bytes(len(codes)) == 6 + 2 + (bits * len(codes) + 7) // 8
    assert torch.equal(compressor.decode(messages, len(codes)).dense(), rows)


def test_numbers_off_the_grid_are_refused(generators: Generators) -> None:
    for row in ([0.5, 0.3], [1.0, 128.0 + 1 / 64], [3e38, 1e-30]):
        with pytest.raises(RequestError, match="whole multiples"):
            WholeSteps(8).compress(torch.tensor([row]), generators(1))
    for bits in (1, 17):
        with pytest.raises(RequestError, match="bits"):
            WholeSteps(bits)


def test_what_no_sender_writes_is_refused(generators: Generators) -> None:
    compressor = WholeSteps(5)
    format = compressor.format(3)
    (message,) = compressor.compress(torch.tensor([[3.0, -15.0, 0.0]]), generators(1)).encode()
    body = np.frombuffer(message[6:], dtype=np.uint8)
    wrong = {
        "exponent": [(1, 120)],
        "code": [(2, body[2] & 0xE0)],
        "padding": [(3, body[3] | 0x80)],
    }
    for what, changes in wrong.items():
        changed = body.copy()
        for position, value in changes:
            changed[position] = value
        with pytest.raises(MessageError, match=what):
            compressor.decode(format.seal(changed[None]), 3)
    with pytest.raises(MessageError, match="checksum"):
        WholeSteps(8).decode(WholeSteps(4).compress(torch.ones(1, 16), generators(1)).encode(), 8)
