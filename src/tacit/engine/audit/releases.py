"""The releases of a recipe besides its messages, as an audit plays them.

These are learned ranges, sizes or targets, an evaluation, and a correction of the model. Only the records and the
model are the auditor's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from tacit.engine.audit.model import BEYOND
from tacit.engine.audit.release_stage import OpenedSums, Played, ReleaseStage
from tacit.engine.audit.side import SideStage
from tacit.engine.audit.stage import Tactic
from tacit.engine.correction import correction_release, correction_total
from tacit.engine.middle import middle_targets
from tacit.engine.plan import Plan
from tacit.engine.ranges import as_released, open_limits, ranges_target
from tacit.engine.recipe import Recipe
from tacit.engine.sizes import has_learned_sizes
from tacit.federation import Batch, Federation
from tacit.noise.randomness import Randomness
from tacit.privacy.accountant.pairs import Array
from tacit.side.correction import Moments
from tacit.side.evaluation import evaluation_messages, evaluation_release, total_release
from tacit.side.middle import FARTHEST as FARTHEST_TARGET
from tacit.side.middle import middle_means, middle_release, search_middle
from tacit.side.ranges import Limits, RangeSearch, ranges_release, search_ranges
from tacit.side.release import NoisyMeans
from tacit.side.scoring import Scoring
from tacit.side.sizes import EXPECTED, FARTHEST, SizesRelease, size_sums, sizes_release


@dataclass(frozen=True)
class PlayedRanges(Played):
    """The search for ranges. The canary lies at the lower end of every limit, its neighbour at the upper end.

    So the answer to every threshold is the same, whatever the thresholds are. A second tactic has a neighbour
    whose numbers are missing.
    """

    limits: tuple[Limits, ...]

    name = "learned ranges"
    tactics = (Tactic(), Tactic(gaps=True))

    @classmethod
    def planned(cls, plan: Plan, seed: int | None) -> Self | None:
        limits = open_limits(plan.recipe or Recipe(), plan.federation)
        return cls(ranges_target(plan.privacy), limits) if limits else None

    def records(self, tactic: Tactic) -> tuple[Array, Array, Array]:
        lower, upper = (np.array([getattr(one, end) for one in self.limits]) for end in ("lower", "upper"))
        beyond, gaps = BEYOND * tactic.size * (upper - lower), np.full(len(self.limits), np.nan)
        return lower - beyond, gaps if tactic.gaps else upper + beyond, gaps

    def clients(self, rows: Array, sizes: Tensor, ids: Tensor) -> Federation:
        """Clients with blank records: the search reads the rows, which may have gaps."""
        blank = torch.zeros(len(rows), 1)
        return Federation(blank, blank[:, 0], sizes, ids)

    def release(self, clients: Federation, question: str, seed: int | None) -> NoisyMeans:
        return ranges_release(RangeSearch.start(self.limits), clients, question, self.target, seed)

    def messages(self, clients: Federation, rows: Array, release: Any) -> list[Tensor]:
        return search_ranges(RangeSearch.start(self.limits), rows, clients, release.messages)[1]


@dataclass(frozen=True)
class PlayedSizes(Played):
    """The release of sizes. The canary is larger than all that is measured, its neighbour smaller, or zero."""

    measured: SizesRelease

    name = "learned sizes"
    tactics = (Tactic(), Tactic(gaps=True))

    @classmethod
    def planned(cls, plan: Plan, seed: int | None) -> Self | None:
        if plan.federation.charged is None or not has_learned_sizes(plan.recipe):
            return None
        target = ranges_target(plan.privacy)
        measured = sizes_release(as_released(plan.federation), target=target, seed=seed)
        assert measured is not None, "something was released"
        return cls(target, measured)

    def records(self, tactic: Tactic) -> tuple[Array, Array, Array]:
        usual, far = np.full(self.measured.columns or 1, EXPECTED), BEYOND * tactic.size * FARTHEST
        return usual * far, usual * 0 if tactic.gaps else usual / far, usual

    def clients(self, rows: Array, sizes: Tensor, ids: Tensor) -> Federation:
        features = torch.from_numpy(rows)
        return Federation(features, features[:, 0], sizes, ids)

    def release(self, clients: Federation, question: str, seed: int | None) -> NoisyMeans:
        return replace(self.measured.means, federation=clients, question=f"sizes {question}", seed=seed)

    def messages(self, clients: Federation, rows: Array, release: Any) -> list[Tensor]:
        return [release.messages(size_sums(self.measured, clients))]


@dataclass(frozen=True)
class PlayedMiddle(Played):
    """The search for the middle of targets. The canary lies below every threshold, its neighbour above.

    All other targets lie below, too, so the answer to every threshold is the same, whatever the thresholds are.
    """

    halvings: int

    name = "learned targets"

    @classmethod
    def planned(cls, plan: Plan, seed: int | None) -> Self | None:
        if plan.federation.charged is None or plan.federation.middle is None or isinstance(plan.privacy, str):
            return None
        measured = middle_release(as_released(plan.federation), targets=middle_targets(plan.privacy), seed=seed)
        assert measured is not None, "something was released"
        return cls(measured.target, measured.releases)

    def records(self, tactic: Tactic) -> tuple[Array, Array, Array]:
        far = np.full(1, BEYOND * tactic.size * FARTHEST_TARGET)
        return -far, far, -far

    def clients(self, rows: Array, sizes: Tensor, ids: Tensor) -> Federation:
        features = torch.from_numpy(rows)
        return Federation(features, features[:, 0], sizes, ids)

    def release(self, clients: Federation, question: str, seed: int | None) -> NoisyMeans:
        return middle_means(clients, self.halvings, question, self.target, seed)

    def messages(self, clients: Federation, rows: Array, release: Any) -> list[Tensor]:
        return search_middle(clients, self.halvings, release.messages)[1]


@dataclass(frozen=True)
class _LossesAreFeatures:
    """A model in which a record's last features are what is predicted of it, and its losses.

    So the auditor chooses them. They need not go together: the bound of an evaluation holds for any model.
    """

    columns: int
    """number of classes, or 1"""

    def losses(self, point: Tensor, batch: Batch) -> Tensor:
        """The loss of each record's class."""
        return batch.features[:, -self.columns :].gather(1, batch.targets[:, None])[:, 0]

    def predict(self, point: Tensor, features: Tensor) -> Tensor:
        """The class that the auditor has chosen."""
        return features[:, -self.columns - 1].long()


@dataclass(frozen=True)
class PlayedEvaluation(Played):
    """The evaluation of a model that is right about the canary, and wrong about its neighbour in another group.

    The two differ in every metric, as far as any two records can. For a record that is replaced that is less than
    what is charged, twice the norm of one: two cells of a histogram are only sqrt(2) apart.
    """

    scoring: Scoring

    name = "private evaluation"

    @classmethod
    def planned(cls, plan: Plan, seed: int | None) -> Self | None:
        asked = plan.evaluation
        if asked is None or asked.target is None:
            return None
        return cls(asked.target, asked.scoring, trust=asked.trust)

    @property
    def _columns(self) -> int:
        return self.scoring.classes or 1

    def records(self, tactic: Tactic) -> tuple[Array, Array, Array]:
        groups, columns, far = self.scoring.groups, self._columns, BEYOND * tactic.size
        width = 0 if groups is None else groups.feature + 1
        ends = (0.0, 0.0) if groups is None else (groups.edges[0] - 1, groups.edges[-1] + 1)

        def record(group: float, target: int, losses: Array) -> Array:
            """Its class; the feature by which groups are told, if any; class 0 as the prediction; its losses."""
            return np.array([target, *[group] * width, 0, *losses])

        classes = np.arange(columns)
        # Right, with the least loss, and as badly calibrated as that can be.
        unlikely = np.where((classes == 1) & (columns == 2), -3 * far, -far)
        # Wrong and certain, with the largest loss.
        certain = np.where((classes == 0) & (columns > 1), -far, far)
        neighbour = record(ends[1], min(1, columns - 1), certain)
        return record(ends[0], 0, unlikely), neighbour, record(ends[0], 0, certain)

    def clients(self, rows: Array, sizes: Tensor, ids: Tensor) -> Federation:
        features, targets = torch.from_numpy(rows[:, 1:]), torch.from_numpy(rows[:, 0]).long()
        return Federation(features, targets, sizes, ids, classes=max(2, self._columns))

    def release(self, clients: Federation, question: str, seed: int | None) -> NoisyMeans | OpenedSums:
        if self.trust is None:
            return evaluation_release(self.scoring, clients, question, self.target, seed)
        who = {"clients": self.trust.cohort, "honest": self.trust.honest}
        return self.opened(total_release(self.scoring, question, self.target, seed, **who), clients)

    def messages(self, clients: Federation, rows: Array, release: Any) -> list[Tensor]:
        model: Any = _LossesAreFeatures(self._columns)
        return [evaluation_messages(release, model, torch.zeros(1), clients, self.scoring)]


@dataclass(frozen=True)
class _PredictionsAreFeatures:
    """A model that predicts a record's only feature, so that the auditor chooses it."""

    def predict(self, point: Tensor, features: Tensor) -> Tensor:
        """The prediction that the auditor has chosen."""
        return features[:, 0]


@dataclass(frozen=True)
class PlayedCorrection(Played):
    """The correction of a model. Target and prediction of the canary lie beyond opposite ends of the range.

    Those of its neighbour lie the other way round. That turns three of the five or seven numbers around. For a
    record that is replaced all of them are charged, but no two vectors are opposite.
    """

    moments: Moments

    name = "correction of the model"

    @classmethod
    def planned(cls, plan: Plan, seed: int | None) -> Self | None:
        asked = plan.correction
        if asked is None or asked.target is None:
            return None
        return cls(asked.target, asked.moments, trust=asked.trust)

    def records(self, tactic: Tactic) -> tuple[Array, Array, Array]:
        """A prediction and a target each."""
        far = BEYOND * tactic.size
        return np.array([far, -far]), np.array([-far, far]), np.zeros(2)

    def clients(self, rows: Array, sizes: Tensor, ids: Tensor) -> Federation:
        both = torch.from_numpy(rows)
        return Federation(both[:, :1], both[:, 1], sizes, ids)

    def release(self, clients: Federation, question: str, seed: int | None) -> NoisyMeans | OpenedSums:
        if self.trust is None:
            return correction_release(self.moments, clients, question, self.target, seed)
        who = {"clients": self.trust.cohort, "honest": self.trust.honest}
        return self.opened(correction_total(self.moments, question, self.target, seed, **who), clients)

    def messages(self, clients: Federation, rows: Array, release: Any) -> list[Tensor]:
        model: Any = _PredictionsAreFeatures()
        return [release.messages(self.moments.sums(model, torch.zeros(1), clients.batch()))]


RELEASES: tuple[type[Played], ...] = (PlayedRanges, PlayedSizes, PlayedMiddle, PlayedEvaluation, PlayedCorrection)
"""All kinds of releases, in the order in which a client makes them."""


def releases_beside(plan: Plan, records: int, randomness: Randomness) -> tuple[SideStage, ...]:
    """What a client of this plan releases besides its messages; an error where that cannot be played."""
    seed = None if plan.algorithm.work.noise.secret else randomness.seed
    found = (kind.planned(plan, seed) for kind in RELEASES)
    return tuple(ReleaseStage.of(played, records, randomness, seed) for played in found if played is not None)
