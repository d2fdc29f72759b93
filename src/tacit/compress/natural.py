"""Natural compression: every coordinate as a sign and a power of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.compress import bits
from tacit.compress.quantiser import Quantised, Quantiser
from tacit.errors import MessageError, RequestError

_MANTISSA_BITS = 23
_WIDTH = 9
_INFINITE_EXPONENT = 255


@dataclass(frozen=True)
class PowersOfTwo:
    """Values that are zero or a signed power of two: the upper 9 bits of a float32, the others zero."""

    values: Tensor

    def payload(self) -> NDArray[np.uint8]:
        """Sign and exponent, 9 bits per value, bit-packed."""
        words: NDArray[np.uint32] = self.values.numpy().view(np.uint32)
        return bits.pack(words >> np.uint32(_MANTISSA_BITS), _WIDTH)


@dataclass(frozen=True)
class Natural(Quantiser):
    """Rounds every coordinate to a neighbouring power of two (Horvath et al. 2019, natural compression).

    |x| in [2^e, 2^(e+1)) becomes 2^(e+1) with probability |x|/2^e - 1, else 2^e: without bias, and with
    omega = 1/8. Below 2^-126, where float32 has no more exponents, the neighbours are 0 and 2^-126: still
    without bias, but the variance of such a coordinate is only bounded by 2^-254. A message takes 9 bits per
    coordinate. Magnitudes above 2^127 have no upper neighbour and are refused.

    >>> generators = [np.random.Generator(np.random.Philox(1))]
    >>> Natural().compress(torch.tensor([[0.5, -3.0, 0.0]]), generators).dense()[:, 0]
    tensor([0.5000])
    """

    codec = 3

    def omega(self, dim: int) -> float:
        return 0.125

    def spec(self) -> str:
        return "natural"

    def quantise(self, values: Tensor, generators: Sequence[np.random.Generator]) -> Quantised:
        floats = values.numpy()
        if (np.abs(floats) > 2.0**127).any():
            raise RequestError("rows (after rand-k: times d/k) must be at most 2**127 in size for natural")
        words = _random_words(floats.shape, generators)
        # The mantissa m of a float32 is the probability m/2^23 of rounding up, also below 2^-126. Adding a
        # uniform 23-bit number carries into the exponent exactly that often.
        words >>= 32 - _MANTISSA_BITS
        words += np.ascontiguousarray(floats).view(np.uint32)
        words &= np.uint32(0xFFFFFFFF << _MANTISSA_BITS & 0xFFFFFFFF)
        return PowersOfTwo(torch.from_numpy(words.view(np.float32)))

    def payload_bytes(self, values: int) -> int:
        return bits.packed_bytes(values, _WIDTH)

    def read(self, payload: NDArray[np.uint8], values: int) -> Quantised:
        if not bits.padding_is_zero(payload, values, _WIDTH):
            raise MessageError("a natural message has padding bits that are not zero")
        codes = bits.unpack(payload, values, _WIDTH)
        if (codes & 0xFF == _INFINITE_EXPONENT).any():
            raise MessageError("a natural message has a value that is not finite")
        return PowersOfTwo(torch.from_numpy((codes << _MANTISSA_BITS).view(np.float32)))


def _random_words(shape: tuple[int, ...], generators: Sequence[np.random.Generator]) -> NDArray[np.uint32]:
    """Uniform 32-bit words, each row from its own generator."""
    rows, length = shape
    words = np.empty((rows, length), dtype=np.uint32)
    for row, generator in zip(words, generators, strict=True):
        raw = generator.bit_generator.random_raw((length + 1) // 2)
        row[:] = raw.astype("<u8", copy=False).view("<u4")[:length]
    return words
