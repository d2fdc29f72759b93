"""What an audit needs from releases besides the messages of training, in which every record counts once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from dp_accounting import DpEvent

from tacit.engine.audit.stage import Draws, Tactic
from tacit.noise.randomness import Randomness
from tacit.privacy import Adjacency, Adversary, Unit
from tacit.privacy.accountant.pairs import Array
from tacit.privacy.audit import Attack, Rehearsal, promised_shifts, rehearsed_attacks
from tacit.privacy.audit.checks import Counts


@dataclass(frozen=True)
class SideStage(ABC):
    """One client that releases something `rounds` times, to anyone."""

    make_event: Callable[[float], DpEvent]
    """what all of its releases cost with this noise multiplier"""
    noise: float
    bound: float
    """the most that a record may add to a release"""
    adjacency: Adjacency
    records: int
    rounds: int
    """the number of releases"""
    randomness: Randomness

    unit: ClassVar[Unit] = Unit.RECORD
    clients: ClassVar[int] = 1
    messages: ClassVar[float] = 1.0
    expected_draws: ClassVar[Draws | None] = None
    independent_draws: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of what is released."""

    @property
    def adversary(self) -> Adversary:
        """Who sees it."""
        return Adversary.SERVER

    @property
    def shown(self) -> SideStage:
        """The same to a server that all other clients help."""
        return self

    @property
    def tactics(self) -> tuple[Tactic, ...]:
        """The usual tactic alone."""
        return (Tactic(),)

    @property
    @abstractmethod
    def direction(self) -> Array:
        """The direction in which the canary and its neighbour differ."""

    @abstractmethod
    def views(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        """What clients release, computed by the code that they call: (trials, releases, numbers)."""

    @abstractmethod
    def signals(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        """The same without noise."""

    def bare(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        """The views: nothing is compressed."""
        return self.views(pulls, first, tactic)

    @cached_property
    def event(self) -> DpEvent:
        """What all of its releases cost."""
        return self.make_event(self.noise)

    @property
    def followed(self) -> SideStage:
        """The stage itself, because nothing is mixed."""
        return self

    def hidden(self, views: Array, first: int) -> Array:
        """The views unchanged, because nothing is hidden."""
        return views

    def draws(self, trials: int, first: int) -> Counts:
        """Every record counts in every release."""
        return np.ones((trials, self.rounds), dtype=np.int64)

    def allowed(self, draws: Counts, first: int) -> Array:
        """One bound, or two where the record is replaced by another one."""
        sides = 2.0 if self.adjacency is Adjacency.REPLACE_ONE else 1.0
        return np.asarray(sides * promised_shifts(self.event).drawn * draws, dtype=np.float64)

    def attacks(self, rehearsal: Rehearsal) -> dict[str, Attack]:
        """Attacks by likelihood ratios."""
        return rehearsed_attacks(rehearsal, self.direction)
