"""Numbers that already lie on a grid, sent as whole numbers of grid steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.compress import bits as packing
from tacit.compress.quantiser import Quantised, Quantiser
from tacit.errors import MessageError, RequestError, count

_EXPONENT_BYTES = 2
_LEAST_EXPONENT, _MOST_EXPONENT = -149, 112
"""For exponents e in this range, multiples of 2^e fit into float32: 2^-149 is its smallest number, 2^127 fits."""

_MANTISSA_BITS = 24


@dataclass(frozen=True)
class Steps:
    """Rows as whole multiples of a power of two, one per row."""

    exponents: NDArray[np.int16]
    codes: NDArray[np.int32]
    bits: int
    values: Tensor

    @classmethod
    def of(cls, exponents: NDArray[np.int16], codes: NDArray[np.int32], bits: int) -> Steps:
        """The only place that turns codes into values, so that sender and receiver get the same float32."""
        values = np.ldexp(codes.astype(np.float64), exponents[:, None].astype(np.int32)).astype(np.float32)
        return cls(exponents, codes, bits, torch.from_numpy(values))

    def payload(self) -> NDArray[np.uint8]:
        """The exponent as two bytes, then the codes above the lowest one, bit-packed."""
        heads = np.ascontiguousarray(self.exponents, dtype="<i2").view(np.uint8).reshape(-1, _EXPONENT_BYTES)
        above = (self.codes + 2 ** (self.bits - 1)).astype(np.uint32)
        return np.concatenate([heads, packing.pack(above, self.bits)], axis=1)


@dataclass(frozen=True)
class WholeSteps(Quantiser):
    """Sends rows whose numbers are c 2^e with |c| < 2^(bits - 1), as `e` and all c, without loss.

    It is for vectors that lie on a grid already, such as those with coins as noise. Other rows are refused. A
    message takes 2 bytes for e and `bits` bits per coordinate; e is found from the numbers.

    >>> WholeSteps(bits=12).message_bytes(1000)
    1508
    """

    bits: int

    codec = 4

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", count("bits", self.bits, at_least=2))
        if self.bits > packing.MAX_WIDTH:
            raise RequestError(f"bits must be at most {packing.MAX_WIDTH}, not {self.bits}; or use identity")

    @property
    def wire_levels(self) -> int:
        return self.bits

    def omega(self, dim: int) -> float:
        return 0.0

    def spec(self) -> str:
        return f"whole-steps:{self.bits}"

    def quantise(self, values: Tensor, generators: Sequence[np.random.Generator]) -> Quantised:
        """The codes of the numbers; uses no randomness."""
        numbers = values.numpy().astype(np.float64)
        exponents = _exponents(numbers)
        codes = np.ldexp(numbers, -exponents[:, None].astype(np.int32))
        largest = float(np.abs(codes).max(initial=0.0))
        if largest >= 2 ** (self.bits - 1):
            raise RequestError(
                f"rows must be whole multiples, below {2 ** (self.bits - 1)}, of a power of two for bits = "
                f"{self.bits}"
            )
        return Steps.of(exponents, codes.astype(np.int32), self.bits)

    def payload_bytes(self, values: int) -> int:
        return _EXPONENT_BYTES + packing.packed_bytes(values, self.bits)

    def read(self, payload: NDArray[np.uint8], values: int) -> Quantised:
        heads = np.ascontiguousarray(payload[:, :_EXPONENT_BYTES]).view("<i2").reshape(-1).astype(np.int16)
        if not ((heads >= _LEAST_EXPONENT) & (heads <= _MOST_EXPONENT)).all():
            raise MessageError("a message of whole steps has an exponent that no sender writes")
        packed = payload[:, _EXPONENT_BYTES:]
        if not packing.padding_is_zero(packed, values, self.bits):
            raise MessageError("a message of whole steps has padding bits that are not zero")
        codes = packing.unpack(packed, values, self.bits).astype(np.int32) - 2 ** (self.bits - 1)
        if (codes == -(2 ** (self.bits - 1))).any():
            raise MessageError("a message of whole steps has a code that no sender writes")
        return Steps.of(heads, codes, self.bits)


def _exponents(numbers: NDArray[np.float64]) -> NDArray[np.int16]:
    """For each row, the largest e such that all its numbers are whole multiples of 2^e; 0 if all are zero."""
    mantissas, exponents = np.frexp(numbers)
    whole = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64)
    lowest_bits = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    each = np.where(whole == 0, np.iinfo(np.int16).max, exponents - _MANTISSA_BITS + lowest_bits)
    least = each.min(axis=1, initial=np.iinfo(np.int16).max)
    found: NDArray[np.int16] = np.where(least > _MOST_EXPONENT, _zero_or_most(whole), least).astype(np.int16)
    return found


def _zero_or_most(whole: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(whole.any(axis=1), _MOST_EXPONENT, 0)
