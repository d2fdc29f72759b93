"""How much noise the messages of a deployed job need, and what sites release besides them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dp_accounting import DpEvent

from tacit.algorithms.calibrate import Calibration, calibrate
from tacit.algorithms.trust import Travel
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.noise.additive import Noise, build_noise
from tacit.privacy import Target, events

if TYPE_CHECKING:
    from tacit.deploy.job import Job


@dataclass(frozen=True)
class JobNoise:
    """The noise that the promises of a job need. It is derived from the job and numbers of records alone."""

    job: Job

    def targets(self) -> list[Target]:
        """What is promised to every site, if that can be accounted for."""
        targets = [self.job.target(site) for site in self.job.sites]
        if len(set(targets)) > 1 and self.job.shuffled:
            # If another silo adds less noise than a silo assumes, it hides that silo less than is accounted for.
            raise RequestError("this promise is about all sites together: give one epsilon and delta for all")
        if len(set(targets)) > 1 and self.job.summed and self.job.report is not None:
            raise RequestError(
                "with trust = 'sum' all sites add the noise of the one that needs the most, which depends on the "
                "noise of every site's reports: give one epsilon and delta for all sites, or leave out report"
            )
        return targets

    @cached_property
    def shares(self) -> Calibration:
        """With sums: the noise of every site, if each has the least number of records that the job states for it.

        It serves the site that needs the most; those with a larger budget spend less than they allow.
        """
        targets = self.targets()
        return calibrate(
            self.job.parts,
            self.job.blank(),
            releases=self.job.most_releases(),
            privacy=targets,
            also=self.beside(self.of_reports(targets[0])),
        )

    @cached_property
    def share_std(self) -> float:
        """With sums: the standard deviation that every site adds to a coordinate of the sum.

        As much as the site needs that needs the most, so that each hides the records of all others.
        """
        weights = self.job.blank().weights
        return float((self.shares.noise_stds * (1.0 if weights is None else weights.double())).max())

    def multiplier(self, target: Target, records: Federation, report_noise: float) -> float:
        """The least noise with which all messages of a site, and its reports, keep the target.

        Behind a shuffler, this is that of a site with the least number of records that the job states, whatever
        the records. The target may be that of a policy, which allows for more than any job may ask.
        """
        found = calibrate(
            self.job.parts,
            self.job.blank() if self.job.shuffled else records,
            releases=self.job.most_releases(),
            privacy=target,
            also=self.beside(report_noise),
        )
        return float(found.noise_multipliers[0])

    def beside(self, noise_multiplier: float) -> DpEvent | None:
        """The event of what a site releases besides messages, if it releases anything."""
        parts = list(self.each_beside(noise_multiplier).values())
        return events.composed(parts) if len(parts) > 1 else next(iter(parts), None)

    def each_beside(self, noise_multiplier: float) -> dict[str, DpEvent]:
        """The events of loss reports, final releases and ranges, if any, by the names that policies give them."""
        found: dict[str, DpEvent] = {}
        if (reports := self._loss_reports(noise_multiplier)) is not None:
            found["report"] = reports
        found |= {str(one.name): one.event(one.noise_multiplier) for one in self.job.finals}
        if self.job.ranges is not None:
            found["ranges"] = self.job.ranges.event
        return found

    def _loss_reports(self, noise_multiplier: float) -> DpEvent | None:
        """The event of all loss reports of a site, if it sends any."""
        if self.job.report is None:
            return None
        if self.job.parts.travel is Travel.COUNTED:
            raise RequestError(
                f"no accountant can add reports to the coins of {self.job.recipe.algorithm!r}: leave report out"
            )
        return self.job.report.event(noise_multiplier, self.job.most_releases(), self.kind)

    def of_reports(self, target: Target) -> float:
        """The noise multiplier of reports; 0 if there are none."""
        if self.job.report is None:
            return 0.0
        return self.job.report.noise_multiplier(self.job.most_releases(), target, self.kind)

    @property
    def kind(self) -> Noise:
        """The kind of noise that reports have, which is the recipe's."""
        return build_noise(self.job.recipe.noise)
