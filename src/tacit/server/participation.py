"""Who takes part in a round.

The server sees who answers, so choosing clients at random hides nothing from it and earns no privacy here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tacit.errors import RequestError, count
from tacit.noise.randomness import Purpose, Randomness


class Participation(Protocol):
    """Which clients form the cohort of a round."""

    def cohort(self, clients: int, round: int, randomness: Randomness) -> Tensor:
        """Positions of the clients that take part, in increasing order."""
        ...


@dataclass(frozen=True)
class Everyone:
    """All clients, every round."""

    def cohort(self, clients: int, round: int, randomness: Randomness) -> Tensor:
        """All of them."""
        return torch.arange(clients)


@dataclass(frozen=True)
class FixedNumber:
    """A uniformly random set of exactly `number` clients, by public coins."""

    number: int

    def __post_init__(self) -> None:
        count("cohort", self.number)

    def cohort(self, clients: int, round: int, randomness: Randomness) -> Tensor:
        """A random subset."""
        if self.number > clients:
            raise RequestError(f"cohort = {self.number} is more than the {clients} clients there are")
        order = randomness.generator(Purpose.PARTICIPATION, round=round).permutation(clients)
        return torch.from_numpy(order[: self.number]).sort().values
