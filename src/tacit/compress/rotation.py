"""A public random rotation that spreads a vector evenly over its coordinates before it is rounded.

cpSGD (Agarwal et al. 2018, section 4) multiplies by a Walsh-Hadamard matrix with random signs, which takes
d log2(d) additions. It pads d to a power of two, and sends the padding. Here two transforms of n = 2^floor(log2
d) coordinates, one from the front and one from the back, cover all d of them, without padding.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.compress.uplink import Direct
from tacit.errors import count
from tacit.state import State

_KEY = 0x7AC17
"""The seed of the signs. Privacy does not depend on them, so they may be the same in every run."""

_BEYOND = 1e-6
"""The probability, over the choice of signs, that a coordinate lies beyond `Rotation.reach`."""


@dataclass(frozen=True)
class Rotation:
    """An orthogonal map of vectors of length `dim`. It preserves distances, so bounds and noise are unchanged."""

    dim: int

    def __post_init__(self) -> None:
        count("dim", self.dim)

    @property
    def block(self) -> int:
        """n, the largest power of two up to `dim`."""
        return 1 << (self.dim.bit_length() - 1)

    def reach(self, norm: float) -> float:
        """A bound on the coordinates of a rotated vector of this norm, by Hoeffding's inequality.

        Every coordinate is a sum of +-x_i / sqrt(n) with random signs. (After the second transform, which mixes
        the first one's results, these are the signs before the second.)

        >>> round(Rotation(21_840).reach(1.0), 3)
        0.055
        """
        return norm * min(1.0, math.sqrt(2 * math.log(2 * self.dim / _BEYOND) / self.block))

    def forward(self, rows: Tensor) -> Tensor:
        """The rotated rows, (clients, dim)."""
        rows = rows.clone()
        for part, signs in self._transforms(rows):
            rows[:, part] = _hadamard(rows[:, part] * signs)
        return rows

    def back(self, rows: Tensor) -> Tensor:
        """The inverse of `forward`.

        >>> rows = torch.arange(6.0)[None]
        >>> bool(torch.allclose(Rotation(6).back(Rotation(6).forward(rows)), rows, atol=1e-6))
        True
        """
        rows = rows.clone()
        for part, signs in reversed(self._transforms(rows)):
            rows[:, part] = _hadamard(rows[:, part]) * signs
        return rows

    def _transforms(self, rows: Tensor) -> list[tuple[slice, Tensor]]:
        parts = (slice(0, self.block), slice(self.dim - self.block, self.dim))
        return list(zip(parts, _signs(self.block).to(rows), strict=True))


@functools.lru_cache(maxsize=2)
def _signs(block: int) -> Tensor:
    """The signs of both transforms, (2, block)."""
    coins = np.random.Generator(np.random.Philox(key=_KEY)).integers(0, 2, (2, block))
    return torch.from_numpy((2 * coins - 1).astype(np.int8))


def _hadamard(rows: Tensor) -> Tensor:
    """H x / sqrt(n), its own inverse, by the fast transform."""
    clients, length = rows.shape
    half = 1
    while half < length:
        pairs = rows.reshape(clients, length // (2 * half), 2, half)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        rows = torch.stack([first + second, first - second], dim=2)
        half *= 2
    return rows.reshape(clients, length) / math.sqrt(length)


@dataclass(frozen=True)
class RotatedBack(Direct):
    """`Direct` for vectors that their senders have rotated: the server rotates their mean back."""

    rotation: Rotation

    def receive(
        self, total: Tensor, state: State, *, cohort: float, clients: int, at: Tensor | None = None
    ) -> tuple[Tensor, State]:
        direction, state = super().receive(total, state, cohort=cohort, clients=clients)
        return self.rotation.back(direction[None])[0], state
