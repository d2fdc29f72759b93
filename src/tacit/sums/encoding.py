"""From a silo's vector to the integers that it adds to a sum, and from their sum back to a vector."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.compress.rotation import Rotation
from tacit.noise.additive import Noise
from tacit.noise.entropy import Keystream
from tacit.noise.gaussian import gaussian_rows
from tacit.noise.lattice import lattice_exponent, lattice_steps
from tacit.noise.randomness import Generators
from tacit.sums.arithmetic import STEP_EXPONENT, WRAPPING, Residues, Ring


@dataclass(frozen=True)
class Encoding:
    """How the vectors of a run become integers: rotated, with a share of the noise, on the lattice of a ring.

    Guarantee: with noise from the operating system, the sum of h >= 2 silos' integers is, up to what the promise
    charges, a function of the sum of their (rounded) vectors plus Gaussian noise of variance h noise_std^2
    (docs/privacy.md, Theorem M). The rotation keeps distances, so bounds and noise stay what they are; it
    spreads a vector over its coordinates, which saves bits.
    """

    ring: Ring
    noise_std: float
    """the standard deviation of one silo's share; 0 for none"""
    exponent: int
    """the share is drawn on a lattice of 2^exponent steps per standard deviation"""
    rotation: Rotation | None = None

    @classmethod
    def of(
        cls,
        *,
        silos: int,
        longest: float,
        noise_std: float,
        noise_multiplier: float,
        slack: float,
        dim: int,
        rotated: bool,
        rounds: int,
    ) -> Encoding:
        """The encoding that suits a run's public numbers.

        silos: how many messages are added at most.
        longest: the norm of the longest vector that a silo may add.
        noise_std, noise_multiplier: a share's standard deviation; the same relative to one record's influence.
        slack: by how much rounding may raise that influence; 0 for research.
        dim: coordinates of a message.
        rotated: whether vectors are rotated; only whole vectors can be.
        """
        bound, rotation = longest, None
        if rotated and dim > 1:
            rotation = Rotation(dim)
            # Hoeffding's inequality, as in Rotation.reach, for every coordinate of every message of the run.
            unlikely = math.log(4 * dim * rounds * silos / WRAPPING)
            bound = longest * min(1.0, math.sqrt(2 * unlikely / rotation.block))
        ring = Ring.for_sum(silos=silos, bound=bound, noise_std=noise_std, dim=dim, rounds=rounds)
        fine = lattice_exponent(dim, noise_multiplier, slack / 2) if slack and noise_std else STEP_EXPONENT
        return cls(ring, noise_std, max(fine, STEP_EXPONENT), rotation)

    @classmethod
    def of_total(cls, noise_std: float, noise_multiplier: float, slack: float, dim: int) -> Encoding:
        """The encoding of a short vector, of which every number takes 32 bits; see `of` for the parameters."""
        fine = lattice_exponent(dim, noise_multiplier, slack / 2) if slack else STEP_EXPONENT
        return cls(Ring(math.ldexp(noise_std, -STEP_EXPONENT), 32), noise_std, max(fine, STEP_EXPONENT))

    def encode(self, vector: Tensor, noise: Noise, generators: Generators) -> Residues:
        """The integers of one silo's vector, with its share of the noise; `generators` are for seeded noise."""
        row = vector.detach().cpu().double()
        if self.rotation is not None:
            row = self.rotation.forward(row[None])[0]
        if noise.secret and self.noise_std:
            fine = lattice_steps(row.numpy(), self.noise_std, self.exponent, Keystream())
            return self.ring.residues(self.ring.coarsened(fine, self.exponent))
        if self.noise_std:
            std = torch.tensor([self.noise_std], dtype=torch.float64)
            row = row + gaussian_rows(std, len(row), generators)[0].double()
        return self.ring.encode(row.numpy())

    def decode(self, residues: Residues) -> Tensor:
        """The vector that a sum of integers stands for, (dim,) double."""
        return self.from_steps(self.ring.lifted(residues))

    def from_steps(self, steps: NDArray[np.int64]) -> Tensor:
        """The vector of whole numbers of steps."""
        total = torch.from_numpy(steps * np.float64(self.ring.step))
        return total if self.rotation is None else self.rotation.back(total[None])[0]
