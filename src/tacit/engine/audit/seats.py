"""What an adversary sees of a round: one client's message, the sum of all messages, or all of them mixed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.secure_sum import SecureSum
from tacit.engine.audit.stage import CoinFlips
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Adversary
from tacit.privacy.accountant.pairs import Array
from tacit.server.participation import Everyone


@dataclass(frozen=True)
class Present:
    """Who takes part in one round of many trials, and with how much noise."""

    positions: Tensor
    """positions of the clients, trial after trial"""
    counts: tuple[int, ...]
    """number of clients in every trial"""
    multipliers: Tensor
    """(positions,): the noise that each client adds, in units of the bound"""
    canary: CoinFlips
    """(trials,): whether the client whose data are guessed takes part; it is the first of its trial"""
    weights: Array
    """(trials,): factor on its message, which makes messages with different shares of noise comparable"""


class Seat(Protocol):
    """An adversary's view of a round.

    `clients` is their number in one trial, and `stride` is the step of their ids from trial to trial. `chance` is
    the probability, as far as the adversary knows, that the canary's client takes part in a round.
    """

    @property
    def adversary(self) -> Adversary:
        """The adversary in this seat."""
        ...

    @property
    def clients(self) -> int:
        """Number of clients in one trial."""
        ...

    @property
    def stride(self) -> int:
        """Difference between the ids of the first clients of consecutive trials."""
        ...

    @property
    def mixed(self) -> bool:
        """Whether messages are seen one by one, but in random order."""
        ...

    @property
    def chance(self) -> float:
        """Probability that the canary's client takes part in a round."""
        ...

    @property
    def messages(self) -> float:
        """Average number of clients of a trial that take part in a round."""
        ...

    def present(self, algorithm: Algorithm, noise: float, round: int, trials: Sequence[Randomness]) -> Present:
        """Who takes part, if a client's full noise is `noise` bounds."""
        ...

    def see(
        self,
        algorithm: Algorithm,
        rows: Tensor,
        who: Present,
        noise: float,
        round: int,
        trials: Sequence[Randomness],
    ) -> Tensor:
        """Turns the messages of those present into what is seen of every trial."""
        ...

    def hide(self, views: Array, generator: np.random.Generator) -> Array:
        """Removes from a view what the adversary must not know."""
        ...


class _NothingHidden:
    mixed = False

    def hide(self, views: Array, generator: np.random.Generator) -> Array:
        """The views as they are: what the adversary must not know is not in them."""
        return views


@dataclass(frozen=True)
class OneClient(_NothingHidden):
    """Sees all messages and who sent them; only those of the canary's client matter.

    With a `crowd`, the client takes part by the crowd's coins, and adds its share of the noise.
    """

    adversary: Adversary = Adversary.SERVER
    crowd: int = 1
    rate: float = 1.0
    """probability that the client takes part in a round"""
    clients: int = 1
    stride: int = 1
    messages: float = 1.0

    @property
    def chance(self) -> float:
        return self.rate

    def present(self, algorithm: Algorithm, noise: float, round: int, trials: Sequence[Randomness]) -> Present:
        """The one client of every trial, or of those trials in which it takes part."""
        number = len(trials)
        if self.crowd == 1:
            multipliers, ones = torch.full((number,), noise, dtype=torch.float64), np.ones(number)
            return Present(torch.arange(number), (1,) * number, multipliers, ones == 1, ones)
        cohorts = [algorithm.participation.cohort(self.crowd, round, randomness) for randomness in trials]
        there = np.array([bool((cohort == 0).any()) for cohort in cohorts])
        one = torch.ones(1, dtype=torch.float64)
        shares = torch.cat([algorithm.trust.share(one, len(cohort)) for cohort in cohorts])
        positions = torch.from_numpy(np.flatnonzero(there))
        return Present(
            positions, tuple(there.astype(int).tolist()), noise * shares[positions], there, 1 / shares.numpy()
        )

    def see(
        self,
        algorithm: Algorithm,
        rows: Tensor,
        who: Present,
        noise: float,
        round: int,
        trials: Sequence[Randomness],
    ) -> Tensor:
        """The client's message, nan where there is none: (trials, dim)."""
        seen = torch.full((len(trials), rows.shape[1]), torch.nan, dtype=rows.dtype)
        seen[who.positions] = rows
        return seen * torch.from_numpy(who.weights).to(rows.dtype)[:, None]


@dataclass(frozen=True)
class Sums(_NothingHidden):
    """Sees the sum of each round and no message; `known` says whether it knows who takes part.

    The sum is made as in the engine: the algorithm's own coins choose the cohort, every member adds its share of
    the noise, and the trusted party adds the rest. If the cohort is known, only sums that include the canary's
    client are useful.
    """

    clients: int
    adversary: Adversary
    rate: float = 1.0
    """probability that a client takes part in a round"""
    known: bool = False

    @property
    def chance(self) -> float:
        return self.rate

    @property
    def messages(self) -> float:
        return max(1.0, self.clients * self.rate)

    @property
    def stride(self) -> int:
        """As many as there are clients, so that no two trials share one."""
        return self.clients

    def present(self, algorithm: Algorithm, noise: float, round: int, trials: Sequence[Randomness]) -> Present:
        """The cohorts of all trials, each chosen by its own coins."""
        cohorts = [algorithm.participation.cohort(self.clients, round, randomness) for randomness in trials]
        full = torch.full((self.clients,), noise, dtype=torch.float64)
        return Present(
            torch.cat([n * self.clients + cohort for n, cohort in enumerate(cohorts)]),
            tuple(len(cohort) for cohort in cohorts),
            torch.cat([algorithm.trust.share(full, len(cohort))[cohort] for cohort in cohorts]),
            np.array([bool((cohort == 0).any()) for cohort in cohorts]),
            np.ones(len(trials)),
        )

    def see(
        self,
        algorithm: Algorithm,
        rows: Tensor,
        who: Present,
        noise: float,
        round: int,
        trials: Sequence[Randomness],
    ) -> Tensor:
        owners = torch.repeat_interleave(torch.arange(len(trials)), torch.tensor(who.counts))
        totals = torch.zeros(len(trials), rows.shape[1], dtype=rows.dtype).index_add_(0, owners, rows)
        bound = algorithm.work.bound.norm(algorithm.work.model.dim)
        topped = [
            algorithm.trust.top_up(total, noise, bound, cohort, round, randomness)
            for total, cohort, randomness in zip(totals, who.counts, trials, strict=True)
        ]
        sums = torch.stack(topped)
        if self.known:
            sums[torch.from_numpy(~who.canary)] = torch.nan
        return sums


@dataclass(frozen=True)
class MixedSeat:
    """Sees all messages of a round in random order."""

    clients: int
    adversary: Adversary = Adversary.SHUFFLER
    chance: float = 1.0
    mixed = True

    @property
    def messages(self) -> float:
        return self.clients

    @property
    def stride(self) -> int:
        """As many as there are clients, so that no two trials share one."""
        return self.clients

    def present(self, algorithm: Algorithm, noise: float, round: int, trials: Sequence[Randomness]) -> Present:
        number = len(trials)
        full = torch.full((number * self.clients,), noise, dtype=torch.float64)
        everyone = torch.arange(number * self.clients)
        shares = algorithm.trust.share(full, self.clients)
        ones = np.ones(number)
        return Present(everyone, (self.clients,) * number, shares, ones == 1, ones)

    def see(
        self,
        algorithm: Algorithm,
        rows: Tensor,
        who: Present,
        noise: float,
        round: int,
        trials: Sequence[Randomness],
    ) -> Tensor:
        """All messages, the canary's first: (trials, clients, dim)."""
        return rows.reshape(len(trials), self.clients, -1)

    def hide(self, views: Array, generator: np.random.Generator) -> Array:
        """The messages in random order, for every trial and round."""
        order = generator.random(views.shape[:3]).argsort(axis=2)
        return np.take_along_axis(views, order[..., None], axis=2)


FEW_EXPECTED = 4.0
"""Expected number of participants in a trial where only the rate matters."""


def small_crowd(algorithm: Algorithm, clients: int) -> tuple[Algorithm, int]:
    """The same promise about sums with fewer clients at the same rate: others add only their share of noise.

    In a secure sum, colluding clients take off what they sent, so honest ones remain; two with a half each are
    as good as many.
    """
    if isinstance(algorithm.trust, SecureSum):
        pair = replace(algorithm.trust, cohort=2, quorum=2, colluding=0)
        return replace(algorithm, trust=pair, participation=Everyone()), 2
    expected = algorithm.participation.divisor(0)
    if expected <= FEW_EXPECTED:
        return algorithm, clients
    few = max(1, math.ceil(clients * FEW_EXPECTED / expected))
    smaller = expected * few / clients
    parts = {"participation": algorithm.participation, "trust": algorithm.trust}
    return replace(algorithm, **{n: replace(p, expected=smaller) for n, p in parts.items()}), few  # type: ignore[type-var, arg-type]


def randomness_of(trial: int, randomness: Randomness) -> Randomness:
    """Randomness that all parties of one trial share, for example for its cohorts."""
    return replace(randomness, seed=(randomness.seed + (trial + 1) * 2**64) % 2**128)


def mixing(randomness: Randomness, first: int) -> np.random.Generator:
    """Generator of the order in which the messages of trials arrive."""
    return randomness.generator(Purpose.PARTICIPATION, client=first)
