"""How an audit plays a release besides messages: with records of its own, through the code that runs use.

Every trial is a client of its own, so one call of that code plays all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from tacit.engine.audit.side import SideStage
from tacit.engine.audit.stage import Tactic
from tacit.engine.plan import Plan
from tacit.federation import Federation
from tacit.noise.randomness import Randomness
from tacit.privacy import Target
from tacit.privacy.accountant.pairs import Array
from tacit.side.release import NoisyMeans


class Bare:
    """In place of `NoisyMeans`, to see what is released without noise."""

    def messages(self, sums: Tensor, release: int = 0) -> Tensor:
        """The sums as they are."""
        return sums


@dataclass(frozen=True)
class Played(ABC):
    """A kind of release: the records with which it is played, and the code of a run that releases them."""

    target: Target
    """what it may cost alone"""

    name: ClassVar[str]
    tactics: ClassVar[tuple[Tactic, ...]] = (Tactic(),)

    @classmethod
    @abstractmethod
    def planned(cls, plan: Plan, seed: int | None) -> Self | None:
        """As this plan releases it; None if it does not, and an error if that cannot be played."""

    @abstractmethod
    def records(self, tactic: Tactic) -> tuple[Array, Array, Array]:
        """The canary, its neighbour, and any other record, each as a row of numbers."""

    @abstractmethod
    def clients(self, rows: Array, sizes: Tensor, ids: Tensor) -> Federation:
        """The clients that hold these records."""

    @abstractmethod
    def release(self, clients: Federation, question: str, seed: int | None) -> NoisyMeans:
        """What these clients release."""

    @abstractmethod
    def messages(self, clients: Federation, rows: Array, release: Any) -> list[Tensor]:
        """What these clients send, from the code that runs use; `release` is their release, or `Bare`."""


@dataclass(frozen=True)
class ReleaseStage(SideStage):
    """Clients that hold a canary, or its neighbour, and one other record, and release something about them."""

    played: Played
    seed: int | None

    @classmethod
    def of(cls, played: Played, records: int, randomness: Randomness, seed: int | None) -> ReleaseStage:
        """The stage of a release by clients with so many records."""
        nobody = Federation(torch.zeros(1, 1), torch.zeros(1), torch.ones(1).long(), torch.zeros(1).long())
        release = played.release(nobody, "", seed)
        return cls(
            make_event=release.event,
            noise=release.noise_multiplier,
            bound=release.bound,
            adjacency=release.target.adjacency,
            records=records,
            rounds=release.releases,
            randomness=randomness,
            played=played,
            seed=seed,
        )

    @property
    def name(self) -> str:
        return self.played.name

    @property
    def tactics(self) -> tuple[Tactic, ...]:
        return self.played.tactics

    @cached_property
    def direction(self) -> Array:
        """From the neighbour to the canary, in the last release."""
        one, other = self.signals(np.array([1.0, -1.0]), 0, Tactic())[:, -1]
        return np.asarray((one - other) / np.linalg.norm(one - other))

    def views(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        rows, clients = self._held(pulls, first, tactic)
        release = self.played.release(clients, "audit", self.seed)
        return torch.stack(self.played.messages(clients, rows, release), 1).numpy()

    def signals(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        rows, clients = self._held(pulls, first, tactic)
        return torch.stack(self.played.messages(clients, rows, Bare()), 1).numpy()

    def _held(self, pulls: Array, first: int, tactic: Tactic) -> tuple[Array, Federation]:
        """The rows of all trials, and one client for each; a pull of 0 is no canary at all."""
        canary, neighbour, other = self.played.records(tactic)
        ones = np.where((pulls > 0)[:, None], canary, neighbour)
        there = np.stack([pulls != 0, np.ones(len(pulls), dtype=bool)], axis=1)
        rows = np.stack([ones, np.broadcast_to(other, ones.shape)], axis=1)[there]
        ids = torch.arange(first, first + len(pulls))
        return rows, self.played.clients(rows, torch.from_numpy(there.sum(1)), ids)
