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
from tacit.engine.audit.stage import CoinFlips
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Adversary
from tacit.privacy.accountant.pairs import Array


@dataclass(frozen=True)
class Present:
    """Who takes part in one round of many trials, and with how much noise."""

    positions: Tensor
    """of the clients, trial after trial"""
    counts: tuple[int, ...]
    """how many of every trial"""
    multipliers: Tensor
    """(positions,): the noise that each of them adds, in bounds"""
    canary: CoinFlips
    """(trials,): whether the client whose data are guessed is among them; it is the first of its trial"""
    weights: Array
    """(trials,): by what its message is multiplied, so that messages with different shares of noise compare"""


class Seat(Protocol):
    """Where an adversary sits.

    `clients` are those of one trial, and `stride` is by how much their ids advance from trial to trial.
    `chance` is how likely the canary's client takes part in a round, as far as the adversary knows.
    """

    @property
    def adversary(self) -> Adversary:
        """Who sits here."""
        ...

    @property
    def clients(self) -> int:
        """Of one trial."""
        ...

    @property
    def stride(self) -> int:
        """Between the ids of the first clients of two trials."""
        ...

    @property
    def chance(self) -> float:
        """With which the canary's client takes part."""
        ...

    @property
    def messages(self) -> float:
        """How many of the clients of a trial take part in a round, on average."""
        ...

    def present(self, algorithm: Algorithm, noise: float, round: int, trials: Sequence[Randomness]) -> Present:
        """Who takes part, where a client's full noise is `noise` bounds."""
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
        """From the messages of those present to what is seen of every trial."""
        ...

    def hide(self, views: Array, generator: np.random.Generator) -> Array:
        """What was seen, without what the adversary must not know of it."""
        ...


@dataclass(frozen=True)
class OneClient:
    """Sees all messages and who sent them: the canary's own are all that matters.

    With a `crowd`, the client takes part by the coins of so many, and has its share of the noise.
    """

    adversary: Adversary = Adversary.SERVER
    crowd: int = 1
    rate: float = 1.0
    """with which the client takes part"""
    clients: int = 1
    stride: int = 1
    messages: float = 1.0

    @property
    def chance(self) -> float:
        """By the coins of the crowd."""
        return self.rate

    def present(self, algorithm: Algorithm, noise: float, round: int, trials: Sequence[Randomness]) -> Present:
        """The one client of every trial, or of those in which it takes part."""
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
        """Its message, nan where there is none: (trials, dim)."""
        seen = torch.full((len(trials), rows.shape[1]), torch.nan, dtype=rows.dtype)
        seen[who.positions] = rows
        return seen * torch.from_numpy(who.weights).to(rows.dtype)[:, None]

    def hide(self, views: Array, generator: np.random.Generator) -> Array:
        """Nothing is hidden."""
        return views


@dataclass(frozen=True)
class Sums:
    """Sees the sum of each round and no message; `known` says whether it knows who takes part.

    The sum is made as the engine makes it: the cohort by the algorithm's own coins, every member with its share
    of the noise, and what the trusted party adds. Where the cohort is known, only sums with the canary's client
    are worth a look.
    """

    clients: int
    adversary: Adversary
    rate: float = 1.0
    """with which every client takes part"""
    known: bool = False

    @property
    def chance(self) -> float:
        """By its coin."""
        return self.rate

    @property
    def messages(self) -> float:
        """As many as are expected."""
        return max(1.0, self.clients * self.rate)

    @property
    def stride(self) -> int:
        """No two trials share a client."""
        return self.clients

    def present(self, algorithm: Algorithm, noise: float, round: int, trials: Sequence[Randomness]) -> Present:
        """The cohorts of all trials, each by coins of its own."""
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
        """Their sums: (trials, dim)."""
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

    def hide(self, views: Array, generator: np.random.Generator) -> Array:
        """A sum hides by itself."""
        return views


@dataclass(frozen=True)
class MixedSeat:
    """Sees all messages of a round in random order."""

    clients: int
    adversary: Adversary = Adversary.SHUFFLER
    chance: float = 1.0

    @property
    def messages(self) -> float:
        """All of them."""
        return self.clients

    @property
    def stride(self) -> int:
        """No two trials share a client."""
        return self.clients

    def present(self, algorithm: Algorithm, noise: float, round: int, trials: Sequence[Randomness]) -> Present:
        """Everyone."""
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
        """All of them, the canary's first: (trials, clients, dim)."""
        return rows.reshape(len(trials), self.clients, -1)

    def hide(self, views: Array, generator: np.random.Generator) -> Array:
        """In random order, trial by trial and round by round."""
        order = generator.random(views.shape[:3]).argsort(axis=2)
        return np.take_along_axis(views, order[..., None], axis=2)


FEW_EXPECTED = 4.0
"""How many clients of a trial are expected to take part, where only the rate matters."""


def small_crowd(algorithm: Algorithm, clients: int) -> tuple[Algorithm, int]:
    """The same promise about sums with few clients, at the same rate: others add only their share of noise."""
    expected = algorithm.participation.divisor(0)
    if expected <= FEW_EXPECTED:
        return algorithm, clients
    few = max(1, math.ceil(clients * FEW_EXPECTED / expected))
    smaller = expected * few / clients
    parts = {"participation": algorithm.participation, "trust": algorithm.trust}
    return replace(algorithm, **{n: replace(p, expected=smaller) for n, p in parts.items()}), few  # type: ignore[type-var, arg-type]


def randomness_of(trial: int, randomness: Randomness) -> Randomness:
    """What all parties of one trial draw together, such as its cohorts."""
    return replace(randomness, seed=(randomness.seed + (trial + 1) * 2**64) % 2**128)


def mixing(randomness: Randomness, first: int) -> np.random.Generator:
    """In what order the messages of trials come."""
    return randomness.generator(Purpose.PARTICIPATION, client=first)
