"""A sum over all clients of which nobody sees a part: the clients share its noise."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.noise.additive import LatticeGaussian, Noise, SeededGaussian
from tacit.noise.randomness import Generators, Purpose, Randomness
from tacit.privacy.accountant.calibrate import calibrate_noise
from tacit.privacy.events import gaussian
from tacit.privacy.promises.guarantee import Target


@dataclass(frozen=True)
class NoisyTotal:
    """One sum over clients of bounded contributions, opened once; every client adds a share of its noise.

    Guarantee: if every record adds a vector of norm at most `bound` and the sum has the shares of at least
    `honest` >= 2 clients that do not help the server, opening it keeps `target`: it is the Gaussian mechanism
    with all of the noise (docs/privacy.md, Theorem M). If all other clients help the server, a client has shown
    `exposed`.

    Without a seed, shares are lattice noise; with one, they are for research. `question` is everything that is
    public about the release, as for `NoisyMeans`.
    """

    question: str
    bound: float
    target: Target
    seed: int | None
    dim: int
    clients: int
    """how many add a share"""
    honest: int
    """the fewest shares of clients that do not help the server"""

    @cached_property
    def noise_multiplier(self) -> float:
        """The least noise of all honest shares together that keeps the target, in bounds."""
        target = self.target
        return calibrate_noise(self.event, epsilon=target.epsilon, delta=target.delta, adjacency=target.adjacency)

    @property
    def share_multiplier(self) -> float:
        """The noise of one share, in bounds."""
        return self.noise_multiplier / math.sqrt(self.honest)

    @property
    def share_std(self) -> float:
        """The standard deviation of one share."""
        return self.share_multiplier * self.bound

    def event(self, noise_multiplier: float) -> DpEvent:
        """What the opened sum releases about every client, with this noise multiplier."""
        # Everyone's share has to be right, and one more pays for what rounding adds.
        return self.noise.charged(self._ideal(noise_multiplier), self.dim, self.clients + 1)

    def exposed(self, noise_multiplier: float) -> DpEvent:
        """What is released if all other clients help the server: the client's own share is left."""
        return self.noise.charged(self._ideal(noise_multiplier / math.sqrt(self.honest)), self.dim, 1)

    def total(self, sums: Tensor) -> Tensor:
        """The sum of all clients' rows with all of their shares, drawn at once: (dim,) double."""
        return self.with_shares(sums.double().sum(0), self.clients)

    def with_shares(self, total: Tensor, shares: int, number: int = 0) -> Tensor:
        """A sum with so many shares of the noise, drawn at once. `number` tells sums apart that share a seed."""
        multiplier = torch.tensor([self.share_multiplier * math.sqrt(shares)], dtype=torch.float64)
        stds, generators = multiplier * self.bound, self.generators(number)
        noisy, _ = self.noise.add(total.double()[None], stds, multiplier, generators, {})
        return noisy[0].double()

    def generators(self, client: int) -> Generators:
        """Where seeded noise of a client comes from."""
        address = f"{self.seed}|{self.question}|{self.target}|sum"
        number = int.from_bytes(hashlib.blake2b(address.encode(), digest_size=16).digest(), "little")
        return Generators(Randomness(number), Purpose.NOISE, (client,))

    @property
    def noise(self) -> Noise:
        """The kind of noise."""
        return LatticeGaussian() if self.seed is None else SeededGaussian()

    def _ideal(self, noise_multiplier: float) -> DpEvent:
        return gaussian(noise_multiplier / (1 + self.noise.slack))
