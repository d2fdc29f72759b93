"""A game whose adversary also sees what clients release besides their messages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from tacit.engine.audit.game import Game
from tacit.engine.audit.side import SideStage
from tacit.engine.audit.stage import AuditStage, Draws, Tactic
from tacit.noise.randomness import Randomness
from tacit.privacy import Adjacency, Adversary, Unit
from tacit.privacy.accountant.pairs import Array
from tacit.privacy.audit import Attack, Rehearsal, rehearsed_attacks
from tacit.privacy.audit.checks import Counts


@dataclass(frozen=True)
class JointStage:
    """The rounds of a game, then the releases besides it, all with the same canary.

    In a run, a record is either trained on or held back for evaluation. The printed promise charges every record
    for both, so here the canary is in all releases. They are scaled to have noise of the same size, and short
    vectors are filled up with nan.
    """

    game: Game
    sides: tuple[SideStage, ...]

    @property
    def stages(self) -> tuple[AuditStage, ...]:
        """The parts."""
        return self.game, *self.sides

    @property
    def name(self) -> str:
        return " + ".join([self.game.name, *(side.name for side in self.sides)])

    @property
    def adversary(self) -> Adversary:
        return self.game.adversary

    @property
    def unit(self) -> Unit:
        return self.game.unit

    @property
    def adjacency(self) -> Adjacency:
        return self.game.adjacency

    @property
    def records(self) -> int:
        return self.game.records

    @property
    def clients(self) -> int:
        return self.game.clients

    @property
    def messages(self) -> float:
        return self.game.messages

    @property
    def rounds(self) -> int:
        """Number of rounds, and of releases besides them."""
        return self.game.rounds + sum(side.rounds for side in self.sides)

    @property
    def noise(self) -> float:
        return self.game.noise

    @property
    def randomness(self) -> Randomness:
        return self.game.randomness

    @property
    def direction(self) -> Array:
        """The direction of the game, filled up with zeros."""
        longest = max(len(stage.direction) for stage in self.stages)
        return np.pad(self.game.direction, (0, longest - len(self.game.direction)))

    @property
    def tactics(self) -> tuple[Tactic, ...]:
        """The tactics of all parts, each once."""
        every = (tactic for stage in self.stages for tactic in stage.tactics)
        return tuple(dict.fromkeys(every))

    @property
    def followed(self) -> JointStage:
        return replace(self, game=self.game.followed)

    def views(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        return self._joined([stage.views(pulls, first, tactic) for stage in self.stages])

    def hidden(self, views: Array, first: int) -> Array:
        """The views as they are: where messages are mixed, no releases are joined to them."""
        return views

    def bare(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        return self._joined([stage.bare(pulls, first, tactic) for stage in self.stages])

    def signals(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        return self._joined([stage.signals(pulls, first, tactic) for stage in self.stages])

    def draws(self, trials: int, first: int) -> Counts:
        return np.concatenate([stage.draws(trials, first) for stage in self.stages], axis=1)

    def allowed(self, draws: Counts, first: int) -> Array:
        ends = np.cumsum([stage.rounds for stage in self.stages])[:-1]
        each = zip(self.stages, np.split(draws, ends, axis=1), strict=True)
        return np.concatenate([stage.allowed(own, first) for stage, own in each], axis=1)

    @property
    def expected_draws(self) -> Draws | None:
        """The expected draws of the game, in its rounds."""
        expected = self.game.expected_draws
        return None if expected is None else replace(expected, rounds=self.game.rounds)

    @property
    def independent_draws(self) -> bool:
        return self.game.independent_draws

    def attacks(self, rehearsal: Rehearsal) -> dict[str, Attack]:
        return rehearsed_attacks(rehearsal, self.direction)

    def _joined(self, parts: list[Array]) -> Array:
        work, size = self.game.algorithm.work, torch.tensor([self.game.records])
        noise_std = float(work.noise_stds(size, torch.tensor([self.game.noise], dtype=torch.float64))[0])
        scales = [1.0, *(noise_std / (side.noise * side.bound) for side in self.sides)]
        dim = len(self.direction)
        return np.concatenate(
            [
                np.pad(part * scale, ((0, 0), (0, 0), (0, dim - part.shape[2])), constant_values=np.nan)
                for part, scale in zip(parts, scales, strict=True)
            ],
            axis=1,
        )
