"""What a silo states in its certificate, and everything that follows from it.

A silo states what only it can know: its number of records, the noise that it drew, the totals of its ledger, and
the points at which it was asked. It says nothing about the final model, because only the server saw how it was
made. Everything else in its certificate, each number and each sentence, is computed from that and from the job by
`Stated.body`. To check a certificate, one reads what is stated (`read_stated`) and recomputes the rest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dp_accounting import DpEvent

from tacit.deploy.claims import accountant, claims, whole_site
from tacit.deploy.final_release import FinalTerms
from tacit.deploy.finals import Final
from tacit.deploy.guard import level, noise_std
from tacit.deploy.job import Job
from tacit.deploy.policy import Policy
from tacit.deploy.spent import Spent, finals_in, learned_in
from tacit.deploy.terms import Terms
from tacit.errors import RequestError
from tacit.privacy import Adjacency, Adversary, events
from tacit.privacy.accountant.groups import group_epsilon
from tacit.privacy.promises.terms import weakest

LEDGER_FILE = "ledger.jsonl"
_SLACK = 1e-6
"""How much less noise than recomputed is accepted, relatively: other processors round differently."""
ONLY_STATED = {
    "accountant": "which software it used to compute its epsilons",
    "events.collaboration": "that no run is missing from its ledger",
    "corrected": "that these sums for a correction are of its records, with this noise",
    "evaluated": "that these sums are of records that it held back, with this noise",
    "learned": "that its sums for these ranges are of its records, with this noise",
    "ledger": "that it keeps no other ledger",
    "noise_multiplier": "that it really added noise with this multiplier",
    "points": "that the server asked it at these points and no others",
    "policy": "that these are the limits of its own policy",
    "public": "that preparing its data used no other statistics of the records",
    "records": "how many records it holds",
    "witnessed": "that it reports every ledger head it saw of other silos",
}
"""What nobody else can check. Certificates and `tacit verify` label it as such."""


@dataclass(frozen=True)
class _StatedTerms(Terms):
    """A silo's terms as they follow from its certificate, without its records."""

    stated_records: int = 1

    @property
    def records(self) -> int:
        """The number of records that the silo states."""
        return self.stated_records


@dataclass(frozen=True)
class Stated:
    """What a silo states about one run."""

    site: str
    run: str
    records: int | None
    """None if the number of records is protected"""
    noise_multiplier: float
    report_noise: float
    epsilon: float
    """of its policy, like delta and adjacency"""
    delta: float
    adjacency: Adjacency
    also_public: tuple[str, ...]
    """what its promise takes as public besides what the job does: looks at its data, or its number of records"""
    spent: Spent
    witnessed: Mapping[str, Any]
    """the heads of other silos' ledgers that it has seen"""
    files: Mapping[str, str]
    accountant: Mapping[str, str]
    finals: Mapping[Final, FinalTerms] = field(default_factory=dict)
    made: Mapping[Final, Mapping[str, Any]] = field(default_factory=dict)
    """point and sums of the run's final releases that were made"""
    learned: Mapping[str, Any] | None = None
    """the ranges that its records were prepared with, and the digest of what they follow from"""

    @classmethod
    def by(cls, terms: Terms, exported: bytes, run: str, witnessed: Mapping[str, Any]) -> Stated:
        """What a silo with this ledger has to state."""
        policy = terms.policy
        return cls(
            terms.site,
            run,
            terms.facts().get("records"),
            terms.noise_multiplier,
            terms.report_noise,
            policy.epsilon,
            policy.delta,
            policy.adjacency,
            terms.public[len(terms.job.algorithm.work.public) :],
            Spent.read(exported, run, policy.epsilon),
            witnessed,
            {LEDGER_FILE: hashlib.sha256(exported).hexdigest()},
            accountant(),
            terms.finals,
            finals_in(exported, run),
            learned_in(exported, run),
        )

    def body(self, job: Job) -> dict[str, Any]:
        """The silo's certificate; `RequestError` if what is stated contradicts the job."""
        terms = self._terms(job)
        charged = self._charged(terms)
        seen = terms.exposures(charged) if charged else ()
        against, points, colluding = self._against(job), self.spent.points, self.spent.colluding
        if colluding is None:
            colluding = terms.facts().get("colluding")
        public = (*job.algorithm.work.public, *self.also_public)
        body = {
            "kind": "silo",
            "run": self.run,
            "job": job.digest,
            "files": dict(self.files),
            "accountant": dict(self.accountant),
            "site": self.site,
            **terms.facts(),
            **({} if colluding is None else {"colluding": colluding}),
            "policy": {"epsilon": self.epsilon, "delta": self.delta},
            "delta": self.delta,
            "adversary": str(against),
            "public": list(public),
            "events": self.spent.events(),
            **claims(
                self.spent.run,
                self.spent.together,
                {str(one.adversary): one.event for one in seen},
                delta=self.delta,
                adjacency=self.adjacency,
                unit=terms.policy.unit,
                adversary=against,
                public=public,
                insecure=job.insecure,
                colluding=colluding or 0,
            ),
            **_whole_site(terms, self.spent.run),
            "rounds_answered": len(points),
            "points": {str(round): digest for round, digest in points.items()},
            **{name.made: dict(made) for name, made in self.made.items()},
            **({} if self.learned is None else {"learned": dict(self.learned)}),
            "ledger": dict(self.spent.ledger),
            "witnessed": dict(self.witnessed),
        }
        named = {"events.collaboration", *body}
        return {**body, "only_stated": {name: what for name, what in ONLY_STATED.items() if name in named}}

    def opening(self, job: Job) -> dict[str, Any]:
        """The line of its ledger that opened the run."""
        return self._terms(job).opening(self.run)

    def _terms(self, job: Job) -> Terms:
        records, position = self.records or job.least_records(self.site), job.sites.index(self.site)
        policy = Policy.for_job(
            job, self.site, epsilon=self.epsilon, delta=self.delta, adjacency=self.adjacency, report_epsilon=0.0
        )
        if job.summed and self.noise_multiplier < level(job, self.site, records) * (1 - _SLACK):
            raise RequestError(
                f"noise_multiplier = {self.noise_multiplier!r} is less than a silo's share of the noise of a sum"
            )
        corrected = self.finals.get(Final.CORRECTION)
        if corrected is not None and corrected.records != records:
            raise RequestError("its correction is not about the records that it trained on")
        for asked in job.finals:
            if self.finals[asked.name].noise_multiplier < asked.noise_multiplier * (1 - _SLACK):
                raise RequestError(f"the noise of its {asked.name} is less than the job asks for")
        return _StatedTerms(
            job=job,
            policy=policy,
            site=self.site,
            federation=job.blank().client(position),
            planned=job.most_releases(),
            noise_multiplier=self.noise_multiplier,
            noise_std=noise_std(job, records, self.noise_multiplier),
            report_noise=self.report_noise,
            epsilon=math.inf,
            finals=self.finals,
            stated_records=records,
        )

    def _charged(self, terms: Terms) -> int:
        """The number of releases that the run was charged for: all planned ones, even if fewer were made."""
        for round in self.spent.points:
            if round >= terms.job.rounds or self.site not in terms.job.cohort(round):
                raise RequestError(f"{self.site} says that it answered round {round}, which is not its turn")
        written, answered = self.spent.events()["run"], len(self.spent.points)
        self.check_together()
        if self._left and self.spent.ledger["lines"] <= self.spent.ledger["before_run"]["lines"] + self._left:
            raise RequestError(f"a ledger has more lines than that after {self._left} releases of a run")
        if not self._left and written == events.to_dict(events.nothing()):
            return 0
        if answered <= terms.planned and events.to_dict(terms.event(terms.planned)) == written:
            return terms.planned
        raise RequestError(
            f"events.run is not what {terms.planned} rounds of the job are, with noise_multiplier = "
            f"{self.noise_multiplier!r} and records = {self.records!r}"
        )

    @property
    def _left(self) -> int:
        """How many releases have left the silo in this run: messages, final releases and steps of a search."""
        steps = 0 if self.learned is None else len(self.learned["steps"])
        return len(self.spent.points) + len(self.made) + steps

    def check_together(self) -> None:
        """Refuse unless all runs together are runs under the policy that is stated, with this one among them."""
        written = self.spent.events()
        together = written["collaboration"]
        if together["kind"] != "chosen-runs" or together["epsilon"] != self.epsilon:
            raise RequestError(
                f"events.collaboration is not of runs under a policy of epsilon = {self.epsilon!r}"
            )
        if self._left and written["run"] not in together["runs"]:
            raise RequestError("events.run is not among those of events.collaboration")

    def _against(self, job: Job) -> Adversary:
        """The adversary that the promise holds against: it relies on whomever the run relied on."""
        relied_on = {job.adversary} if self._left or self.spent.adversary is None else set()
        found = relied_on | ({self.spent.adversary} if self.spent.adversary else set())
        return weakest(found)


def _whole_site(terms: Terms, event: DpEvent) -> dict[str, Any]:
    """What the run promises about all records of the site at once (ISRL-DP, appendix D.3.5), if it does."""
    whole = terms.job.client_target()
    if whole is None:
        return {}
    cost = group_epsilon(event, terms.records, whole.delta, terms.policy.adjacency)
    return {"run_for_the_whole_site": whole_site(cost, whole.delta)}
