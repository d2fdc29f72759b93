"""Who takes part in a round.

A server that sees single messages sees who answers, so choosing clients at random hides nothing from it and gives
no extra privacy. Only `PoissonClients`, whose coins are secret, can be used with a promise that relies on chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from tacit.errors import RequestError, count, positive
from tacit.noise.randomness import Purpose, Randomness


@dataclass(frozen=True)
class Attendance:
    """How often clients take part, as far as this is public."""

    rounds: int
    most: int
    """the number of rounds of the client that takes part most often; all rounds if the coins are secret"""


class Participation(Protocol):
    """Which clients form the cohort of a round."""

    @property
    def secret(self) -> bool:
        """Whether only the clients themselves know who takes part."""
        ...

    def cohort(self, clients: int, round: int, randomness: Randomness) -> Tensor:
        """Positions of the clients that take part, in increasing order."""
        ...

    def number_of(self, clients: int) -> int | None:
        """How many of `clients` clients take part in every round; None if it varies."""
        ...

    def typical(self, clients: int) -> float:
        """The number of clients averaged in a direction; if it is random, its harmonic mean."""
        ...

    def divisor(self, cohort: int) -> float:
        """The number by which the sum over a cohort of this size is divided."""
        ...


class _PublicCohort:
    """A cohort that everyone knows, whose sum is divided by those who took part."""

    secret: ClassVar[bool] = False

    def number_of(self, clients: int) -> int | None:
        return None

    def typical(self, clients: int) -> float:
        return float(self.number_of(clients) or clients)

    def divisor(self, cohort: int) -> float:
        """Those who took part."""
        return cohort


@dataclass(frozen=True)
class Everyone(_PublicCohort):
    """All clients in every round."""

    def cohort(self, clients: int, round: int, randomness: Randomness) -> Tensor:
        return torch.arange(clients)

    def number_of(self, clients: int) -> int | None:
        return clients


@dataclass(frozen=True)
class RandomNumber(_PublicCohort):
    """M_r random clients, M_r uniform between two numbers (ISRL-DP, Lowy & Razaviyayn 2023, Assumption 1.4)."""

    fewest: int
    """the fewest clients of a round"""
    most: int
    """the most clients of a round"""

    def __post_init__(self) -> None:
        count("cohort", self.fewest)
        count("cohort", self.most, at_least=self.fewest)

    def cohort(self, clients: int, round: int, randomness: Randomness) -> Tensor:
        generator = randomness.generator(Purpose.PARTICIPATION, round=round)
        number = int(generator.integers(self.fewest, self.most, endpoint=True))
        return _subset(number, clients, generator)

    def typical(self, clients: int) -> float:
        """The harmonic mean of the two numbers and all between them."""
        sizes = range(self.fewest, self.most + 1)
        return len(sizes) / sum(1 / size for size in sizes)


@dataclass(frozen=True)
class FixedNumber(_PublicCohort):
    """A uniformly random set of exactly `number` clients, by public coins."""

    number: int

    def __post_init__(self) -> None:
        count("cohort", self.number)

    def cohort(self, clients: int, round: int, randomness: Randomness) -> Tensor:
        return _subset(self.number, clients, randomness.generator(Purpose.PARTICIPATION, round=round))

    def number_of(self, clients: int) -> int | None:
        return self.number


@dataclass(frozen=True)
class PoissonClients:
    """Each client joins by its own coin, `expected` of them on average.

    DP-NormFedAvg (Das et al. 2022), Algorithm 1, line 3. Only the clients know their coins. Sums are divided by
    the constant `expected`, however many took part.
    """

    expected: float
    secret: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("cohort", self.expected)

    def rate(self, clients: int) -> float:
        """The probability of each coin."""
        if self.expected > clients:
            raise RequestError(f"cohort = {self.expected:g} is more than the {clients} clients there are")
        return self.expected / clients

    def cohort(self, clients: int, round: int, randomness: Randomness) -> Tensor:
        """The clients whose coin came up; possibly none."""
        generator = randomness.generator(Purpose.SECRET_PARTICIPATION, round=round)
        return torch.from_numpy(np.flatnonzero(generator.random(clients) < self.rate(clients)))

    def number_of(self, clients: int) -> int | None:
        return None

    def typical(self, clients: int) -> float:
        return self.expected

    def divisor(self, cohort: int) -> float:
        """The expected number, never the number that was drawn."""
        return self.expected


def _subset(number: int, clients: int, generator: np.random.Generator) -> Tensor:
    if number > clients:
        raise RequestError(f"cohort = {number} is more than the {clients} clients there are")
    return torch.from_numpy(generator.permutation(clients)[:number]).sort().values


def parse_participation(text: str | int | None) -> Participation:
    """Read a participation rule: all clients (None), a number of them, or `FEWEST-MOST`.

    >>> parse_participation(None), parse_participation(18), parse_participation("12-18")
    (Everyone(), FixedNumber(number=18), RandomNumber(fewest=12, most=18))
    """
    if text is None:
        return Everyone()
    fewest, dash, most = str(text).partition("-")
    try:
        return RandomNumber(int(fewest), int(most)) if dash else FixedNumber(int(fewest))
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"cohort must be a number of clients or FEWEST-MOST, not {text!r}") from error
