"""How an audit plays a release besides messages: with records of its own, through the code that runs use.

Every trial is a client of its own, so one call of that code plays all of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.algorithms.secure_sum import SecureSum
from tacit.engine.audit.side import SideStage
from tacit.engine.audit.stage import Tactic
from tacit.engine.plan import Plan
from tacit.federation import Federation
from tacit.noise.randomness import Randomness
from tacit.privacy import Adversary, Target
from tacit.privacy.accountant.pairs import Array
from tacit.side.noisy_total import NoisyTotal
from tacit.side.release import NoisyMeans


@dataclass(frozen=True)
class OpenedSums:
    """In place of `NoisyMeans`, where nobody sees a client's part of a sum: every trial is a sum of its own.

    The others in it hold no record, and helpers of the server take their shares of the noise off again.
    """

    total: NoisyTotal
    numbers: tuple[int, ...]
    """of the trials"""
    shares: int
    """how many clients do not help the server"""

    releases: ClassVar[int] = 1

    @property
    def bound(self) -> float:
        """The most that a record may add."""
        return self.total.bound

    @property
    def target(self) -> Target:
        """What it may cost alone, if as many clients as agreed do not help."""
        return self.total.target

    @property
    def noise_multiplier(self) -> float:
        """What the noise of these shares together should be, in bounds."""
        return self.total.noise_multiplier * self._part

    def event(self, noise_multiplier: float) -> DpEvent:
        """What a run is charged for it, with so much noise in these shares."""
        whole = noise_multiplier / self._part
        return self.total.exposed(whole) if self.shares == 1 else self.total.event(whole)

    def messages(self, sums: Tensor, release: int = 0) -> Tensor:
        """The opened sum of every trial, as the simulator makes it."""
        each = zip(sums, self.numbers, strict=True)
        return torch.stack([self.total.with_shares(row, self.shares, number) for row, number in each])

    @property
    def _part(self) -> float:
        """These shares' part of the noise that is promised."""
        return math.sqrt(self.shares / self.total.honest)


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
    trust: SecureSum | None = field(default=None, kw_only=True)
    """if only the sum over all clients is opened: with whom"""
    everyone_helps: bool = field(default=False, kw_only=True)
    """whether all other clients of a sum help the server"""

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
    def release(self, clients: Federation, question: str, seed: int | None) -> NoisyMeans | OpenedSums:
        """What these clients release."""

    def opened(self, total: NoisyTotal, clients: Federation) -> OpenedSums:
        """The sums that these clients are in, one for each."""
        shares = 1 if self.everyone_helps else total.honest
        return OpenedSums(total, tuple(clients.ids.tolist()), shares)

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
    def adversary(self) -> Adversary:
        sums = self.played.trust is not None and not self.played.everyone_helps
        return Adversary.SECURE_SUM if sums else Adversary.SERVER

    @property
    def shown(self) -> ReleaseStage:
        if self.played.trust is None:
            return self
        played = replace(self.played, everyone_helps=True)
        return self.of(played, self.records, self.randomness, self.seed)

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
