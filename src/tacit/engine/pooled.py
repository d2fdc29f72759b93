"""Simulated sums of messages whose noise is drawn at once, where nobody sees a single message.

A sum of independent Gaussian shares is one Gaussian of their total variance, and nothing between the noise and
the sum depends on single shares.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.client.work import Work
from tacit.compress.uplink import Uplink
from tacit.noise.gaussian import gaussian_rows
from tacit.noise.randomness import Generators, Purpose, Randomness


def pooled_std(work: Work, sizes: Tensor, shares: Tensor, weights: Tensor | None) -> float:
    """The standard deviation of all shares of noise in a sum, on every coordinate.

    Args:
        work: what the clients do.
        sizes: the number of records of each client in the sum.
        shares: the noise multiplier of each client's share.
        weights: the weight of each client; None for 1 each.
    """
    stds = work.noise_stds(sizes, shares).double()
    return float(torch.linalg.vector_norm(stds if weights is None else stds * weights.double()))


def sent_as_they_are(uplink: Uplink) -> bool:
    """Whether messages are not compressed: without noise of their own, they need not be written out."""
    return uplink.compressor.lossless


def with_pooled_noise(total: Tensor, std: float, at: Tensor | None, round: int, randomness: Randomness) -> Tensor:
    """The sum with the noise of all shares, on the coordinates that were sent (`at`; None for all)."""
    number = len(total) if at is None else len(at)
    generators = Generators(randomness, Purpose.NOISE, round=round)
    noise = gaussian_rows(torch.tensor([std], dtype=torch.float64), number, generators)[0].to(total.device)
    return total + noise if at is None else total.index_add(0, at.to(total.device), noise)
