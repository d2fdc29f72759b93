"""A job: what all parties of a consortium agree to before the first message.

It is a complete recipe, and a table that says who takes part and what a record looks like, because no party can
see another's records (`tacit.deploy.job_file`). The job's digest is in every request and certificate: a silo
answers only for the job that it has.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import attendance
from tacit.algorithms.prospect import has_open_steps
from tacit.algorithms.registry import algorithm_entry
from tacit.data.schema import Schema
from tacit.deploy.correcting import JobCorrection
from tacit.deploy.final_release import FinalRelease
from tacit.deploy.finals import Final
from tacit.deploy.held_back import JobEvaluation
from tacit.deploy.identities import Identities
from tacit.deploy.job_checks import MOST_PARAMETERS, check_agreed, check_asked, sizes_matter
from tacit.deploy.job_file import fields_of_job, job_text
from tacit.deploy.job_noise import JobNoise
from tacit.deploy.learning import JobRanges
from tacit.deploy.report import Report
from tacit.deploy.site_records import blank_records
from tacit.engine.choices import feature_norm, with_defaults
from tacit.engine.fronts import as_given, model_and_records, with_features
from tacit.engine.middle import bounded_targets
from tacit.engine.plan import Plan, algorithm_of, plan
from tacit.engine.recipe import Recipe
from tacit.engine.round import broadcast, server_start
from tacit.engine.targets import client_target, for_each_client
from tacit.engine.weights import with_numbers
from tacit.errors import RequestError, count
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Adjacency, Adversary, Target, Unit
from tacit.server.participation import Attendance

_SAID_BY_SCHEMA = ("schema", "public_schema", "target", "client")
"""Settings of the data that a job's schema replaces."""


@dataclass(frozen=True)
class Job:
    """A recipe without open choices, the sites in their order, and the shape of a record."""

    recipe: Recipe
    sites: tuple[str, ...]
    feature_shape: tuple[int, ...]
    classes: int | None = None
    min_records: int | Mapping[str, int] | None = None
    """the least number of records of a site, or that of each; with a shuffler and with sums, the noise is what
    sites with no more records need"""
    report: Report | None = None
    """the loss reports that sites send, if any"""
    identities: Identities | None = None
    """the parties' public signing keys; None in a draft that has not been provisioned yet"""
    schema: Schema | None = None
    """what the silos' tables look like; None if they bring prepared arrays"""

    def __post_init__(self) -> None:
        check_asked(self)
        # Everything that is agreed on is written in the job and covered by its digest. The schema is in the job
        # itself, not in a file of whoever provisions it.
        settings = {k: v for k, v in self.recipe.data_settings.items() if k not in _SAID_BY_SCHEMA}
        recipe = self.recipe if self.schema is None else replace(self.recipe, data_settings=settings)
        object.__setattr__(self, "recipe", with_defaults(recipe))
        check_agreed(self)

    def _model(self) -> Model:
        model = self._agreed[0]
        if model.dim > MOST_PARAMETERS:
            raise RequestError(
                f"model {self.recipe.model!r} has {model.dim} parameters here; a message can hold at most "
                f"{MOST_PARAMETERS}"
            )
        return model

    @classmethod
    def from_plan(cls, plan: Plan, sites: Sequence[str]) -> Job:
        """The job for a plan whose data is available: a consortium on one machine."""
        federation = plan.federation
        if plan.recipe is None:
            raise RequestError("a job needs a recipe that all parties can read: make its plan of one (make_plan)")
        recipe, least = plan.recipe, None
        if sizes_matter(recipe):
            # The noise of a sum suits the site that needs the most, which is not always the smallest.
            by_site = recipe.trust == "sum" and len(set(federation.sizes.tolist())) > 1
            each = dict(zip(sites, federation.sizes.tolist(), strict=True))
            least = each if by_site else min(each.values())
        recipe = with_numbers(recipe, federation)
        shape, classes = as_given(federation)[0], federation.classes
        return cls(recipe, tuple(sites), shape, classes, least, schema=federation.schema)

    @cached_property
    def text(self) -> str:
        """The job as TOML, which the parties exchange and sign."""
        return job_text(self)

    @classmethod
    def from_text(
        cls, text: str, source: str = "job", check: Callable[[Recipe], None] = lambda recipe: None
    ) -> Job:
        """The inverse of `text`.

        check: refuses recipes before anything of them is built: a model may be any function that is installed.
        """
        return cls(**fields_of_job(text, source, check))

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the job's text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return count("rounds", self.recipe.rounds or 0)

    @property
    def insecure(self) -> bool:
        """Whether the noise comes from the recipe's seed: a trial that protects nobody."""
        return not self.parts.work.noise.secret

    @cached_property
    def parts(self) -> Algorithm:
        """The algorithm, built without looking at any record."""
        return algorithm_of(self.recipe, self._model(), self.blank())

    @cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm, with everything that the parties must agree on."""
        if not self.crowd and not has_open_steps(self.parts):
            return self.parts
        targets = self.noise.targets()
        # Steps suit the noise of sites with the least number of records that the job states.
        made = plan(
            self.parts,
            self.blank(),
            rounds=self.rounds,
            privacy=targets[0] if self.shuffled else targets,
            seed=self.recipe.seed,
            stream=self.recipe.stream or "",
            attended=self.attended,
            also=self.noise.beside(max(map(self.noise.of_reports, targets))),
        )
        return made.algorithm

    @cached_property
    def noise(self) -> JobNoise:
        """The noise that the job's promises need."""
        return JobNoise(self)

    @cached_property
    def evaluation(self) -> JobEvaluation | None:
        """The evaluation that sites make at the end, if any."""
        return JobEvaluation.of(self)

    @cached_property
    def correction(self) -> JobCorrection | None:
        """The correction of the trained model that sites make at the end, if any."""
        return JobCorrection.of(self)

    @property
    def finals(self) -> tuple[FinalRelease, ...]:
        """What sites release after the last round, in order."""
        return tuple(one for one in (self.correction, self.evaluation) if one is not None)

    @property
    def separate_finals(self) -> tuple[FinalRelease, ...]:
        """Those that the server asks for. An evaluation that it sees one by one comes with certificates."""
        return tuple(one for one in self.finals if one.name is not Final.EVALUATION or self.summed)

    @cached_property
    def ranges(self) -> JobRanges | None:
        """The ranges that sites learn before the first round, if any."""
        return JobRanges.of(self)

    @property
    def unit(self) -> Unit:
        """The unit whose influence on messages is bounded: a record or a whole site."""
        return self.parts.work.unit

    @property
    def bound(self) -> tuple[str, float]:
        """The kind of bound and its size; infinite if the algorithm bounds nothing."""
        settings = self.recipe.algorithm_settings
        return settings.get("bound", "clip-norm"), settings.get("clip_norm", math.inf)

    @property
    def public_sizes(self) -> bool:
        """Whether a promise to whole sites treats their numbers of records as public."""
        return bool(self.recipe.algorithm_settings.get("public_sizes", False))

    @property
    def shuffled(self) -> bool:
        """Whether the job needs a shuffler between the sites and the server."""
        return algorithm_entry(self.recipe.algorithm).shuffled

    @property
    def summed(self) -> bool:
        """Whether the server can open only sums of the sites' messages."""
        return self.recipe.trust == "sum"

    @property
    def usual_quorum(self) -> int:
        """Usable answers that a round needs, unless a consortium asks for more: all, or the quorum of sums."""
        return self.parts.trust.quorum if self.summed else len(self.sites)

    @property
    def crowd(self) -> bool:
        """Whether the promise relies on the noise of several sites together."""
        return self.shuffled or self.summed

    @property
    def adversary(self) -> Adversary:
        """The adversary against whom the job makes its promise."""
        return self.parts.trust.adversary

    def target(self, site: str) -> Target:
        """What the recipe promises to a site."""
        recipe = self.recipe
        if recipe.privacy == "none" or recipe.epsilon is None or recipe.delta is None:
            raise RequestError("a deployed silo releases nothing without a promise: set epsilon and delta")
        position, blank = self.sites.index(site), self.blank()
        epsilon = for_each_client("epsilon", recipe.epsilon, blank)[position]
        return Target(
            epsilon, for_each_client("delta", recipe.delta, blank)[position], Adjacency(recipe.adjacency)
        )

    def client_target(self) -> Target | None:
        """What the recipe promises to whole sites in addition to records, if anything."""
        if self.recipe.client_epsilon is not None and self.report is not None:
            raise RequestError("reports are accounted for records, not for whole sites: leave out client_epsilon")
        return client_target(self.recipe)

    def randomness(self, secret: int | None = None) -> Randomness:
        """The randomness of a party: public coins come from the recipe's seed, a silo's own from its secret."""
        return Randomness(self.recipe.seed, secret, self.recipe.stream or "")

    def start(self) -> Tensor:
        """The initial model, which is the same for every party."""
        return self.parts.work.model.init(self.randomness().generator(Purpose.INIT))

    @cached_property
    def broadcast_shapes(self) -> dict[str, torch.Size]:
        """The names and shapes of everything that the server sends to the silos of a round, in order."""
        first = broadcast(self.algorithm, server_start(self.algorithm, self.start()), 0)
        return {name: tensor.shape for name, tensor in first.items()}

    def cohort(self, round: int) -> tuple[str, ...]:
        """The sites that take part in a round, by public coins, in their order."""
        positions = self.parts.participation.cohort(len(self.sites), round, self.randomness())
        return tuple(self.sites[position] for position in positions.tolist())

    @cached_property
    def attended(self) -> Attendance:
        """How often sites take part, according to the recipe's public coins."""
        return attendance(self.parts, len(self.sites), self.rounds, self.randomness())

    def most_releases(self) -> int:
        """The largest number of rounds in which any one site takes part."""
        return max(1, self.attended.most)

    @cached_property
    def _agreed(self) -> tuple[Model, Federation]:
        """The model, and records of zeros as it takes them."""
        each = [self.least_records(site) for site in self.sites]
        blank = blank_records(self.sites, each, self.feature_shape, self.classes, self.schema)
        blank = with_features(blank, self.recipe.data_settings.get("features"))
        return model_and_records(self.recipe.model or "", self.recipe.model_settings, blank)

    def least_records(self, site: str) -> int:
        """The number of records that the job counts on at a site."""
        found = self.min_records.get(site) if isinstance(self.min_records, Mapping) else self.min_records
        return int(found or 1)

    def blank(self) -> Federation:
        """A stand-in for the sites that holds only public facts: records of zeros, as many as the job states."""
        recipe, (_, blank) = self.recipe, self._agreed
        blank = replace(blank, name=recipe.data, feature_norm=feature_norm(recipe))
        blank = bounded_targets(recipe, blank)
        weights = recipe.weights
        if weights is None or weights == "equal":
            return blank
        if isinstance(weights, str):
            raise RequestError(
                f"weights = {weights!r} depends on the sites' records, which only they know: write "
                'weights = "equal", a number for each site, or min_records for each in the consortium\'s file'
            )
        return blank.weighted(for_each_client("weights", weights, blank))
