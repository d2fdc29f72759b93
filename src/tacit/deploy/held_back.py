"""Private evaluation in a deployment: every silo holds records back, and releases one noisy sum about them.

The recipe's [evaluation] says what is asked (`tacit.engine.evaluation`). With secure sums, only the sum over all
silos is opened (`tacit.deploy.final_parts`). Without them, a silo answers when it is asked for its certificate:
at the model that the server then sends. The sum is in the certificate, signed. Whoever asks again gets the same
sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tacit.deploy.final_parts import Gathered
from tacit.deploy.final_release import FinalRelease
from tacit.deploy.finals import Final
from tacit.engine.choices import secure_sum_of
from tacit.engine.evaluation import coins_of, hold_back, scoring_of, settings_of, target_of
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy import Unit
from tacit.side.evaluation import evaluation_release, read_messages, read_total, total_release
from tacit.side.noisy_total import NoisyTotal
from tacit.side.release import NoisyMeans
from tacit.side.scoring import Scoring
from tacit.sums.group import SumGroup

if TYPE_CHECKING:
    from tacit.deploy.job import Job


@dataclass(frozen=True)
class JobEvaluation(FinalRelease):
    """The evaluation that a job asks of every site."""

    name = Final.EVALUATION
    way_out = "lower evaluation.held_back"

    scoring: Scoring
    share: float
    """of every site's records, to be held back"""
    coins: int
    """the seed of the public coins that choose them"""

    @classmethod
    def of(cls, job: Job) -> JobEvaluation | None:
        """The evaluation of a job, or None; refused if its cost cannot be stated."""
        recipe = job.recipe
        if not recipe.evaluation_settings:
            return None
        if job.unit is not Unit.RECORD or recipe.client_epsilon is not None:
            raise RequestError("an evaluation is accounted per record, not per site: leave out [evaluation]")
        asked = settings_of(recipe)
        return cls(
            target_of(asked, [job.target(site) for site in job.sites]),
            recipe.noise,
            recipe.seed,
            recipe.stream or "",
            secure_sum_of(recipe, len(job.sites)),
            job.rounds + (job.correction is not None),
            scoring_of(asked, job.blank(), recipe.model),
            asked["held_back"],
            coins_of(recipe),
        )

    @property
    def question(self) -> Scoring:
        """What is asked of every record."""
        return self.scoring

    def release(self, records: Federation, about: str = "") -> NoisyMeans:
        """What silos with these records send, if the server sees it."""
        return evaluation_release(self.scoring, records, about, self.target, self.own_seed)

    def total(self, about: str = "") -> NoisyTotal:
        """With sums: the release of the sum over all silos."""
        assert self.trust is not None, "only sums have a total"
        clients, honest = self.trust.cohort, self.trust.honest
        return total_release(self.scoring, about, self.target, self.own_seed, clients=clients, honest=honest)

    def split(self, records: Federation) -> tuple[Federation, Federation]:
        """A site's records for training, and those that it holds back."""
        kept, held = hold_back(records, self.share, self.coins)
        self.check_size(held.records)
        return kept, held

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

    def read_sum(self, gathered: Gathered, group: SumGroup) -> dict[str, Any]:
        """The evaluation that an opened sum is; `MessageError` if it is not the sum of what its silos sent."""
        total, noise_std = self.opened(gathered, group)
        told = read_total(self.scoring, total, gathered.records, noise_std)
        return {**self._head(gathered.point), **told.to_dict()}

    def _head(self, point: str) -> dict[str, Any]:
        return {"epsilon_alone": self.target.epsilon, **self.scoring.told, "point": point}
