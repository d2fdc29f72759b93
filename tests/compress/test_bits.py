"""Packing codes into bytes loses nothing, leaves no gaps and pads with zeros."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.compress import bits


@given(width=st.integers(1, bits.MAX_WIDTH), rows=st.integers(0, 3), length=st.integers(1, 40), data=st.data())
def test_unpack_inverts_pack(width: int, rows: int, length: int, data: st.DataObject) -> None:
    flat = data.draw(st.lists(st.integers(0, 2**width - 1), min_size=rows * length, max_size=rows * length))
    codes = np.array(flat, dtype=np.uint32).reshape(rows, length)
    packed = bits.pack(codes, width)
    assert packed.shape == (rows, bits.packed_bytes(length, width))
    assert bits.padding_is_zero(packed, length, width)
    np.testing.assert_array_equal(bits.unpack(packed, length, width), codes)


@given(width=st.integers(1, bits.MAX_WIDTH), data=st.data())
def test_packed_bits_are_the_codes_in_little_endian_order(width: int, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, 2**width - 1), min_size=1, max_size=20))
    number = sum(code << (width * position) for position, code in enumerate(codes))
    expected = number.to_bytes(bits.packed_bytes(len(codes), width), "little")
    assert bits.pack(np.array([codes], dtype=np.uint32), width).tobytes() == expected


@pytest.mark.parametrize(("length", "width"), [(1, 1), (3, 9), (7, 5)])
def test_padding_is_seen(length: int, width: int) -> None:
    packed = np.zeros((2, bits.packed_bytes(length, width)), dtype=np.uint8)
    assert bits.padding_is_zero(packed, length, width)
    packed[1, -1] = 128
    assert not bits.padding_is_zero(packed, length, width)
