"""The sum of vectors behind a shuffler, with coins as noise: protocols P_vec and P_1D, with corrections.

The protocol is by Cheu, Joseph, Mao & Peng (2021), as described in ISRL-DP (Lowy & Razaviyayn 2023), Algorithms 4
and 5. Each client

1. shifts its vector, of norm at most L, to [0, 2L] and scales each coordinate to v = g (x + L)/(2L) in [0, g],
2. rounds v at random to a whole number next to it, without bias,
3. adds the heads of b fair coins, and writes the result as g + b bits with that many ones,
4. sends every bit as a separate message, labelled with its coordinate.

The shuffler mixes all messages of all clients, so only the number of ones S_j of each coordinate can be seen. The
server computes (2L/g)(S_j - N b/2) - N L. Algorithm 4 as printed passes values in [0, 2L] to a subroutine for [0,
L] and subtracts L instead of N L. It uses a p below 1/2; p = 1/2 gets the most noise from b bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import DataError, RequestError, count, positive
from tacit.noise.entropy import Keystream

Source = np.random.Generator | Keystream
"""Where a client's bits come from. A generator has a seed, and anyone who knows it can subtract the noise."""

_SHAVE = 1 - 1e-9
"""Vectors are clipped to slightly less than the norm: far more than the rounding of the scaling can add to it."""


@dataclass(frozen=True)
class VectorSum:
    """A client's part of the sum of vectors of norm at most `clip_norm`.

    Its privacy, behind the shuffler and against a server that colludes with the shuffler, is that of the event
    `tacit.privacy.events.coin_sum`.

    It is unbiased for vectors within the norm; longer ones are first scaled down to it. Floating point causes no
    error, because the noise is a whole number made of single random bits. Not covered: how the vectors were
    computed, and how long this takes.
    """

    dim: int
    clip_norm: float
    levels: int
    coins: int

    def __post_init__(self) -> None:
        for setting in ("dim", "levels", "coins"):
            object.__setattr__(self, setting, count(setting, getattr(self, setting)))
        positive("clip_norm", self.clip_norm)

    def randomise(self, rows: Tensor, sources: Sequence[Source]) -> Tensor:
        """The number of ones of each coordinate, (rows, dim) int64; each row uses its own random source."""
        scaled = self._scaled(rows)
        if len(sources) != len(scaled):
            raise RequestError(f"sources must be one for each of {len(scaled)} rows, not {len(sources)}")
        ones = np.empty(scaled.shape, dtype=np.int64)
        for row, values, source in zip(ones, scaled, sources, strict=True):
            row[:] = _rounded(values, source) + _heads(self.dim, self.coins, source)
        return torch.from_numpy(ones)

    def centred(self, ones: Tensor) -> Tensor:
        """Each client's noisy vector, from its ones: (rows, dim) double. Their sum is the protocol's result."""
        return self._unit * (ones.double() - (self.coins + self.levels) / 2)

    @property
    def _unit(self) -> float:
        return 2 * self.clip_norm / self.levels

    def _scaled(self, rows: Tensor) -> NDArray[np.float64]:
        if rows.dim() != 2 or rows.shape[1] != self.dim or not rows.is_floating_point():
            raise DataError(
                f"rows must be floating-point (clients, {self.dim}), not {rows.dtype} {tuple(rows.shape)}"
            )
        values = rows.detach().cpu().double().numpy()
        wrong = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if len(wrong):
            raise DataError(f"rows must be finite, but row {wrong[0]} is not; bound the records first")
        # Squares may overflow; such a row is scaled to zero.
        with np.errstate(divide="ignore", over="ignore"):
            norms = np.linalg.norm(values, axis=1, keepdims=True)
            shrink = np.minimum(1.0, self.clip_norm * _SHAVE / norms)
        scaled: NDArray[np.float64] = (values * shrink / self.clip_norm + 1) * (self.levels / 2)
        return scaled.clip(0.0, self.levels)


def _words(size: int, source: Source) -> NDArray[np.uint64]:
    if isinstance(source, Keystream):
        return source.uint64(size)
    return source.integers(0, 2**64 - 1, size, dtype=np.uint64, endpoint=True)


def _rounded(values: NDArray[np.float64], source: Source) -> NDArray[np.int64]:
    """One of the two whole numbers next to each value, without bias (to 2^-64)."""
    below = np.floor(values)
    chances = np.ldexp(values - below, 64).astype(np.uint64)
    return below.astype(np.int64) + (_words(len(values), source) < chances)


def _heads(size: int, coins: int, source: Source) -> NDArray[np.int64]:
    """`size` independent counts of heads among `coins` fair coins: exactly binomial, one random bit per coin."""
    full, rest = divmod(coins, 64)
    heads = np.zeros(size, dtype=np.int64)
    for _ in range(full):
        heads += _ones(_words(size, source))
    if rest:
        heads += _ones(_words(size, source) >> np.uint64(64 - rest))
    return heads


def _ones(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The number of ones in each word."""
    bits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1)
    counts: NDArray[np.int64] = bits.sum(axis=1, dtype=np.int64)
    return counts
