"""A silo's policy: what it is willing to release. The silo writes it, and nobody else.

    unit = "record"
    epsilon = 4.0
    delta = 1e-6
    adjacency = "replace-one"
    adversary = "server"
    min_records = 100
    algorithms = ["soteriafl-sgd"]
    models = ["softmax"]
    samplings = ["poisson"]
    [bounds]
    clip-norm = 1.0

(epsilon, delta) covers the whole collaboration: all runs that the silo's ledger will ever hold. It protects
against the server and everybody else; with adversary = "shuffler", only against a server that neither the
shuffler nor another silo helps; with adversary = "secure-sum" (or "sum"), only against a server that can open
nothing but sums over at least `quorum` silos, even if `colluding` other silos help it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import tomli_w

from tacit.deploy.job import Job
from tacit.deploy.ledger_account import Account
from tacit.deploy.report import Report
from tacit.engine.files import toml_values
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError, count, positive, unknown_name
from tacit.privacy import Adjacency, Adversary, Target, Unit
from tacit.privacy.promises.rounding import up_to

TRUSTED = (Adversary.SERVER, Adversary.SHUFFLER, Adversary.SECURE_SUM)
"""The adversaries against whom a deployment may make a promise."""

_BESIDE = {
    "report": "asks for loss reports that cost",
    "correction": "asks for a correction of the model that costs",
    "evaluation": "asks for an evaluation that costs",
    "ranges": "learns ranges, which costs",
}
"""What a job may ask for besides messages, each with a limit of its own in the policy."""


@dataclass(frozen=True)
class Policy:
    """What a silo accepts. The lists name what is allowed; everything else is refused."""

    epsilon: float
    delta: float
    algorithms: tuple[str, ...]
    models: tuple[str, ...]
    bounds: Mapping[str, float]
    """for each accepted kind of bound, its largest accepted size"""
    samplings: tuple[str, ...] = ("poisson", "full")
    unit: Unit = Unit.RECORD
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    adversary: Adversary = Adversary.SERVER
    """against whom the promise must hold: any server, or only a server that the shuffler does not help, or only a
    server that opens nothing but sums"""
    quorum: int = 0
    """with sums: the least number of silos in a sum that is accepted"""
    colluding: int = 0
    """with sums: the least number of other silos whose help to the server the promise must withstand"""
    min_records: int = 1
    public_sizes: bool = False
    """with unit = "client": whether a job may reveal the number of records, which is otherwise protected"""
    report_epsilon: float = 0.0
    """the most epsilon that reports of the mean loss may cost in a run; none by default"""
    evaluation_epsilon: float = 0.0
    """the most epsilon that an evaluation on held-back records may cost alone; none by default"""
    correction_epsilon: float = 0.0
    """the most epsilon that the correction of a regression may cost alone; none by default"""
    ranges_epsilon: float = 0.0
    """the most epsilon that learning ranges may cost alone; none by default"""
    insecure_reproducible: bool = False
    """whether seeded noise is accepted: only for trials on data that needs no protection"""
    target: Target = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", Unit(self.unit))
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))
        said = Adversary(self.adversary)
        object.__setattr__(self, "adversary", Adversary.SECURE_SUM if said is Adversary.SUM else said)
        count("quorum", self.quorum, at_least=0)
        count("colluding", self.colluding, at_least=0)
        if self.adversary not in TRUSTED:
            raise RequestError(
                f"adversary = {str(self.adversary)!r} in the policy must be one of {', '.join(map(str, TRUSTED))}"
            )
        object.__setattr__(self, "target", Target(self.epsilon, self.delta, self.adjacency))
        for name in ("algorithms", "models", "samplings"):
            words = getattr(self, name)
            if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
                raise RequestError(f"{name} in the policy must be a list of names, not {words!r}")
            object.__setattr__(self, name, tuple(words))
        if not isinstance(self.bounds, Mapping):
            raise RequestError(
                f"bounds in the policy must be a table such as clip-norm = 1.0, not {self.bounds!r}"
            )
        for bound, largest in self.bounds.items():
            positive(f"bounds.{bound}", largest)
        count("min_records", self.min_records)
        for name in ("report_epsilon", "evaluation_epsilon", "correction_epsilon", "ranges_epsilon"):
            if getattr(self, name) != 0:
                positive(name, getattr(self, name))
        for name in ("insecure_reproducible", "public_sizes"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, not {getattr(self, name)!r}")

    @classmethod
    def for_job(cls, job: Job, site: str, **others: Any) -> Policy:
        """The strictest policy under which a job can run once, for trials and as a first draft."""
        recipe, target = job.recipe, job.target(site)
        settings: dict[str, Any] = {
            "epsilon": target.epsilon,
            "delta": target.delta,
            "adjacency": target.adjacency,
            "unit": job.unit,
            "adversary": job.adversary if job.adversary in TRUSTED else Adversary.SERVER,
            "quorum": job.algorithm.trust.quorum if job.summed else 0,
            "colluding": job.algorithm.trust.colluding if job.summed else 0,
            "public_sizes": job.public_sizes,
            "report_epsilon": 0.0 if job.report is None else job.report.epsilon,
            "evaluation_epsilon": 0.0 if job.evaluation is None else job.evaluation.target.epsilon,
            "correction_epsilon": 0.0 if job.correction is None else job.correction.target.epsilon,
            "ranges_epsilon": 0.0 if job.ranges is None else job.ranges.target.epsilon,
            "algorithms": (recipe.algorithm,),
            "models": (recipe.model or "",),
            "bounds": {name: size for name, size in [job.bound] if math.isfinite(size)},
            "samplings": (job.algorithm.work.sampling.name,),
        }
        return cls(**{**settings, **others})

    def to_toml(self) -> str:
        """The policy as TOML."""
        values = {key: value for key, value in asdict(self).items() if key != "target"}
        plain = {
            k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if not isinstance(v, Mapping)
        }
        return tomli_w.dumps(
            {
                **plain,
                **{name: str(values[name]) for name in ("unit", "adjacency", "adversary")},
                "bounds": dict(self.bounds),
            }
        )

    @classmethod
    def from_toml(cls, text: str, source: str = "policy") -> Policy:
        """Read a policy from TOML; unknown or missing settings are refused."""
        values = toml_values(text, source)
        known = {f.name: f for f in fields(cls) if f.init}
        for name in values:
            if name not in known:
                raise unknown_name("setting", name, known, source)
        for name in ("epsilon", "delta", "algorithms", "models", "bounds"):
            if name not in values:
                raise RequestError(f"{source} must set {name}")
        return cls(**values)

    def check_names(self, recipe: Recipe) -> None:
        """Refuse an algorithm or a model that is not listed, by its name alone."""
        self._listed("algorithm", recipe.algorithm, "algorithms", self.algorithms)
        self._listed("model", recipe.model or "", "models", self.models)

    def check(self, job: Job, records: int) -> None:
        """Refuse a job that this policy does not allow, with the reason."""
        recipe = job.recipe
        self.check_names(recipe)
        work = job.algorithm.work
        self._listed("sampling", work.sampling.name, "samplings", self.samplings)
        bound, clip_norm = job.bound
        self._listed("bound", bound, "bounds", tuple(self.bounds))
        if not clip_norm <= self.bounds[bound]:
            raise RequestError(
                f"clip_norm = {clip_norm:g} of {bound!r} is larger than the policy's {self.bounds[bound]:g}"
            )
        if job.adversary is not Adversary.SERVER and job.adversary is not self.adversary:
            raise RequestError(
                f"algorithm {recipe.algorithm!r} keeps its promise only against {job.adversary.description}; "
                f"adversary = '{self.adversary}' in the policy requires more"
            )
        self._check_sums(job)
        # Here by what the job says; `admit` checks what it comes to at this policy's own delta and adjacency.
        finals = {str(one.name): one for one in job.finals}
        for part, one in {"report": job.report, **finals, "ranges": job.ranges}.items():
            if one is not None:
                self.check_beside(part, one.epsilon if isinstance(one, Report) else one.target.epsilon)
        if records < self.min_records:
            raise RequestError(
                f"the policy requires at least {self.min_records} records, but there are {records}"
            )
        if job.insecure and not self.insecure_reproducible:
            raise RequestError(
                f"noise = {recipe.noise!r} comes from a seed, and anyone who knows the seed can subtract it: use "
                "noise = 'lattice' or, only for a trial, set insecure_reproducible = true in the policy"
            )
        if job.public_sizes and not self.public_sizes:
            raise RequestError(
                "the job treats the number of records per site as public, but the policy protects it: leave "
                "public_sizes out of the recipe, or set public_sizes = true in the policy"
            )
        if job.unit is not self.unit:
            raise RequestError(
                f"algorithm {recipe.algorithm!r} protects one {job.unit}, but the policy says one {self.unit}"
            )

    def _check_sums(self, job: Job) -> None:
        if not job.summed:
            return
        trust = job.algorithm.trust
        for name, offered, least in (
            ("quorum", trust.quorum, self.quorum),
            ("colluding", trust.colluding, self.colluding),
        ):
            if offered < least:
                raise RequestError(f"the job has {name} = {offered}, and the policy requires at least {least}")

    def check_past(self, account: Account) -> None:
        """Refuse a policy that earlier runs in the ledger have already broken."""
        if self.unit is Unit.CLIENT and account.units - {str(Unit.CLIENT)}:
            raise RequestError(
                "the ledger has runs that protected single records, so unit = 'client' in the policy can no "
                "longer be kept for the whole collaboration: set unit = 'record'"
            )
        if self.unit is Unit.CLIENT and not self.public_sizes and account.told_sizes:
            raise RequestError(
                "the ledger has runs that revealed the number of records, so the policy can no longer protect it "
                "for the whole collaboration: set public_sizes = true"
            )
        if others := account.adversaries - {str(Adversary.SERVER), str(self.adversary)}:
            relied = {str(Adversary.SHUFFLER): "a shuffler", str(Adversary.SECURE_SUM): "sums"}
            raise RequestError(
                f"the ledger has runs that relied on {relied.get(min(others), min(others))}, so adversary = "
                f"{str(self.adversary)!r} in the policy can no longer be kept for the whole collaboration: set "
                f"adversary = {min(others)!r}"
            )
        if account.colluding is not None and account.colluding < self.colluding:
            raise RequestError(
                f"the ledger has runs that withstand {account.colluding} colluding silos, so colluding = "
                f"{self.colluding} in the policy can no longer be kept for the whole collaboration: lower it"
            )

    def check_beside(self, part: str, epsilon: float) -> None:
        """Refuse what a job asks for besides messages, such as a report, if it costs too much."""
        allowed = getattr(self, f"{part}_epsilon")
        if epsilon > allowed:
            raise RequestError(
                f"the job {_BESIDE[part]} epsilon = {up_to(epsilon)} alone; the policy allows "
                f"{part}_epsilon = {allowed:g}"
            )

    @staticmethod
    def _listed(kind: str, asked: str, setting: str, allowed: tuple[str, ...]) -> None:
        if asked not in allowed:
            named = ", ".join(allowed) or "none"
            raise RequestError(f"{kind} {asked!r} is not among the {setting} that the policy allows ({named})")
