"""A bounded gradient as whole numbers, with coins as noise: ISRL-DP (Lowy & Razaviyayn 2023), appendix G."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from dp_accounting import dp_event
from torch import Tensor

from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import Bound
from tacit.client.cohort import Cohort
from tacit.client.estimators import Minibatch
from tacit.client.sampling import Sampling
from tacit.client.work import CommonWork
from tacit.errors import RequestError, count
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.noise.additive import Noise
from tacit.noise.entropy import Keystream
from tacit.noise.randomness import Generators, Purpose
from tacit.privacy import events
from tacit.shuffle.vector_sum import Source, VectorSum
from tacit.state import State

_LEAST_COINS = 0.5
"""Less than half a coin counts as no noise at all."""


@dataclass(frozen=True)
class Coins:
    """Heads of fair coins: no floating-point error; from a seed for research, or from the operating system."""

    secret: bool = False
    name: str = "coins"
    slack: float = 0.0
    precision: torch.dtype = torch.float64

    def init(self, clients: int, dim: int) -> State:
        return {}

    def add(
        self, rows: Tensor, stds: Tensor, noise_multipliers: Tensor, generators: Generators, memory: State
    ) -> tuple[Tensor, State]:
        """Always refuses: coins are added to whole numbers, by the work that rounds to them."""
        raise RequestError("coins can only be added to vectors that were rounded to whole numbers before")

    def charged(self, event: dp_event.DpEvent, dim: int, releases: int) -> dp_event.DpEvent:
        return event


@dataclass(frozen=True)
class CoinGradient(CommonWork):
    """The mean of a batch of bounded gradients, rounded at random to g levels, plus the heads of b fair coins.

    Guarantee: a record of a batch of K moves the sum over all clients by at most g/K levels, before rounding. The
    coins of all clients together hide that from someone who sees only the sum (`shuffled_event`); the client's
    own coins, which are few, hide it from someone who sees its message alone (`event`). A noise multiplier z
    means b = (z g/K)^2 coins: z is their deviation on the sum of a batch, in bounds. Sampling gives no
    amplification.

    The release does not include a penalty: the server adds its gradient, which is public.
    """

    model: Model
    """the loss that is trained"""
    sampling: Sampling
    """how batches are drawn"""
    bound: Bound
    """the bound on every record's gradient"""
    batch: int = 0
    """K, the same for all clients; 0 until the shuffler knows the federation"""
    cohort: int = 0
    """the number of clients in a round; 0 until the shuffler knows it"""
    coins: int = 0
    """b, once it is agreed on: messages have g + b bits per coordinate"""
    noise: Noise = field(default_factory=Coins)
    """coins, seeded or secret; their number is derived from the promise"""

    def __post_init__(self) -> None:
        count("batch", self.batch, at_least=0)
        count("cohort", self.cohort, at_least=0)

    @property
    def counted(self) -> bool:
        """Messages are bits; mixed with those of all other clients, they reveal only how many are ones."""
        return True

    @property
    def levels(self) -> int:
        """g = ceil(K sqrt(M)), so that rounding adds little to the noise of the coins."""
        return math.ceil(self.batch * math.sqrt(self.cohort))

    def coins_for(self, noise_multiplier: float) -> int:
        """b = (z g/K)^2, rounded up; 0 for negligible noise."""
        exact = (noise_multiplier * self.levels / self.batch) ** 2
        return math.ceil(exact * (1 - 1e-9)) if exact >= _LEAST_COINS else 0

    def vector_sum(self, coins: int) -> VectorSum:
        """The protocol with this many coins."""
        clip_norm = self.bound.norm(self.model.dim)
        return VectorSum(self.model.dim, clip_norm, self.levels, coins)

    def init(self, point: Tensor, federation: Federation) -> State:
        return {}

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        """Estimate, round, add coins: (2L/g)(ones - (g + b)/2), whose sum over clients is the result of P_vec."""
        model = BoundedModel(self.model, self.bound, self.noise.precision)
        estimate, state = Minibatch(self.sampling).estimate(model, point, cohort, state)
        if not bool((noise_multipliers > 0).any()):
            return estimate.to(point.dtype), state
        wanted = {self.coins_for(z) for z in noise_multipliers.unique().tolist()}
        if wanted != {self.coins}:
            raise RequestError(
                f"coins = {self.coins} were agreed on, but the noise needs {sorted(wanted)}: call settled() first"
            )
        stream = Keystream() if self.noise.secret else None
        sources: list[Source] = [stream] * len(estimate) if stream else list(cohort.generators(Purpose.NOISE))
        protocol = self.vector_sum(self.coins)
        ones = protocol.randomise(estimate, sources)
        return protocol.centred(ones).to(point.device, point.dtype), state

    def noise_stds(self, sizes: Tensor, noise_multipliers: Tensor) -> Tensor:
        """The standard deviation of the coins alone, L sqrt(b)/g."""
        bound = self.bound.norm(self.model.dim)
        coins = [self.coins_for(z) for z in noise_multipliers.tolist()]
        return bound / self.levels * torch.tensor(coins, dtype=torch.float64).sqrt()

    def event(self, size: int, noise_multiplier: float, rounds: int) -> dp_event.DpEvent:
        """The event against someone who sees the client's messages alone."""
        return self._event(1, noise_multiplier, size, rounds)

    def check_shuffled(self, cohort: int, batch: int) -> None:
        """The coins must be for just these batches and clients."""
        if (self.batch, self.cohort) != (batch, cohort):
            raise RequestError(
                f"the coins are for batches of {self.batch} records of {self.cohort} clients, not for these"
            )

    def shuffled_event(self, cohort: int, size: int, noise_multiplier: float, rounds: int) -> dp_event.DpEvent:
        """The event against someone who sees only the sum over a cohort whose clients keep their coins secret."""
        return self._event(cohort, noise_multiplier, size, rounds)

    def _event(self, clients: int, noise_multiplier: float, size: int, rounds: int) -> dp_event.DpEvent:
        coins = self.coins_for(noise_multiplier)
        self.sampling.check_rounds(torch.tensor([size]), rounds)
        if not coins:
            return events.non_private()
        one = events.coin_sum(self.model.dim, clients, coins, self.levels / self.batch)
        return events.once(one, rounds) if self.sampling.once else events.repeated(one, rounds)

    def with_noise(self, noise: Noise) -> Self:
        """The same work with coins from the entropy source of the given noise: seeded or secret."""
        return replace(self, noise=Coins(secret=noise.secret))
