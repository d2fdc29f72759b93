"""Private evaluation in a deployment: every silo holds records back, and releases one noisy sum about them.

The recipe's [evaluation] says what is asked (`tacit.engine.evaluation`). With secure sums, only the sum over all
silos is opened (`tacit.deploy.evaluation_sum`). Without them, a silo answers once in a run, when it is
asked for its certificate: at the model that the server then sends. The sum is written to the ledger before it
leaves, and is in the certificate, signed. Whoever asks again gets the same sum.

Guarantee: a run is charged for its evaluation from the start, whether or not it is ever asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.algorithms.secure_sum import SecureSum
from tacit.deploy.evaluation_sum import OpenedEvaluation
from tacit.engine.choices import secure_sum_of
from tacit.engine.evaluation import coins_of, hold_back, scoring_of, settings_of
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.noise.additive import build_noise, check_size
from tacit.privacy import Target, Unit
from tacit.side.budget import split_target
from tacit.side.evaluation import (
    evaluation_messages,
    evaluation_release,
    read_messages,
    read_total,
    total_release,
)
from tacit.side.noisy_total import NoisyTotal
from tacit.side.release import NoisyMeans
from tacit.side.scoring import Scoring
from tacit.sums.arithmetic import Residues
from tacit.sums.encoding import Encoding
from tacit.sums.group import SumGroup

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
    trust: SecureSum | None = None
    """if only the sum over all silos is opened: with whom"""

    @classmethod
    def of(cls, job: Job) -> JobEvaluation | None:
        """The evaluation of a job, or None; refused if its cost cannot be stated."""
        recipe = job.recipe
        if not recipe.evaluation_settings:
            return None
        if job.unit is not Unit.RECORD or recipe.client_epsilon is not None:
            raise RequestError("an evaluation is accounted per record, not per site: leave out [evaluation]")
        asked = settings_of(recipe)
        target = split_target([job.target(site) for site in job.sites], float(asked["epsilon_share"]))
        return cls(
            scoring_of(asked, job.classes, job.schema),
            asked["held_back"],
            target,
            recipe.noise,
            coins_of(recipe),
            secure_sum_of(recipe, len(job.sites)),
        )

    @cached_property
    def noise_multiplier(self) -> float:
        """The least noise multiplier that keeps the target; with sums, that of all honest shares together."""
        return (self._release(_nobody()) if self.trust is None else self.total()).noise_multiplier

    def event(self, noise_multiplier: float) -> DpEvent:
        """What a silo releases for it."""
        return (self._release(_nobody()) if self.trust is None else self.total()).event(noise_multiplier)

    def exposed(self, noise_multiplier: float) -> DpEvent:
        """The same if all other silos help the server."""
        return self.event(noise_multiplier) if self.trust is None else self.total().exposed(noise_multiplier)

    def total(self, run: str = "") -> NoisyTotal:
        """With sums: the release of the sum over all silos."""
        assert self.trust is not None, "only sums have a total"
        return total_release(
            self.scoring, run, self.target, self._seed, clients=self.trust.cohort, honest=self.trust.honest
        )

    @cached_property
    def encoding(self) -> Encoding:
        """How a silo's part becomes integers modulo 2^32."""
        total = self.total()
        return Encoding.of_total(total.share_std, total.share_multiplier, total.noise.slack, total.dim)

    def integers(self, model: Model, point: Tensor, held: Federation, run: str, client: int) -> Residues:
        """With sums: what a silo adds, with its share of the noise."""
        sums = self.scoring.sums(model, point, held.batch())[0]
        total = self.total(run)
        return self.encoding.encode(sums, total.noise, total.generators(client))

    def split(self, records: Federation) -> tuple[Federation, Federation]:
        """A site's records for training, and those that it holds back."""
        check_size(build_noise(self.noise), records.records)
        kept, held = hold_back(records, self.share, self.coins)
        if self.trust is not None and held.records * self.trust.cohort > 2**30 * self.encoding.ring.step:
            raise RequestError(
                f"{held.records} records held back at each of {self.trust.cohort} sites could make the sum of "
                "the evaluation wrap around: lower evaluation.held_back"
            )
        return kept, held

    def measure(self, model: Model, point: Tensor, held: Federation, run: str) -> list[float]:
        """The noisy sum of a silo, at a point."""
        release = self._release(held, run)
        noisy: list[float] = evaluation_messages(release, model, point, held, self.scoring)[0].tolist()
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
        return {**self._head(common), **told.to_dict()}

    def read_sum(self, opened: OpenedEvaluation, group: SumGroup) -> dict[str, Any]:
        """The evaluation that an opened sum is; `MessageError` if it is not the sum of what its silos sent."""
        steps = self.encoding.ring.lifted(opened.total(group))
        records = sum(part.records for part in opened.parts.values())
        noise_std = self.encoding.noise_std * math.sqrt(len(opened.parts))
        told = read_total(self.scoring, self.encoding.from_steps(steps), records, noise_std)
        return {**self._head(opened.point), **told.to_dict()}

    def _head(self, point: str) -> dict[str, Any]:
        return {"epsilon_alone": self.target.epsilon, "loss_bound": self.scoring.loss_bound, "point": point}

    def _release(self, held: Federation, question: str = "") -> NoisyMeans:
        return evaluation_release(self.scoring, held, question, self.target, self._seed)

    @property
    def _seed(self) -> int | None:
        return None if build_noise(self.noise).secret else self.coins


def _nobody() -> Federation:
    """A stand-in where a release is only accounted for."""
    return Federation(torch.zeros(1, 1), torch.zeros(1), torch.ones(1, dtype=torch.int64), torch.zeros(1).long())
