"""From vectors to integers and back: sums, noise, bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.noise.additive import LatticeGaussian, SeededGaussian
from tacit.noise.randomness import Generators, Purpose, Randomness
from tacit.sums.encoding import Encoding


def encoding(**changes: Any) -> Encoding:
    usual = {
        "silos": 5,
        "longest": 1.0,
        "noise_std": 0.01,
        "noise_multiplier": 2.0,
        "slack": 1e-4,
        "dim": 300,
        "rotated": True,
        "rounds": 100,
    }
    return Encoding.of(**usual | changes)


def generators(silo: int) -> Generators:
    return Generators(Randomness(3), Purpose.NOISE, (silo,))


@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize("noise", [SeededGaussian(), LatticeGaussian()])
def test_the_sum_of_integers_is_the_sum_of_vectors_plus_their_shares(rotated: bool, noise: Any) -> None:
    made = encoding(rotated=rotated)
    vectors = torch.randn(5, 300, generator=torch.Generator().manual_seed(1))
    vectors /= vectors.norm(dim=1, keepdim=True)
    errors = []
    for t in range(20):
        total = sum(
            made.encode(row, noise, generators(100 * t + i)).astype(np.uint64) for i, row in enumerate(vectors)
        )
        modulo = (np.asarray(total) % 2**made.ring.bits).astype(np.uint32)
        errors.append((made.decode(modulo) - vectors.double().sum(0)).numpy())
    std = math.sqrt(5 * (0.01**2 + made.ring.step**2 / 12))
    # On a lattice the shares are drawn from the system; half or twice the noise has 1e-100.
    assert stats.kstest(np.concatenate(errors) / std, "norm").pvalue > 1e-8


def test_without_noise_only_rounding_is_lost() -> None:
    made = encoding(noise_std=0.0)
    vector = torch.linspace(-0.05, 0.05, 300)
    assert torch.allclose(
        made.decode(made.encode(vector, SeededGaussian(), generators(0))), vector.double(), atol=1e-3
    )


def test_a_large_network_over_a_hundred_silos_needs_at_most_20_bits() -> None:
    """MNIST's network: 600 records a silo, about 30 of them in a batch; the share of one of 70 honest silos."""
    share = 1.3 / 30 / math.sqrt(70)
    made = encoding(silos=100, longest=2.0, noise_std=share, noise_multiplier=1.3 / math.sqrt(70), dim=21_840)
    assert made.ring.bits <= 16
    full = 9.0 / 600 / math.sqrt(70)
    made = encoding(silos=100, longest=1.0, noise_std=full, noise_multiplier=9.0 / math.sqrt(70), dim=7_850)
    assert made.ring.bits <= 20
