"""What an audit needs of anything that releases: play it with a canary, with and without noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Adjacency, Adversary, Unit
from tacit.privacy.accountant.pairs import Array
from tacit.privacy.audit import Attack, Rehearsal
from tacit.privacy.audit.checks import Counts

CoinFlips = NDArray[np.bool_]


@dataclass(frozen=True)
class Tactic:
    """What the adversary does with what is his to choose."""

    others: float = 0.0
    """how far every other record pulls along the canary's direction, in canaries"""
    memory: float = -1.0
    """the level at which clients' memories are kept, while they are asked for gradients at level 1; at -1 the
    server turns all gradients around whenever it helps"""
    size: float = 1.0
    """how large the canary is, beyond what already exceeds the bound"""


@dataclass(frozen=True)
class Draws:
    """How often a canary may have a part in messages."""

    chance: float
    """with which a message depends on it at all"""
    most: int | None = None
    """in a whole run, if there is a limit"""


class AuditStage(Protocol):
    """Trials, numbered from some first one: in each a coin decides whether the canary or its neighbour is there.

    Equal numbers stand for equal randomness, so that two runs of the same trials differ only in what was changed.
    Views and signals are (trials, rounds, dim); where messages are mixed, an axis for clients stands before the
    last, and the canary's client is the first there until `hidden` takes that away.
    """

    @property
    def name(self) -> str:
        """What is audited."""
        ...

    @property
    def adversary(self) -> Adversary:
        """Who is played."""
        ...

    @property
    def unit(self) -> Unit:
        """Whose data are guessed."""
        ...

    @property
    def adjacency(self) -> Adjacency:
        """Between which neighbours."""
        ...

    @property
    def records(self) -> int:
        """Of the canary's client."""
        ...

    @property
    def clients(self) -> int:
        """Of one trial."""
        ...

    @property
    def messages(self) -> float:
        """About how many of them send something in a round."""
        ...

    @property
    def rounds(self) -> int:
        """That are played."""
        ...

    @property
    def noise(self) -> float:
        """How many bounds of noise a client adds."""
        ...

    @property
    def randomness(self) -> Randomness:
        """Of everything."""
        ...

    @property
    def direction(self) -> Array:
        """The canary's, of length one."""
        ...

    @property
    def tactics(self) -> tuple[Tactic, ...]:
        """Those worth rehearsing."""
        ...

    @property
    def followed(self) -> AuditStage:
        """The same trials to someone who can tell the canary's messages from others where they are only mixed."""
        ...

    def views(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        """What is sent, as the adversary reads it; nan where nothing is."""
        ...

    def hidden(self, views: Array, first: int) -> Array:
        """Views without what the adversary must not know."""
        ...

    def bare(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        """The same before compression rounds anything."""
        ...

    def signals(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        """The same without noise and compression."""
        ...

    def draws(self, trials: int, first: int) -> Counts:
        """How often the canary was drawn for every message: (trials, rounds)."""
        ...

    def allowed(self, draws: Counts, first: int) -> Array:
        """How far canaries may move messages for which they were drawn so often, in the noise's deviations."""
        ...

    @property
    def expected_draws(self) -> Draws | None:
        """How often a canary may be drawn; None where the promise does not say."""
        ...

    @property
    def independent_draws(self) -> bool:
        """Whether others, of whom there are some, are drawn independently of the canary."""
        ...

    def attacks(self, rehearsal: Rehearsal) -> dict[str, Attack]:
        """What the adversary can make of a rehearsal."""
        ...


def pulls_of(present: CoinFlips, adjacency: Adjacency) -> Array:
    """How far canaries pull: their own way, or their neighbour's."""
    return np.where(present, 1.0, -1.0 if adjacency is Adjacency.REPLACE_ONE else 0.0)


def coins_of(randomness: Randomness, number: int, first: int) -> CoinFlips:
    """Fair and independent, for canaries numbered from `first`."""
    return randomness.generator(Purpose.DATA, client=first).random(number) < 0.5


def rehearse(stage: AuditStage, tactic: Tactic, number: int, first: int) -> Rehearsal:
    """Trials in which everything is known."""
    present = coins_of(stage.randomness, number, first)
    pulls = pulls_of(present, stage.adjacency)
    return Rehearsal(stage.views(pulls, first, tactic), stage.signals(pulls, first, tactic), present)
