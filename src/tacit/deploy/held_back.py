"""Private evaluation in a deployment: every silo holds records back, and releases one noisy sum about them.

The recipe's [evaluation] says what is asked (`tacit.engine.evaluation`). A silo answers once in a run, when it is
asked for its certificate: at the model that the server then sends. The sum is written to the ledger before it
leaves, and is in the certificate, signed. Whoever asks again gets the same sum.

Guarantee: a run is charged for its evaluation from the start, whether or not it is ever asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.engine.evaluation import coins_of, hold_back, scoring_of, settings_of, split_strictest
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.noise.additive import build_noise, check_size
from tacit.privacy import Target, Unit
from tacit.side.evaluation import evaluation_release, read_messages
from tacit.side.release import NoisyMeans
from tacit.side.scoring import Scoring

if TYPE_CHECKING:
    from tacit.deploy.job import Job


@dataclass(frozen=True)
class Holding:
    """What a silo states about its evaluation: its noise, and how many records it holds back."""

    noise_multiplier: float
    records: int

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for the ledger and the certificate."""
        return {"noise_multiplier": self.noise_multiplier, "records": self.records}


@dataclass(frozen=True)
class JobEvaluation:
    """The evaluation that a job asks of every site."""

    scoring: Scoring
    share: float
    """of every site's records, to be held back"""
    target: Target
    """what it may cost alone, the same for all sites"""
    noise: str
    coins: int
    """seed of the public coins that choose the records"""

    @classmethod
    def of(cls, job: Job) -> JobEvaluation | None:
        """That of a job, or None; refused if its cost cannot be stated."""
        recipe = job.recipe
        if not recipe.evaluation_settings:
            return None
        if job.unit is not Unit.RECORD or recipe.client_epsilon is not None:
            raise RequestError("an evaluation is accounted per record, not per site: leave out [evaluation]")
        asked = settings_of(recipe)
        target = split_strictest([job.target(site) for site in job.sites], asked)
        return cls(
            scoring_of(asked, job.classes, job.schema), asked["held_back"], target, recipe.noise, coins_of(recipe)
        )

    @cached_property
    def noise_multiplier(self) -> float:
        """The least noise multiplier that keeps the target."""
        return self._release(_nobody()).noise_multiplier

    def event(self, noise_multiplier: float) -> DpEvent:
        """What a silo releases for it."""
        return self._release(_nobody()).event(noise_multiplier)

    def split(self, records: Federation) -> tuple[Federation, Federation]:
        """A site's records for training, and those that it holds back."""
        check_size(build_noise(self.noise), records.records)
        return hold_back(records, self.share, self.coins)

    def measure(self, model: Model, point: Tensor, held: Federation, run: str) -> list[float]:
        """The noisy sum of a silo, at a point."""
        sums = self.scoring.sums(model, point, held.batch())
        noisy: list[float] = self._release(held, run).messages(sums)[0].tolist()
        return noisy

    def read(self, silos: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
        """The evaluation that certificates of silos hold, each and all together; None if no silo gave one.

        Args:
            silos: checked certificates by site. Only those about the same model are read together.
        """
        given = {site: silo for site, silo in silos.items() if "evaluated" in silo}
        if not given:
            return None
        points = [silo["evaluated"]["point"] for silo in given.values()]
        common = max(points, key=points.count)
        given = {site: silo for site, silo in given.items() if silo["evaluated"]["point"] == common}
        sizes = torch.tensor([silo["evaluation"]["records"] for silo in given.values()])
        stds = [silo["evaluation"]["noise_multiplier"] * self.scoring.bound for silo in given.values()]
        sums = torch.tensor([silo["evaluated"]["sums"] for silo in given.values()], dtype=torch.float64)
        told = read_messages(self.scoring, sums, sizes, tuple(given), stds)
        return {
            "epsilon_alone": self.target.epsilon,
            "loss_bound": self.scoring.loss_bound,
            "point": common,
            **told.to_dict(),
        }

    def _release(self, held: Federation, question: str = "") -> NoisyMeans:
        seed = None if build_noise(self.noise).secret else self.coins
        return evaluation_release(self.scoring, held, question, self.target, seed)


def _nobody() -> Federation:
    """A stand-in where a release is only accounted for."""
    return Federation(torch.zeros(1, 1), torch.zeros(1), torch.ones(1, dtype=torch.int64), torch.zeros(1).long())
