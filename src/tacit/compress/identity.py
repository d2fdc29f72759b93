"""No compression: every coordinate as a float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.compress.quantiser import Quantised, Quantiser
from tacit.errors import MessageError


@dataclass(frozen=True)
class Floats:
    """Values as float32, unchanged."""

    values: Tensor

    def payload(self) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self.values.numpy(), dtype="<f4").view(np.uint8)


@dataclass(frozen=True)
class Identity(Quantiser):
    """Sends vectors unchanged: omega = 0, four bytes per coordinate.

    The packets share memory with the rows they were made from.

    >>> Identity().message_bytes(1000)
    4006
    """

    codec = 1
    lossless = True

    def omega(self, dim: int) -> float:
        return 0.0

    def spec(self) -> str:
        return "identity"

    def quantise(self, values: Tensor, generators: Sequence[np.random.Generator]) -> Quantised:
        """The values themselves; uses no randomness."""
        return Floats(values)

    def payload_bytes(self, values: int) -> int:
        return 4 * values

    def read(self, payload: NDArray[np.uint8], values: int) -> Quantised:
        floats = payload.view("<f4").astype(np.float32)
        if not np.isfinite(floats).all():
            raise MessageError("a message has a value that is not finite")
        return Floats(torch.from_numpy(floats))
