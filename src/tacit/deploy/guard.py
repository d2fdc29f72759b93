"""The terms on which a silo takes part in a job: its own noise, derived from its own policy and records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from dp_accounting import DpEvent

from tacit.algorithms.hybrid import protect_clients
from tacit.algorithms.registry import algorithm_entry
from tacit.algorithms.trust import Exposure
from tacit.client.work import looked_at, sizes_are_public
from tacit.deploy.final_release import FinalTerms
from tacit.deploy.finals import Final
from tacit.deploy.job import Job
from tacit.deploy.learning import OpenTable, Ranges
from tacit.deploy.ledger_account import Account
from tacit.deploy.policy import TRUSTED, Policy
from tacit.deploy.report import Report
from tacit.deploy.site_records import at_site
from tacit.errors import RequestError, TacitError
from tacit.federation import Federation
from tacit.privacy import Target, events
from tacit.privacy.accountant import accounting
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


def admit(job: Job, policy: Policy, site: str, records: Federation | OpenTable) -> Terms:
    """The terms of a silo, or an error that says why its policy does not allow the job."""
    # Checked before anything is built; of a job that was read, before that (`Job.from_text`).
    policy.check_names(job.recipe)
    table = records if isinstance(records, OpenTable) else None
    if table is None and job.ranges is not None:
        raise RequestError("the job learns ranges from the silos' tables: give the table, not prepared records")
    federation = at_site(job, site, table.wide if table is not None else records)  # type: ignore[arg-type]
    check_trust(job)
    federation, held = split(job, federation)
    if held is not None and federation.records < (least := job.least_records(site)):
        raise RequestError(
            f"the job counts on {least} records at {site} besides those held back for evaluation, "
            f"not {federation.records}"
        )
    policy.check(job, federation.records)
    planned, work = job.most_releases(), job.algorithm.work
    # One pass depends on the number of the round, whoever takes part in it.
    work.sampling.check_rounds(federation.sizes, job.rounds * work.batches_per_round)
    if job.shuffled:
        _check_alike(job, federation)
    target, whole = job.target(site), job.client_target()
    if whole is not None:
        stricter = protect_clients(job.algorithm, federation, releases=planned, privacy=target, clients=whole)
        target = stricter if isinstance(stricter, Target) else target
    report_noise = job.noise.of_reports(target)
    for part, event in job.noise.each_beside(report_noise).items():
        policy.check_beside(part, accounting.epsilon(event, policy.delta, policy.adjacency))
    if job.summed:
        asked = level(job, site, federation.records)
    else:
        asked = _enough(job, policy, target, federation, report_noise)
    std = noise_std(job, federation.records, asked)
    terms = Terms(job, policy, site, federation, planned, asked, std, report_noise, epsilon=math.inf)
    terms = replace(terms, held=held, table=table)
    finals = {
        asked.name: FinalTerms(asked.noise_multiplier, terms.records_for(asked.name).records)
        for asked in job.finals
    }
    for asked_for in job.finals:
        asked_for.check_size(finals[asked_for.name].records)
    terms = replace(terms, finals=finals)
    cost = accounting.epsilon(terms.event(planned), policy.delta, policy.adjacency)
    if job.summed and cost > policy.epsilon:
        raise RequestError(
            f"the recipe asks for less noise than the policy: with the noise of all sites, {planned} rounds "
            f"of {federation.records} records cost epsilon = {up_to(cost, 4)} at delta = {policy.delta:g}, "
            f"{policy.adjacency}; the policy allows {policy.epsilon:g}"
        )
    return replace(terms, epsilon=cost)


def _enough(job: Job, policy: Policy, target: Target, federation: Federation, report_noise: float) -> float:
    """The noise multiplier that the recipe asks for, if it is as much as the policy needs."""
    asked, own = (job.noise.multiplier(one, federation, report_noise) for one in (target, policy.target))
    if asked < own:
        raise RequestError(
            f"the recipe asks for less noise than the policy: a noise multiplier of {asked:.6g}, but "
            f"epsilon = {policy.epsilon:g}, delta = {policy.delta:g}, {policy.adjacency} over "
            f"{job.most_releases()} rounds of {federation.records} records need {own:.6g}"
        )
    return asked


def level(job: Job, site: str, records: int) -> float:
    """With sums: the noise multiplier at which a site of this many records adds as much noise as all others."""
    weights = job.blank().weights
    weight = 1.0 if weights is None else float(weights[job.sites.index(site)])
    return job.noise.share_std / (weight * noise_std(job, records, 1.0))


def noise_std(job: Job, records: int, noise_multiplier: float) -> float:
    """The standard deviation of the noise in a message, before its weight; with sums, that of a share."""
    algorithm = job.algorithm
    share = algorithm.trust.share(torch.tensor([noise_multiplier], dtype=torch.float64), len(job.sites))
    return float(algorithm.work.noise_stds(torch.tensor([records]), share)[0])


def check_trust(job: Job) -> None:
    """Refuse an algorithm that promises nothing, or that relies on a party which a deployment does not have."""
    if not algorithm_entry(job.recipe.algorithm).private:
        raise RequestError(
            f"algorithm {job.recipe.algorithm!r} adds no noise: a silo would send the gradients of its records"
        )
    if job.adversary not in TRUSTED:
        raise RequestError(
            f"algorithm {job.recipe.algorithm!r} protects one {job.unit} against {job.adversary.description}. "
            "Here the server sees every single message, and no aggregator is configured to hide them: use "
            "trust = 'sum', an algorithm that protects each message separately, or adversary = 'server'"
        )
    if job.summed and job.algorithm.trust.quorum and len(job.cohort(0)) != len(job.sites):
        raise RequestError(
            "in a deployment with trust = 'sum' all sites take part in every round, because keys, quorum and "
            "colluding are those of all sites: leave out cohort (only a simulation can have one)"
        )


def _check_alike(job: Job, federation: Federation) -> None:
    """With a shuffler, refuse a number of records that would make the silo's messages stand out."""
    sampling, agreed = job.algorithm.work.sampling, job.blank().sizes[:1]
    if int(sampling.batch_sizes(federation.sizes)[0]) != int(sampling.batch_sizes(agreed)[0]):
        raise RequestError(
            f"{federation.records} records give another batch size than the {int(agreed)} records that the job "
            "assumes: set batch in the recipe to a number of records"
        )
