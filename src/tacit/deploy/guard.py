"""Whether a silo takes part in a job, and on which terms: its own policy decides."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from tacit.algorithms.hybrid import protect_clients
from tacit.algorithms.registry import algorithm_entry
from tacit.deploy.final_release import FinalTerms
from tacit.deploy.finals import Final
from tacit.deploy.job import Job
from tacit.deploy.learning import OpenTable
from tacit.deploy.policy import TRUSTED, Policy
from tacit.deploy.site_records import at_site
from tacit.deploy.terms import Terms, split
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy import Target
from tacit.privacy.accountant import accounting
from tacit.privacy.promises.rounding import up_to


def admit(job: Job, policy: Policy, site: str, records: Federation | OpenTable) -> Terms:
    """The terms of a silo, or an error that says why its policy does not allow the job."""
    # Checked before anything is built; of a job that was read, before that (`Job.from_text`).
    policy.check_names(job.recipe)
    table = records if isinstance(records, OpenTable) else None
    if table is None and job.ranges is not None:
        raise RequestError("the job learns ranges from the silos' tables: give the table, not prepared records")
    federation = at_site(job, site, table.wide if table is not None else records)  # type: ignore[arg-type]
    check_trust(job)
    federation, held = _split(job, site, federation)
    policy.check(job, federation.records)
    planned, work = job.most_releases(), job.algorithm.work
    # One pass depends on the number of the round, whoever takes part in it.
    work.sampling.check_rounds(federation.sizes, job.rounds * work.batches_per_round)
    if job.shuffled:
        _check_alike(job, federation)
    target = _target(job, site, federation, planned)
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
    return _with_cost(replace(terms, finals=_finals(terms)))


def _split(job: Job, site: str, records: Federation) -> tuple[Federation, Federation | None]:
    """The records for training and those held back, if enough are left to train on."""
    federation, held = split(job, records)
    if held is not None and federation.records < (least := job.least_records(site)):
        raise RequestError(
            f"the job counts on {least} records at {site} besides those held back for evaluation, "
            f"not {federation.records}: agree on a smaller min_records"
        )
    return federation, held


def _target(job: Job, site: str, federation: Federation, planned: int) -> Target:
    """What the job promises to each record of a site; stricter if the whole site is promised something, too."""
    target, whole = job.target(site), job.client_target()
    if whole is None:
        return target
    stricter = protect_clients(job.algorithm, federation, releases=planned, privacy=target, clients=whole)
    return stricter if isinstance(stricter, Target) else target


def _finals(terms: Terms) -> dict[Final, FinalTerms]:
    """Noise and number of records of everything that is released after the last round."""
    finals = {
        asked.name: FinalTerms(asked.noise_multiplier, terms.records_for(asked.name).records)
        for asked in terms.job.finals
    }
    for asked in terms.job.finals:
        asked.check_size(finals[asked.name].records)
    return finals


def _with_cost(terms: Terms) -> Terms:
    """The terms with what all planned releases cost; refused if the noise of all sites is too little for it."""
    policy = terms.policy
    cost = accounting.epsilon(terms.event(terms.planned), policy.delta, policy.adjacency)
    if terms.job.summed and cost > policy.epsilon:
        raise RequestError(
            "the recipe asks for less noise than the policy: with the noise of all sites, "
            f"{terms.planned} rounds of {terms.records} records cost epsilon = {up_to(cost, 4)} at "
            f"delta = {policy.delta:g}, {policy.adjacency}; the policy allows {policy.epsilon:g}"
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
