"""The clients of one round, or the part of them that is being worked on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit.client.grams import Grams
from tacit.federation import Batch, Federation
from tacit.noise.randomness import Generators, Purpose, Randomness


@dataclass(frozen=True)
class Cohort:
    """Some clients of a federation in one round, with their randomness.

    `clients` are positions in this federation (and rows of the client-side state). The randomness is addressed by
    the clients' ids, so a silo that runs alone draws what the simulator would have drawn.
    """

    federation: Federation
    """the records of all clients"""
    clients: Tensor
    round: int
    """the number of the round, from 0"""
    randomness: Randomness
    """the source of all random numbers"""
    step: int = 0
    """the local step of the round"""
    steps: int = 1
    """the number of local steps in the round"""
    grams: Grams | None = None
    """products of the clients' records, if they are kept"""
    at: Tensor | None = None
    """(clients, k) coordinates, drawn without looking at the data, if the messages will carry only these"""
    told: Mapping[str, Tensor] = field(default_factory=dict)
    """what the work may use: all that the server sent, and parts of the clients' uplink memory"""

    @property
    def sizes(self) -> Tensor:
        """The number of records of each client."""
        return self.federation.sizes[self.clients]

    @property
    def everyone(self) -> bool:
        """Whether these are all clients of the federation, in order."""
        return len(self.clients) == self.federation.clients

    @property
    def weights(self) -> Tensor | None:
        """Each client's weight, 1 on average over the whole federation; None for 1 each."""
        return None if self.federation.weights is None else self.federation.weights[self.clients]

    def generators(self, purpose: Purpose) -> Generators:
        """One generator per client, for this step."""
        return self._generators(purpose, self.round, self.step)

    def generators_of_run(self, purpose: Purpose) -> Generators:
        """One generator per client, the same in every round and step."""
        return self._generators(purpose, 0, 0)

    def _generators(self, purpose: Purpose, round: int, step: int) -> Generators:
        ids = tuple(self.federation.ids[self.clients].tolist())
        return Generators(self.randomness, purpose, ids, round, step)

    def integers_of_round(
        self, purpose: Purpose, ends: Sequence[int], steps: int, number: int
    ) -> NDArray[np.int64]:
        """The first `number` integers below `ends` of each client in each step: (steps, clients, number)."""
        ids = self.federation.ids[self.clients].tolist()
        return self.randomness.integers(purpose, ends, ids, round=self.round, steps=steps, number=number)

    def public_coin(self, purpose: Purpose, probability: float) -> bool:
        """A coin for this round that all parties know."""
        return bool(self.randomness.generator(purpose, round=self.round).random() < probability)

    def everything(self) -> Batch:
        """All records of these clients."""
        return self.federation.batch(None if self.everyone else self.clients)
