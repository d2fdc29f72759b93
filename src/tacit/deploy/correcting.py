"""Correcting a regression in a deployment: after the last round, every silo releases a few noisy sums.

The recipe's `correction` is what the release would cost alone, as a share of epsilon (`tacit.engine.correction`).
The server sends the trained model. A silo answers with the sums of `tacit.side.correction.Moments` over the
records that it trained on. The server adds those of a quorum of silos, as in a round of training, divides by
their number of records, and changes intercept and slopes. That is post-processing. The changed model is what the
run ends with, what is evaluated, and what silos are sent with the request for their certificates.

Guarantee: each record adds a vector of norm at most sqrt(5), or sqrt(7) if noise is small, to the sums at *any*
point, because target and prediction are clipped to the schema's range. A server may send whatever point it likes:
it gets these sums, once in a run, which the run was charged for from the start. The certificate of a run has the
trained model and the silos' parts, so everybody can compute the changed model again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tacit.deploy.final_parts import Gathered
from tacit.deploy.final_release import FinalRelease
from tacit.deploy.finals import Final
from tacit.engine.correction import correction_release, correction_total, plan_correction, why_not
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.models.registry import ENTRY_POINT
from tacit.side.correction import Correction, Moments
from tacit.side.noisy_total import NoisyTotal
from tacit.side.release import NoisyMeans
from tacit.sums.group import SumGroup

if TYPE_CHECKING:
    from tacit.deploy.job import Job


@dataclass(frozen=True)
class JobCorrection(FinalRelease):
    """The correction that a job asks of every site."""

    name = Final.CORRECTION
    way_out = "set correction = 0"

    moments: Moments
    scale: float
    """the target's own unit, in that of the model"""

    @classmethod
    def of(cls, job: Job) -> JobCorrection | None:
        """The correction of a job, or None; refused if the model cannot be corrected, or if that is left open."""
        recipe = job.recipe
        # Without building a model: it may be code that no policy has allowed yet.
        numbers = job.schema is not None and not job.schema.target.classed
        possible = numbers and not (recipe.model or "").startswith(ENTRY_POINT)
        if recipe.correction == 0 or (recipe.correction is None and not possible):
            return None
        if not possible:
            raise RequestError(
                f"correction = {recipe.correction:g}, but it takes a number as target, whose public range a "
                "schema says, and one of tacit's models: set correction = 0"
            )
        blank = job.blank()
        if recipe.correction is None:
            if why_not(recipe, blank, job.parts) is not None:
                return None
            raise RequestError(
                "the recipe leaves open whether the model is corrected after training, which depends on how many "
                "records there are: give min_records, or set correction = 0.2 (0 for no correction)"
            )
        _, made = plan_correction(recipe, blank, job.parts, [job.target(site) for site in job.sites])
        assert made is not None, "an explicit share is planned or refused"
        assert made.target is not None, "every site has a target"
        return cls(
            made.target,
            recipe.noise,
            recipe.seed,
            recipe.stream or "",
            made.trust,
            job.rounds,
            made.moments,
            blank.target_scale,
        )

    @property
    def question(self) -> Moments:
        """What is asked of every record."""
        return self.moments

    def release(self, records: Federation, about: str = "") -> NoisyMeans:
        """What silos with these records send, if the server sees it."""
        return correction_release(self.moments, records, about, self.target, self.own_seed)

    def total(self, about: str = "") -> NoisyTotal:
        """With sums: the release of the sum over all silos."""
        assert self.trust is not None, "only sums have a total"
        clients, honest = self.trust.cohort, self.trust.honest
        return correction_total(self.moments, about, self.target, self.own_seed, clients=clients, honest=honest)

    def read(self, gathered: Gathered, group: SumGroup | None) -> Correction:
        """The correction that the parts of silos call for; `MessageError` if their sum cannot be opened."""
        total, noise_std = self.opened(gathered, group)
        return self.moments.read(total / gathered.records, noise_std / gathered.records)

    def corrected(self, model: Model, point: Tensor, gathered: Gathered, group: SumGroup | None) -> Tensor:
        """The corrected parameters."""
        return self.read(gathered, group).folded(model, point)

    def told(self, gathered: Gathered, group: SumGroup | None) -> dict[str, Any]:
        """As plain data for reports, with the shift in the target's own unit."""
        moved = self.read(gathered, group).to_dict(self.scale)
        return {"epsilon_alone": self.target.epsilon, "records": gathered.records, **moved}
