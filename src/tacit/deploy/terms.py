"""The terms on which a silo takes part in a job: its own noise, derived from its own policy and records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dp_accounting import DpEvent

from tacit.algorithms.trust import Exposure
from tacit.client.work import looked_at, sizes_are_public
from tacit.deploy.final_release import FinalTerms
from tacit.deploy.finals import Final
from tacit.deploy.job import Job
from tacit.deploy.learning import OpenTable, Ranges
from tacit.deploy.ledger_account import Account
from tacit.deploy.policy import Policy
from tacit.deploy.report import Report
from tacit.deploy.site_records import at_site
from tacit.errors import TacitError
from tacit.federation import Federation
from tacit.privacy import events
from tacit.privacy.accountant.composition import CannotAnswerError
from tacit.privacy.accountant.filter import least_epsilon
from tacit.privacy.accountant.groups import group_epsilon
from tacit.privacy.promises.rounding import up_to
from tacit.privacy.promises.terms import RECORD_COUNTS
from tacit.server.participation import Attendance


@dataclass(frozen=True)
class Terms:
    """The terms that a silo fixes before it answers anybody.

    Guarantee: with this noise, all `planned` releases of a run keep the policy's (epsilon, delta). The noise is
    derived from the policy, the recipe and the silo's own number of records; no request can change it.
    """

    job: Job
    policy: Policy
    site: str
    federation: Federation
    planned: int
    noise_multiplier: float
    noise_std: float
    report_noise: float
    """the noise multiplier of its reports; 0 if there are none"""
    epsilon: float
    """the cost of all planned releases, at the policy's delta"""
    finals: Mapping[Final, FinalTerms] = field(default_factory=dict)
    """noise and number of records of the final releases that the job asks for"""
    held: Federation | None = None
    """the records that it holds back for an evaluation"""
    table: OpenTable | None = None
    """its table, if ranges are learned first; `federation` and `held` then have the widest ranges"""

    @property
    def records(self) -> int:
        """The number of records of the silo: public, unless whole sites are protected."""
        return self.federation.records

    def records_for(self, final: Final) -> Federation:
        """The records that a final release is about: those held back for an evaluation, or those of training."""
        if final is Final.EVALUATION:
            assert self.held is not None, "a job that asks for an evaluation has records held back"
            return self.held
        return self.federation

    def closed(self, ranges: Ranges) -> Terms:
        """The same terms with the records as these ranges prepare them."""
        assert self.table is not None, "only a table can be prepared again"
        federation, held = split(self.job, at_site(self.job, self.site, self.table.closed(ranges)))
        return replace(self, federation=federation, held=held, table=None)

    def event(self, releases: int) -> DpEvent:
        """The accountant's event for this many releases of one run."""
        algorithm = self.job.algorithm
        return self._with_reports(
            algorithm.trust.event(
                algorithm.work, len(self.job.sites), self.records, self.noise_multiplier, releases
            ),
            releases,
        )

    def _with_reports(self, event: DpEvent, releases: int, *, exposed: bool = False) -> DpEvent:
        report, parts = self.job.report, [event]
        if report is not None and report.reports(releases):
            parts.append(report.event(self.report_noise, releases, self.job.noise.kind))
        for asked in self.job.finals:
            multiplier = self.finals[asked.name].noise_multiplier
            parts.append((asked.exposed if exposed else asked.event)(multiplier))
        if self.job.ranges is not None:
            parts.append(self.job.ranges.event)
        return event if len(parts) == 1 else events.composed(parts)

    def refusal(self, account: Account) -> str | None:
        """Why the runs of a ledger exceed the policy, or the job's promise to the whole site; None if not.

        All runs count in full, however far they got: whoever stopped a run may have seen what it released.
        """
        target, runs = self.policy.target, account.events()
        try:
            needed = least_epsilon(runs, target.delta, target.adjacency)
        except TacitError as error:
            return f"there is no proof for the {len(runs)} runs of this ledger together: {error}"
        if needed > target.epsilon:
            return (
                f"the {len(runs)} runs of this ledger, each charged in full, need epsilon = {up_to(needed, 4)} "
                f"at delta = {target.delta:g}; the policy allows {target.epsilon:g}"
            )
        return self._refusal_of_site(account.events(job=self.job.digest))

    def _refusal_of_site(self, runs: list[DpEvent]) -> str | None:
        """Why the runs of a job exceed its promise to the whole site, which covers them all; None if not.

        If all runs are identical, a server can choose nothing but their number, so they compose.
        """
        whole = self.job.client_target()
        if whole is None:
            return None
        if any(events.to_dict(run) != events.to_dict(runs[0]) for run in runs):
            return (
                "this job was run with another number of records, but its promise to the whole site requires "
                "identical runs: agree on a new job"
            )
        try:
            needed = group_epsilon(
                events.repeated(runs[0], len(runs)), self.records, whole.delta, whole.adjacency
            )
        except CannotAnswerError as error:
            return f"there is no proof of the promise to the whole site for {len(runs)} runs: {error}"
        if needed <= whole.epsilon:
            return None
        return (
            f"{len(runs)} runs of this job cost the whole site epsilon = {up_to(needed, 4)}; the job promises "
            f"client_epsilon = {whole.epsilon:g}"
        )

    def exposures(self, releases: int) -> tuple[Exposure, ...]:
        """What the releases reveal to adversaries who see more than the promise assumes."""
        algorithm, sites = self.job.algorithm, len(self.job.sites)
        attended = Attendance(self.job.rounds, releases)
        seen = algorithm.trust.exposures(algorithm.work, sites, self.records, self.noise_multiplier, attended)
        return tuple(replace(one, event=self._with_reports(one.event, releases, exposed=True)) for one in seen)

    def opening(self, run: str) -> dict[str, Any]:
        """The ledger line that starts a run on these terms, with everything that the run may release."""
        planned = events.to_dict(self.event(self.planned))
        seen = {str(one.adversary): events.to_dict(one.event) for one in self.exposures(self.planned)}
        beside = {"beside": seen} if seen else {}
        return {"kind": "open", "run": run, "job": self.job.digest, **self.facts(), "event": planned, **beside}

    def facts(self) -> dict[str, Any]:
        """These terms as plain values, for the ledger and the certificate."""
        work, trust, recipe = self.job.algorithm.work, self.job.algorithm.trust, self.job.recipe
        return {
            "algorithm": recipe.algorithm,
            "model": recipe.model,
            "unit": str(self.policy.unit),
            "adversary": str(self.job.adversary),
            "adjacency": str(self.policy.adjacency),
            "sampling": work.sampling.name,
            **self._sizes(),
            "bound": self.job.bound[0],
            "clip_norm": self.job.bound[1],
            "noise": work.noise.name,
            "noise_multiplier": self.noise_multiplier,
            "noise_std": self.noise_std,
            **({"quorum": trust.quorum, "colluding": trust.colluding} if self.job.summed else {}),
            "rounds_planned": self.planned,
            **({} if self.job.report is None else {"report": self._report_facts(self.job.report)}),
            **{str(name): terms.to_dict() for name, terms in self.finals.items()},
            **({} if self.job.ranges is None else {"ranges": self.job.ranges.facts()}),
            "insecure_reproducible": self.job.insecure,
        }

    def _sizes(self) -> dict[str, Any]:
        work = self.job.algorithm.work
        if not sizes_are_public(work):
            return {}
        return {"records": self.records, "sampling_rate": work.sampling.rate(self.records)}

    @property
    def public(self) -> tuple[str, ...]:
        """What the promise treats as public."""
        work, policy = self.job.algorithm.work, self.policy
        sizes: tuple[str, ...] = ()
        if policy.public_sizes:
            # Revealed by this run, or by another run in the ledger, which the same promise covers.
            sizes = (RECORD_COUNTS,)
        elif not sizes_are_public(work) and (
            (least := max(policy.min_records, self.job.least_records(self.site))) > 1
        ):
            # A site with fewer records would not take part.
            sizes = (f"that the site has at least {least} records",)
        looked = looked_at(work, self.federation)
        return tuple(dict.fromkeys((*work.public, *sizes, *looked, *getattr(work.model, "public", ()))))

    def _report_facts(self, report: Report) -> dict[str, Any]:
        return {**vars(report), "noise_multiplier": self.report_noise}


def split(job: Job, records: Federation) -> tuple[Federation, Federation | None]:
    """A site's records for training, and those that it holds back for an evaluation, if any."""
    return (records, None) if job.evaluation is None else job.evaluation.split(records)
