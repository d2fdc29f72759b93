"""k ascending positions below d, in a fixed number of bytes (Elias 1974, Fano 1971).

The lowest l = floor(log2(d/k)) bits of each position are packed unchanged. The rest of position number i, a
number h_i that never decreases, is stored as one bit: bit h_i + i in a row of k + (d >> l) + 1 bits. In total
that is at most k (2 + log2(d/k)) bits plus a few. For k/d up to a tenth, that is about half a bit per position
more than the minimum for any fixed-length code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.compress import bits
from tacit.errors import MessageError


def _low_bits(dim: int, k: int) -> int:
    return min(bits.MAX_WIDTH, (dim // k).bit_length() - 1)


def _split(dim: int, k: int) -> tuple[int, int, int]:
    """The width of the low parts, their bytes, and the bits of the high part."""
    low = _low_bits(dim, k)
    return low, bits.packed_bytes(k, low), k + (dim >> low) + 1


def positions_bytes(dim: int, k: int) -> int:
    """The number of bytes that the positions take.

    >>> positions_bytes(50_890, 2544)
    1988
    """
    _, low_bytes, high_bits = _split(dim, k)
    return low_bytes + bits.packed_bytes(high_bits, 1)


def encode_positions(positions: NDArray[np.int64], dim: int) -> NDArray[np.uint8]:
    """Rows of k ascending positions, (clients, k), as rows of bytes."""
    clients, k = positions.shape
    low, _, high_bits = _split(dim, k)
    marks = np.zeros((clients, high_bits), dtype=np.uint8)
    np.put_along_axis(marks, (positions >> low) + np.arange(k), 1, axis=1)
    high = np.packbits(marks, axis=1, bitorder="little")
    if not low:
        return high
    return np.concatenate([bits.pack((positions & (2**low - 1)).astype(np.uint32), low), high], axis=1)


def read_positions(packed: NDArray[np.uint8], dim: int, k: int) -> NDArray[np.int64]:
    """The inverse, for untrusted bytes; `MessageError` unless they are k ascending positions below `dim`."""
    low, low_bytes, high_bits = _split(dim, k)
    marks = np.unpackbits(packed[:, low_bytes:], axis=1, bitorder="little")
    tidy = not low or bits.padding_is_zero(packed[:, :low_bytes], k, low)
    if not tidy or marks[:, high_bits:].any() or not (marks.sum(axis=1, dtype=np.int64) == k).all():
        raise MessageError(f"a message does not list {k} positions")
    places = np.nonzero(marks)[1].reshape(len(packed), k)
    positions = (places - np.arange(k)) << low
    if low:
        positions |= bits.unpack(packed[:, :low_bytes], k, low)
    if (positions[:, -1] >= dim).any() or (np.diff(positions, axis=1) <= 0).any():
        raise MessageError(f"a message lists a position twice, out of order, or beyond the dimension {dim}")
    return positions
