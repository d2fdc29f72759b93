"""Random dithering: every coordinate as one of 2s + 1 levels of the vector's norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.compress import bits
from tacit.compress.quantiser import Quantised, Quantiser
from tacit.errors import MessageError, RequestError, count

MAX_LEVELS = 2 ** (bits.MAX_WIDTH - 1) - 1
_NORM_BYTES = 4


@dataclass(frozen=True)
class Levels:
    """Norms, and every coordinate as a whole multiple of norm/s between -s and s."""

    norms: Tensor
    steps: Tensor
    levels: int
    values: Tensor

    @classmethod
    def of(cls, norms: Tensor, steps: Tensor, levels: int) -> Levels:
        """The only place that turns steps into values, so that sender and receiver get the same float32."""
        values = (steps * (norms.double() / levels).unsqueeze(1)).float()
        return cls(norms, steps, levels, values)

    def payload(self) -> NDArray[np.uint8]:
        """The norm as a float32, then the codes step + s in [0, 2s], bit-packed."""
        norms = np.ascontiguousarray(self.norms.numpy(), dtype="<f4").view(np.uint8).reshape(-1, _NORM_BYTES)
        codes = (self.steps + self.levels).numpy().astype(np.uint32)
        return np.concatenate([norms, bits.pack(codes, _width(self.levels))], axis=1)


@dataclass(frozen=True)
class Qsgd(Quantiser):
    """Random dithering with `levels` = s levels on either side of zero (Alistarh et al. 2017, QSGD).

    A coordinate x_i becomes ||x|| l/s, where l is s x_i/||x|| rounded to one of its two neighbouring whole
    numbers at random, without bias. Then omega = min(d/s^2, sqrt(d)/s) (their Lemma 3.1). A message takes 4 bytes
    for the norm and ceil(log2(2s + 1)) bits per coordinate.

    >>> Qsgd(levels=4).omega(16), Qsgd(levels=4).omega(10_000)
    (1.0, 25.0)
    """

    levels: int

    codec = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", count("qsgd levels", self.levels))
        if self.levels > MAX_LEVELS:
            raise RequestError(f"qsgd levels must be at most {MAX_LEVELS}, not {self.levels}; or use identity")

    @property
    def wire_levels(self) -> int:
        return self.levels

    def omega(self, dim: int) -> float:
        return min(dim / self.levels**2, math.sqrt(dim) / self.levels)

    def spec(self) -> str:
        return f"qsgd:{self.levels}"

    def quantise(self, values: Tensor, generators: Sequence[np.random.Generator]) -> Quantised:
        norms = _norms_rounded_up(values)
        steps = np.empty(tuple(values.shape), dtype=np.int32)
        # Row by row, like the random numbers: a row's temporaries stay in the cache.
        for row, norm, step, generator in zip(values.numpy(), norms.tolist(), steps, generators, strict=True):
            fractions = row.astype(np.float64)
            # Dividing first keeps every ratio within [-1, 1]. A zero row stays zero whatever divides it.
            fractions /= norm or 1.0
            fractions *= self.levels
            floors = np.floor(fractions)
            fractions -= floors
            # floor(ratio + uniform) would be shorter, but the addition rounds: at s it can give s + 1.
            floors += generator.random(len(row)) < fractions
            step[:] = floors
        return Levels.of(norms, torch.from_numpy(steps), self.levels)

    def payload_bytes(self, values: int) -> int:
        return _NORM_BYTES + bits.packed_bytes(values, _width(self.levels))

    def read(self, payload: NDArray[np.uint8], values: int) -> Quantised:
        norms = np.ascontiguousarray(payload[:, :_NORM_BYTES]).view("<f4").reshape(-1).astype(np.float32)
        if not (np.isfinite(norms) & (norms >= 0)).all():
            raise MessageError("a qsgd message has a norm that is negative or not finite")
        packed = payload[:, _NORM_BYTES:]
        if not bits.padding_is_zero(packed, values, _width(self.levels)):
            raise MessageError("a qsgd message has padding bits that are not zero")
        codes = bits.unpack(packed, values, _width(self.levels))
        if (codes > 2 * self.levels).any():
            raise MessageError(f"a qsgd message has a code above {2 * self.levels}, its highest level")
        steps = torch.from_numpy(codes.astype(np.int32)) - self.levels
        return Levels.of(torch.from_numpy(norms), steps, self.levels)


def _width(levels: int) -> int:
    return (2 * levels).bit_length()


def _norms_rounded_up(values: Tensor) -> Tensor:
    """Float32 norms that are not below the true ones, so that no coordinate exceeds its row's norm."""
    exact = torch.linalg.vector_norm(values, dim=1, dtype=torch.float64)
    norms = exact.float()
    norms = torch.where(norms.double() < exact, torch.nextafter(norms, torch.tensor(math.inf)), norms)
    if not bool(norms.isfinite().all()):
        raise RequestError("rows must have a norm below 2**128 for qsgd: the norm is sent as a float32")
    return norms
