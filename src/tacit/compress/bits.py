"""Codes of a few bits each, packed without gaps into bytes.

The first code takes the lowest bits of the first byte, as in every little-endian format; the bits that are
left over in the last byte are zero. Eight codes of `width` bits fill exactly `width` bytes, so both
directions work on groups of eight codes and never on single bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

MAX_WIDTH = 16
"""The widest code, in bits: a shifted code must fit into the 32-bit words used for packing."""


def packed_bytes(codes: int, width: int) -> int:
    """The number of bytes that `codes` codes of `width` bits take.

    >>> packed_bytes(3, 9)
    4
    """
    return (codes * width + 7) // 8


def _pieces(width: int) -> Iterator[tuple[int, int, int]]:
    """For each of eight codes, the bytes it touches and its shift to the right there (negative: left)."""
    for code in range(8):
        first_bit = code * width
        for byte in range(first_bit // 8, (first_bit + width - 1) // 8 + 1):
            yield code, byte, 8 * byte - first_bit


def pack(codes: NDArray[np.uint32], width: int) -> NDArray[np.uint8]:
    """Rows of codes, each below `2**width`, as rows of bytes.

    >>> pack(np.array([[1, 2, 3]], dtype=np.uint32), width=4).tolist()
    [[33, 3]]
    """
    rows, length = codes.shape
    groups = (length + 7) // 8
    padded = np.zeros((rows, groups, 8), dtype=np.uint32)
    padded.reshape(rows, groups * 8)[:, :length] = codes
    packed = np.zeros((rows, groups, width), dtype=np.uint8)
    for code, byte, right in _pieces(width):
        piece = padded[..., code] >> right if right >= 0 else padded[..., code] << -right
        packed[..., byte] |= (piece & 0xFF).astype(np.uint8)
    return packed.reshape(rows, groups * width)[:, : packed_bytes(length, width)]


def unpack(packed: NDArray[np.uint8], length: int, width: int) -> NDArray[np.uint32]:
    """The rows of `length` codes that `pack` packed.

    >>> unpack(np.array([[33, 3]], dtype=np.uint8), length=3, width=4).tolist()
    [[1, 2, 3]]
    """
    rows = packed.shape[0]
    groups = (length + 7) // 8
    padded = np.zeros((rows, groups, width), dtype=np.uint8)
    padded.reshape(rows, groups * width)[:, : packed.shape[1]] = packed
    codes = np.zeros((rows, groups, 8), dtype=np.uint32)
    for code, byte, right in _pieces(width):
        piece = padded[..., byte].astype(np.uint32)
        codes[..., code] |= piece << right if right >= 0 else piece >> -right
    codes &= np.uint32(2**width - 1)
    return codes.reshape(rows, groups * 8)[:, :length]


def padding_is_zero(packed: NDArray[np.uint8], length: int, width: int) -> bool:
    """Whether the bits after the last code are zero, as `pack` leaves them in every row.

    >>> padding_is_zero(np.array([[33, 3], [33, 19]], dtype=np.uint8), length=3, width=4)
    False
    """
    used_bits = length * width % 8
    return used_bits == 0 or not bool((packed[:, -1] >> used_bits).any())
