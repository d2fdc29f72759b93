"""Seeded Gaussian noise, drawn separately for each client."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.noise.randomness import Generators

BLOCK_NUMBERS = 2**16
"""About how many numbers are drawn at a time: few enough for the processor's cache, enough to amortise calls."""


def gaussian_rows(stds: Tensor, dim: int, generators: Generators) -> Tensor:
    """One row of N(0, std^2 I) for every client, each from its own stream: (clients, dim) float32.

    The accountants assume ideal continuous noise, but these are floating-point numbers. Runs that use them are
    simulations and are marked as such. A row does not depend on the other rows.
    """
    rows = np.empty((len(generators), dim), dtype=np.float32)
    scales = stds.to(torch.float32).numpy()[:, None]
    half, block = (dim + 1) // 2, max(1, BLOCK_NUMBERS // max(1, dim))
    for start in range(0, len(rows), block):
        part = slice(start, start + block)
        words = np.empty((len(rows[part]), 2 * half), dtype="<i4")
        generators.fill_rows(start, words.view(np.uint8))
        _box_muller(words.astype(np.int32, copy=False), scales[part], rows[part])
    return torch.from_numpy(rows)


def _box_muller(words: NDArray[np.int32], scales: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Two normal numbers from two uniform words: r cos(a) and r sin(a), with r^2 = -2 log u.

    u = |odd word| / 2^31 is never 0, so the largest number is 6.6. Small u, which give the tails of the noise,
    are represented with the same relative precision as others.
    """
    half, dim = words.shape[1] // 2, out.shape[1]
    radius = (words[:, :half] | 1).astype(np.float32)
    np.abs(radius, out=radius)
    radius *= np.float32(2**-31)
    np.log(radius, out=radius)
    radius *= np.float32(-2)
    np.sqrt(radius, out=radius)
    radius *= scales
    angle = words[:, half:].astype(np.float32)
    angle *= np.float32(np.pi / 2**31)
    np.multiply(radius, np.cos(angle), out=out[:, :half])
    np.sin(angle, out=angle)
    np.multiply(radius[:, : dim - half], angle[:, : dim - half], out=out[:, half:])
