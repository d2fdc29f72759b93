"""The releases of a recipe besides its messages, as an audit plays them.

These are an evaluation, a correction of the model, and learned ranges or sizes.

Only the records and the model are the auditor's. Every trial is a client of its own, so one call of the code that
runs use plays all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.engine.audit.model import BEYOND
from tacit.engine.audit.side import SideStage
from tacit.engine.audit.stage import Tactic
from tacit.engine.correction import correction_release
from tacit.engine.plan import Plan
from tacit.engine.ranges import open_limits, ranges_target
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.noise.randomness import Randomness
from tacit.privacy import Target
from tacit.privacy.accountant.pairs import Array
from tacit.side.correction import Moments
from tacit.side.evaluation import evaluation_messages, evaluation_release
from tacit.side.ranges import Limits, RangeSearch, ranges_release, search_ranges
from tacit.side.release import NoisyMeans
from tacit.side.scoring import Scoring
from tacit.side.sizes import EXPECTED, FARTHEST, SizesRelease, size_sums, sizes_release


@dataclass(frozen=True)
class ReleaseStage(SideStage):
    """Releases by `NoisyMeans` of clients that hold a canary, or its neighbour, and one other record."""

    target: Target
    seed: int | None

    def _rows(self, pulls: Array, canary: Array, neighbour: Array, other: Array) -> tuple[Array, Tensor]:
        """The rows of all trials, one client each, and how many each has; a pull of 0 is no canary at all."""
        first = np.where((pulls > 0)[:, None], canary, neighbour)
        there = np.stack([pulls != 0, np.ones(len(pulls), dtype=bool)], axis=1)
        both = np.stack([first, np.broadcast_to(other, first.shape)], axis=1)
        return both[there], torch.from_numpy(there.sum(1))


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
class EvaluationStage(ReleaseStage):
    """The evaluation of a model that is right about the canary, and wrong about its neighbour in another group.

    The two differ in every metric, as far as any two records can. For a record that is replaced that is less than
    what is charged, twice the norm of one: two cells of a histogram are only sqrt(2) apart.
    """

    scoring: Scoring

    name = "private evaluation"

    @property
    def direction(self) -> Array:
        """From the neighbour to the canary."""
        one, other = self.signals(np.array([1.0, -1.0]), 0, Tactic())[:, 0]
        return np.asarray((one - other) / np.linalg.norm(one - other))

    def views(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        held, model = self._held(pulls, first, tactic)
        release = evaluation_release(self.scoring, held, "audit", self.target, self.seed)
        return evaluation_messages(release, model, torch.zeros(1), held, self.scoring).numpy()[:, None]

    def signals(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        held, model = self._held(pulls, first, tactic)
        return self.scoring.sums(model, torch.zeros(1), held.batch()).numpy()[:, None]

    def _held(self, pulls: Array, first: int, tactic: Tactic) -> tuple[Federation, Any]:
        groups, columns, far = self.scoring.groups, self.scoring.classes or 1, BEYOND * tactic.size
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
        canary, neighbour = record(ends[0], 0, unlikely), record(ends[1], min(1, columns - 1), certain)
        rows, sizes = self._rows(pulls, canary, neighbour, record(ends[0], 0, certain))
        features, targets = torch.from_numpy(rows[:, 1:]), torch.from_numpy(rows[:, 0]).long()
        ids = torch.arange(first, first + len(pulls))
        held = Federation(features, targets, sizes, ids, classes=max(2, columns))
        return held, _LossesAreFeatures(columns)


@dataclass(frozen=True)
class _PredictionsAreFeatures:
    """A model that predicts a record's only feature, so that the auditor chooses it."""

    def predict(self, point: Tensor, features: Tensor) -> Tensor:
        """The prediction that the auditor has chosen."""
        return features[:, 0]


@dataclass(frozen=True)
class CorrectionStage(ReleaseStage):
    """The correction of a model. Target and prediction of the canary lie beyond one end of the target's range.

    Its neighbour's prediction lies beyond the other end. That turns three of the five numbers around. For a
    record that is replaced all five are charged, but no two vectors are opposite: 1% more would be possible.
    """

    moments: Moments

    name = "correction of the model"

    @property
    def direction(self) -> Array:
        """From the neighbour to the canary."""
        one, other = self.signals(np.array([1.0, -1.0]), 0, Tactic())[:, 0]
        return np.asarray((one - other) / np.linalg.norm(one - other))

    def views(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        who, sums = self._played(pulls, first, tactic)
        release = correction_release(self.moments, who, "audit", self.target, self.seed)
        return release.messages(sums).numpy()[:, None]

    def signals(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        return self._played(pulls, first, tactic)[1].numpy()[:, None]

    def _played(self, pulls: Array, first: int, tactic: Tactic) -> tuple[Federation, Tensor]:
        far = BEYOND * tactic.size
        # A prediction and a target each.
        canary, neighbour = np.array([far, far]), np.array([-far, far])
        rows, sizes = self._rows(pulls, canary, neighbour, np.zeros(2))
        records = torch.from_numpy(rows)
        who = Federation(records[:, :1], records[:, 1], sizes, torch.arange(first, first + len(pulls)))
        model: Any = _PredictionsAreFeatures()
        return who, self.moments.sums(model, torch.zeros(1), who.batch())


@dataclass(frozen=True)
class RangesStage(ReleaseStage):
    """The search for ranges. The canary lies at the lower end of every limit, its neighbour at the upper end.

    So the answer to every threshold is the same, whatever the thresholds are. A second tactic has a neighbour
    whose numbers are missing.
    """

    limits: tuple[Limits, ...]

    name = "learned ranges"
    tactics = (Tactic(), Tactic(gaps=True))

    @property
    def direction(self) -> Array:
        """All numbers alike."""
        return np.full(2 * len(self.limits), (2 * len(self.limits)) ** -0.5)

    def views(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        return self._played(pulls, first, tactic, noisy=True)

    def signals(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        return self._played(pulls, first, tactic, noisy=False)

    def _played(self, pulls: Array, first: int, tactic: Tactic, *, noisy: bool) -> Array:
        width = BEYOND * tactic.size * np.array([one.upper - one.lower for one in self.limits])
        low = np.array([one.lower for one in self.limits]) - width
        high = np.array([one.upper for one in self.limits]) + width
        gaps = np.full(len(self.limits), np.nan)
        numbers, sizes = self._rows(pulls, low, gaps if tactic.gaps else high, gaps)
        blank = torch.zeros(len(numbers), 1)
        who = Federation(blank, blank[:, 0], sizes, torch.arange(first, first + len(pulls)))
        search = RangeSearch.start(self.limits)
        release = ranges_release(search, who, "audit", self.target, self.seed)
        answer = release.messages if noisy else lambda sums, step: sums
        _, messages = search_ranges(search, numbers, who, answer)
        return torch.stack(messages, 1).numpy()


@dataclass(frozen=True)
class SizesStage(ReleaseStage):
    """The release of sizes. The canary is larger than all that is measured, its neighbour smaller, or zero."""

    release: SizesRelease

    name = "learned sizes"
    tactics = (Tactic(), Tactic(gaps=True))

    @property
    def direction(self) -> Array:
        """All sizes alike."""
        dim, columns = self.release.means.dim, self.release.columns or 1
        return np.where(np.arange(dim) < columns, columns**-0.5, 0.0)

    def views(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        release, sums = self._played(pulls, first, tactic)
        return release.means.messages(sums).numpy()[:, None]

    def signals(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        return self._played(pulls, first, tactic)[1].numpy()[:, None]

    def _played(self, pulls: Array, first: int, tactic: Tactic) -> tuple[SizesRelease, Tensor]:
        usual, far = np.full(self.release.columns or 1, EXPECTED), BEYOND * tactic.size * FARTHEST
        rows, sizes = self._rows(pulls, usual * far, usual * 0 if tactic.gaps else usual / far, usual)
        features, ids = torch.from_numpy(rows), torch.arange(first, first + len(pulls))
        who = Federation(features, features[:, 0], sizes, ids)
        means = replace(self.release.means, federation=who, question="sizes audit", seed=self.seed)
        release = replace(self.release, means=means)
        return release, size_sums(release, who)


def releases_beside(plan: Plan, records: int, randomness: Randomness) -> tuple[SideStage, ...]:
    """What a client of this plan releases besides its messages; an error where that cannot be played."""
    found: list[SideStage] = []
    seed = None if plan.algorithm.work.noise.secret else randomness.seed
    limits = open_limits(plan.recipe or Recipe(), plan.federation)
    blank = Federation(torch.zeros(1, 1), torch.zeros(1), torch.ones(1, dtype=torch.int64), torch.zeros(1).long())

    def parts(release: NoisyMeans) -> dict[str, Any]:
        return {
            "make_event": release.event,
            "noise": release.noise_multiplier,
            "bound": release.bound,
            "adjacency": release.target.adjacency,
            "records": records,
            "rounds": release.releases,
            "randomness": randomness,
            "target": release.target,
            "seed": seed,
        }

    if limits:
        target = ranges_target(plan.privacy)
        release = ranges_release(RangeSearch.start(limits), blank, "", target, seed)
        found.append(RangesStage(**parts(release), limits=limits))
    elif plan.federation.charged is not None:
        sizes = sizes_release(plan.federation, target=ranges_target(plan.privacy), seed=seed)
        assert sizes is not None, "something was released"
        found.append(SizesStage(**parts(sizes.means), release=sizes))
    asked = plan.evaluation
    if asked is not None and asked.target is not None:
        if asked.trust is not None:
            raise RequestError(
                "an audit plays the evaluation of silos whose messages are seen, not one through a secure sum: "
                "leave out [evaluation] or trust = 'sum'"
            )
        release = evaluation_release(asked.scoring, blank, "", asked.target, seed)
        found.append(EvaluationStage(**parts(release), scoring=asked.scoring))
    mended = plan.correction
    if mended is not None and mended.target is not None and mended.trust is None:
        release = correction_release(mended.moments, blank, "", mended.target, seed)
        found.append(CorrectionStage(**parts(release), moments=mended.moments))
    return tuple(found)
