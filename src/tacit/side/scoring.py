"""What is asked of every record that is held back for evaluation, as one vector of bounded length.

For a record of group g with label y, predicted with probability p, the vector has these parts:

    count        the one-hot vector of g, less 1/G everywhere             (only with several groups)
    accuracy     +1/2 at g if the prediction is right, else -1/2          (classifiers)
    calibration  (p - y) / 2 at g                                         (classifiers)
    histogram    the one-hot vector of (bin of p, y), less 1/(2B)         (classifiers)
    ranking      for each class k the one-hot vector of (bin of p_k, y = k), less 1/(2B), all over sqrt(K)
                                                                          (3 to 20 classes)
    loss         min(max(loss, 0), L) / L - 1/2 at g

With two classes, p is the probability of class 1 and y is 0 or 1. With more, p is the probability of the
predicted class, and y is 1 if the prediction is right. Probabilities are proportional to exp(-loss of each
class), which is the softmax for the cross entropy.

The ranking has K parts of norm sqrt(1 - 1/(2B)); the division by sqrt(K) gives all of them together this norm.

Guarantee: the parts have norms of at most sqrt(1 - 1/G), 1/2, 1/2, sqrt(1 - 1/(2B)), the same again and 1/2,
whatever the record is, so their sum of squares is at most `bound`^2. Replacing a record moves the sum of all
vectors by at most 2 `bound`, and leaving one out (as a zero vector) by at most `bound`: the Gaussian event of
this bound holds for both adjacencies.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tacit.errors import RequestError, count, positive
from tacit.federation import Batch
from tacit.models.gradients import sums_by_client
from tacit.models.model import Model
from tacit.models.persons import PersonModel
from tacit.side.estimates import Estimate

EDGES = (0.05, 0.12, 0.22, 0.35, 0.5, 0.65, 0.78, 0.88, 0.95)
"""The usual limits between bins of probabilities: narrower near 0 and 1, where good models put most records."""


MOST_RANKED = 20
"""With more classes than this, no ranking is asked for: it is 2 B K counts, with sqrt(K) times the noise each."""


@dataclass(frozen=True)
class Groups:
    """Groups of records, by where one of their features lies between public limits.

    Parameters
    ----------
    feature : the number of the feature, from 0.
    edges : the limits between groups, in increasing order; a value on a limit belongs to the upper group.
    names : the name of each group, one more than limits.
    """

    feature: int
    edges: tuple[float, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        count("evaluation.group_feature", self.feature, at_least=0)
        _check_increasing("evaluation.group_edges", self.edges)
        if len(self.names) != len(self.edges) + 1 or len(set(self.names)) != len(self.names):
            raise RequestError(
                f"evaluation.group_names must be {len(self.edges) + 1} different names, one more than "
                f"group_edges, not {list(self.names)}"
            )

    def check(self, inputs: int) -> None:
        """Refuse a feature that records with so many do not have."""
        if self.feature >= inputs:
            raise RequestError(
                f"evaluation.group_feature = {self.feature}: records have features 0 to {inputs - 1}"
            )

    def of(self, features: Tensor) -> Tensor:
        """The group of every record: (records,) int64."""
        flat = features.flatten(1)
        self.check(flat.shape[1])
        limits = torch.tensor(self.edges, dtype=torch.float64)
        return torch.bucketize(flat[:, self.feature].double().cpu().contiguous(), limits, right=True)


@dataclass(frozen=True)
class TargetUnit:
    """How the mean loss of a regression reads as an error in the target's own unit: post-processing.

    Parameters
    ----------
    one : what 1 of the model's targets is, in the target's own unit.
    squared : whether the loss is half of the squared error; otherwise it is the absolute error.
    name : of the unit, such as "days"; empty if nobody named it.
    """

    one: float
    squared: bool
    name: str = ""

    def words(self, loss_bound: float) -> str:
        """What the error is, if every record's loss counts as at most this."""
        kind = "root mean squared error" if self.squared else "mean absolute error"
        most = f"{self._of(loss_bound):.4g}"
        return f"{kind}, in {self.name or 'the unit of the target'}; errors above {most} count as {most}"

    def error(self, loss: Estimate) -> Estimate:
        """The error that a mean loss stands for. It grows with the loss, so ends of bars stay ends of bars."""
        value = None if loss.value is None else self._of(loss.value)
        return Estimate(value, self._of(loss.low), self._of(loss.high))

    def _of(self, loss: float) -> float:
        return self.one * (math.sqrt(2 * max(0.0, loss)) if self.squared else loss)


@dataclass(frozen=True)
class Scoring:
    """What is asked of every record; all of it is public.

    Parameters
    ----------
    classes : the number of classes; None for a regression, of which only the loss is asked.
    loss_bound : L, to which each record's loss is clipped.
    edges : the limits between bins of probabilities, within (0, 1).
    groups : the groups that are compared, if any.
    unit : how a regression's loss is told in the unit of its target; None if that is not known.
    """

    classes: int | None
    loss_bound: float
    edges: tuple[float, ...] = EDGES
    groups: Groups | None = None
    # It says how a release is read, not what is released, and the representation is the release's name.
    unit: TargetUnit | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        positive("evaluation.loss_bound", self.loss_bound)
        _check_increasing("evaluation.edges", self.edges)
        if not 0 < self.edges[0] <= self.edges[-1] < 1:
            raise RequestError(f"evaluation.edges must lie between 0 and 1, not {list(self.edges)}")

    @property
    def group_names(self) -> tuple[str, ...]:
        """The names of the groups; none if no groups are compared."""
        return () if self.groups is None else self.groups.names

    @property
    def told(self) -> dict[str, Any]:
        """What a reader of the numbers needs to know, as plain data for JSON."""
        error = {} if self.unit is None else {"error_is": self.unit.words(self.loss_bound)}
        return {"loss_bound": self.loss_bound, **error}

    @property
    def parts(self) -> dict[str, slice]:
        """The coordinates of each part."""
        groups, cells = max(1, len(self.group_names)), 2 * (len(self.edges) + 1)
        lengths = {"count": groups} if self.groups is not None else {}
        if self.classes is not None:
            lengths |= {"accuracy": groups, "calibration": groups, "histogram": cells}
            lengths |= {"ranking": self.ranked * cells} if self.ranked else {}
        lengths |= {"loss": groups}
        ends = list(itertools.accumulate(lengths.values(), initial=0))
        return {name: slice(*ends[k : k + 2]) for k, name in enumerate(lengths)}

    @property
    def dim(self) -> int:
        """The length of the vectors."""
        return int(max(part.stop for part in self.parts.values()))

    @property
    def centre(self) -> Tensor:
        """(dim,) double: what was taken off every vector, to be added back once for each record."""
        centre = torch.zeros(self.dim, dtype=torch.float64)
        for name in self._one_hot:
            part = self.parts[name]
            centre[part] = 1 / (part.stop - part.start)
        if self.ranked:
            centre[self.parts["ranking"]] = 1 / (2 * (len(self.edges) + 1) * math.sqrt(self.ranked))
        return centre

    @property
    def bound(self) -> float:
        """The most that a vector's norm can be."""
        halves = len(self.parts.keys() - self._one_hot - {"ranking"})
        ranking = 1 - 1 / (2 * (len(self.edges) + 1)) if self.ranked else 0.0
        one_hot = sum(1 - float(self.centre[self.parts[n]][0]) for n in self._one_hot)
        return math.sqrt(halves / 4 + one_hot + ranking)

    @property
    def ranked(self) -> int:
        """How many classes are ranked one against the rest: none of two classes, whose histogram says it."""
        classes = self.classes or 0
        return classes if 2 < classes <= MOST_RANKED else 0

    @property
    def _one_hot(self) -> set[str]:
        return self.parts.keys() & {"count", "histogram"}

    def sums(self, model: Model, point: Tensor, batch: Batch) -> Tensor:
        """The sum of the vectors of every client: (clients, dim) double."""
        return sums_by_client(self.vectors(model, point, batch), batch.counts)

    def vectors(self, model: Model, point: Tensor, batch: Batch) -> Tensor:
        """The vector of every record: (records, dim) double, each of norm at most `bound`.

        That of a person with several rows is the mean over the rows, whose norm is no larger.
        """
        if isinstance(model, PersonModel):
            rows, _ = model.unbundled(batch)
            return sums_by_client(self.vectors(model.rows, point, rows), rows.counts) / rows.counts[:, None]
        records, parts, edges = batch.records, self.parts, torch.tensor(self.edges, dtype=torch.float64)
        group = torch.zeros(records, dtype=torch.int64) if self.groups is None else self.groups.of(batch.features)
        every = torch.arange(records)
        made = torch.zeros(records, self.dim, dtype=torch.float64)
        losses = _finite(model.losses(point, batch), self.loss_bound).clamp(0, self.loss_bound)
        made[every, parts["loss"].start + group] = losses / self.loss_bound - 0.5
        if self.groups is not None:
            made[every, parts["count"].start + group] = 1.0
        if self.classes is not None:
            right = (model.predict(point, batch.features) == batch.targets).double().cpu()
            chances = self._chances(model, point, batch)
            chance, label = self._chance(chances, batch, right)
            made[every, parts["accuracy"].start + group] = right - 0.5
            made[every, parts["calibration"].start + group] = (chance - label) / 2
            bins = torch.bucketize(chance.contiguous(), edges, right=True)
            made[every, parts["histogram"].start + 2 * bins + label.long()] = 1.0
        for k in range(self.ranked):
            bins = torch.bucketize(chances[:, k].contiguous(), edges, right=True)
            place = parts["ranking"].start + 2 * (len(edges) + 1) * k
            made[every, place + 2 * bins + (batch.targets == k).long().cpu()] = 1 / math.sqrt(self.ranked)
        return made - self.centre

    def _chances(self, model: Model, point: Tensor, batch: Batch) -> Tensor:
        """The probability of every class: (records, classes), in [0, 1] whatever the model returns."""
        losses = [
            model.losses(point, Batch(batch.features, torch.full_like(batch.targets, k), batch.counts))
            for k in range(self.classes or 2)
        ]
        stacked = torch.stack([_finite(loss, 1e6) for loss in losses], 1).clamp(max=1e6)
        return torch.softmax(-stacked, 1).clamp(0, 1)

    def _chance(self, chances: Tensor, batch: Batch, right: Tensor) -> tuple[Tensor, Tensor]:
        """p and y of every record."""
        if self.classes == 2:
            return chances[:, 1], (batch.targets == 1).double().cpu()
        return chances.amax(1), right


def _finite(losses: Tensor, worst: float) -> Tensor:
    return losses.detach().double().cpu().nan_to_num(nan=worst, posinf=worst, neginf=0.0)


def _check_increasing(name: str, edges: tuple[float, ...]) -> None:
    ordered = all(a < b for a, b in itertools.pairwise(edges)) and all(map(math.isfinite, edges))
    if not edges or not ordered:
        raise RequestError(f"{name} must be numbers in increasing order, not {list(edges)}")
