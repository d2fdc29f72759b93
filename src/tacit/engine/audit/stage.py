"""What an audit needs from anything that releases data: to play it with a canary, with and without noise."""

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
    """What the adversary does with the choices that are his."""

    others: float = 0.0
    """how far every other record pulls along the canary's direction, in canaries"""
    memory: float = -1.0
    """the level at which clients' memories are kept, while gradients are asked for at level 1; at -1 the server
    reverses all gradients whenever that helps"""
    size: float = 1.0
    """size of the canary, on top of what already exceeds the bound"""
    gaps: bool = False
    """whether the canary's neighbour has gaps, where a release asks which numbers are known"""


@dataclass(frozen=True)
class Draws:
    """How often a canary may contribute to messages."""

    chance: float
    """probability that a message depends on the canary"""
    most: int | None = None
    """limit for a whole run, if there is one"""
    rounds: int | None = None
    """the first rounds, which this is about; None for all"""


class AuditStage(Protocol):
    """Numbered trials. In each, a coin decides whether the canary or its neighbour is there.

    Equal numbers mean equal randomness, so two runs of the same trials differ only in what was changed. Views and
    signals are (trials, rounds, dim). For mixed messages there is an axis for clients before the last, with the
    canary's client first until `hidden` shuffles it.
    """

    @property
    def name(self) -> str:
        """Name of what is audited."""
        ...

    @property
    def adversary(self) -> Adversary:
        """The adversary that is played."""
        ...

    @property
    def unit(self) -> Unit:
        """The unit whose data are guessed."""
        ...

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation of the promise."""
        ...

    @property
    def records(self) -> int:
        """Number of records of the canary's client."""
        ...

    @property
    def clients(self) -> int:
        """Number of clients in one trial."""
        ...

    @property
    def messages(self) -> float:
        """Approximate number of clients of a trial that send a message in a round."""
        ...

    @property
    def rounds(self) -> int:
        """Number of rounds played."""
        ...

    @property
    def noise(self) -> float:
        """The noise that a client adds, in units of the bound."""
        ...

    @property
    def randomness(self) -> Randomness:
        """Source of all randomness."""
        ...

    @property
    def direction(self) -> Array:
        """Direction of the canary, of length one."""
        ...

    @property
    def tactics(self) -> tuple[Tactic, ...]:
        """The tactics worth rehearsing."""
        ...

    @property
    def followed(self) -> AuditStage:
        """The same trials for someone who can pick out the canary's messages where they are only mixed."""
        ...

    def views(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        """What the adversary sees, with nan where nothing is sent."""
        ...

    def hidden(self, views: Array, first: int) -> Array:
        """Views without what the adversary must not know."""
        ...

    def bare(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        """The views before compression rounds anything."""
        ...

    def signals(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        """The views without noise and compression."""
        ...

    def draws(self, trials: int, first: int) -> Counts:
        """How often the canary was drawn for every message: (trials, rounds)."""
        ...

    def allowed(self, draws: Counts, first: int) -> Array:
        """How far canaries drawn this often may move messages, in standard deviations of the noise."""
        ...

    @property
    def expected_draws(self) -> Draws | None:
        """How often a canary may be drawn; None where the promise does not say."""
        ...

    @property
    def independent_draws(self) -> bool:
        """Whether there are other units, drawn independently of the canary."""
        ...

    def attacks(self, rehearsal: Rehearsal) -> dict[str, Attack]:
        """The attacks that the adversary can build from a rehearsal."""
        ...


def pulls_of(present: CoinFlips, adjacency: Adjacency) -> Array:
    """The pull of every canary, or of its neighbour where the canary is absent."""
    return np.where(present, 1.0, -1.0 if adjacency is Adjacency.REPLACE_ONE else 0.0)


def coins_of(randomness: Randomness, number: int, first: int) -> CoinFlips:
    """Fair and independent coins, for canaries numbered from `first`."""
    return randomness.generator(Purpose.DATA, client=first).random(number) < 0.5


def rehearse(stage: AuditStage, tactic: Tactic, number: int, first: int) -> Rehearsal:
    """Plays trials in which the adversary knows everything."""
    present = coins_of(stage.randomness, number, first)
    pulls = pulls_of(present, stage.adjacency)
    return Rehearsal(stage.views(pulls, first, tactic), stage.signals(pulls, first, tactic), present)
