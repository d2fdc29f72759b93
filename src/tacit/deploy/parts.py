"""What silos send where a sum over their records is asked for: the number of records, and the sums, as bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from tacit.errors import MessageError

_RECORDS = struct.Struct("<I")
LARGEST_SUM = 2.0**52
"""Larger numbers are no sums over records: they would overflow where sums are added or squared."""


@dataclass(frozen=True)
class Part:
    """What a silo sends: the number of its records, and noisy sums, or masked integers, over them."""

    records: int
    sums: tuple[float, ...]

    def to_bytes(self, *, masked: bool) -> bytes:
        """As it is sent; integers are kept as floats in ledgers and certificates."""
        return _RECORDS.pack(self.records) + np.array(self.sums, dtype=_number(masked)).tobytes()

    @classmethod
    def from_bytes(cls, content: bytes, dim: int, *, masked: bool) -> Part:
        """The inverse, for bytes that may come from anyone."""
        if len(content) != part_bytes(dim, masked=masked) or not (records := _RECORDS.unpack_from(content)[0]):
            raise MessageError("not a silo's part of a sum over its records")
        sums = np.frombuffer(content[_RECORDS.size :], dtype=_number(masked)).astype(np.float64)
        # No comparison with NaN is true.
        if not (np.abs(sums) <= LARGEST_SUM).all():
            raise MessageError("a silo's part is not a sum over its records")
        return cls(records, tuple(sums.tolist()))


def part_bytes(dim: int, *, masked: bool) -> int:
    """The length of a part."""
    return _RECORDS.size + dim * np.dtype(_number(masked)).itemsize


def _number(masked: bool) -> str:
    return "<u4" if masked else "<f8"
