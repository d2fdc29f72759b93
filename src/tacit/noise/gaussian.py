"""Gaussian noise, drawn by every client for itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def gaussian_rows(stds: Tensor, dim: int, generators: Sequence[np.random.Generator]) -> Tensor:
    """One row of N(0, std^2 I) for every client, each from its own generator: (clients, dim) float32.

    Ideal continuous noise is what the accountants assume; these are floating-point numbers. Runs that use
    them are simulations and say so.
    """
    rows = np.empty((len(generators), dim), dtype=np.float32)
    for row, generator in zip(rows, generators, strict=True):
        generator.standard_normal(out=row, dtype=np.float32)
    return torch.from_numpy(rows).mul_(stds[:, None].to(torch.float32))
