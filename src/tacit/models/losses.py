"""Losses of a score: the loss of a record, and its derivative by the score.

A model turns features into a score, a row of one or several numbers; a loss turns score and target into a
number. Keeping the two apart lets every linear model and every network share the same losses, and lets
gradients be written as inputs times slopes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class ScoreLoss(Protocol):
    """A loss of a score of `outputs` numbers.

    With a given bound on the features, `slope_bound` and `curvature` give a model's Lipschitz and smoothness
    constants without looking at any record.
    """

    @property
    def metric_name(self) -> str:
        """The name of what `metric` measures."""
        ...

    @property
    def slope_bound(self) -> float | None:
        """The largest norm of the slope, or None if it is unbounded."""
        ...

    @property
    def curvature(self) -> float:
        """The largest second derivative; infinite if the slope jumps."""
        ...

    def values(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The loss of every record: (records,)."""
        ...

    def slopes(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The derivative of the loss by the score: (records, outputs).

        Whole clients may be passed at once: scores (clients, outputs, records) with targets (clients, records).
        """
        ...

    def predict(self, scores: Tensor) -> Tensor:
        """The predicted target of every record."""
        ...

    def metric(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The measure that users look at, such as accuracy, as one number over all records."""
        ...


@dataclass(frozen=True)
class CrossEntropy:
    """Softmax regression's loss: -log softmax(score)[target].

    >>> loss = CrossEntropy()
    >>> loss.values(torch.zeros(1, 4), torch.tensor([2]))
    tensor([1.3863])
    """

    metric_name: str = "accuracy"
    slope_bound: float | None = 2.0**0.5
    curvature: float = 0.5

    def values(self, scores: Tensor, targets: Tensor) -> Tensor:
        """-log softmax(score)[target]."""
        return F.cross_entropy(scores, targets, reduction="none")

    def slopes(self, scores: Tensor, targets: Tensor) -> Tensor:
        """softmax(score) - one_hot(target), or minus the target itself if it is `probabilities`."""
        slopes = torch.softmax(scores, dim=1)
        if targets.is_floating_point():
            return slopes.sub_(targets)
        right = targets.unsqueeze(1)
        return slopes.scatter_add_(1, right, slopes.new_full((), -1.0).expand_as(right))

    def probabilities(self, targets: Tensor, scores: Tensor) -> Tensor:
        """one_hot(target) in the shape of the scores, for `slopes` that are asked for many times."""
        return torch.zeros_like(scores).scatter_(1, targets.unsqueeze(1), 1.0)

    def predict(self, scores: Tensor) -> Tensor:
        return scores.argmax(dim=1)

    def metric(self, scores: Tensor, targets: Tensor) -> Tensor:
        return (self.predict(scores) == targets).double().mean()


@dataclass(frozen=True)
class Logistic:
    """log(1 + exp(-b score)) with b = -1 for target 0 and +1 for target 1.

    >>> Logistic().slopes(torch.zeros(1, 1), torch.tensor([1]))
    tensor([[-0.5000]])
    """

    metric_name: str = "accuracy"
    slope_bound: float | None = 1.0
    curvature: float = 0.25

    def values(self, scores: Tensor, targets: Tensor) -> Tensor:
        """log(1 + exp(-b score))."""
        return F.softplus(-self._signs(targets, scores) * scores[:, 0])

    def slopes(self, scores: Tensor, targets: Tensor) -> Tensor:
        """-b / (1 + exp(b score))."""
        signs = self._signs(targets, scores)
        return (-signs * torch.sigmoid(-signs * scores[:, 0]))[:, None]

    def predict(self, scores: Tensor) -> Tensor:
        """1 where the score is positive."""
        return (scores[:, 0] > 0).long()

    def metric(self, scores: Tensor, targets: Tensor) -> Tensor:
        return (self.predict(scores) == targets).double().mean()

    @staticmethod
    def _signs(targets: Tensor, scores: Tensor) -> Tensor:
        return targets.to(scores.dtype) * 2 - 1


@dataclass(frozen=True)
class Squared:
    """(score - target)^2 / 2. Its slope is unbounded, so gradients must be clipped."""

    metric_name: str = "rmse"
    slope_bound: float | None = None
    curvature: float = 1.0

    def values(self, scores: Tensor, targets: Tensor) -> Tensor:
        """(score - target)^2 / 2."""
        return (scores[:, 0] - targets).square() / 2

    def slopes(self, scores: Tensor, targets: Tensor) -> Tensor:
        """score - target."""
        return (scores[:, 0] - targets)[:, None]

    def predict(self, scores: Tensor) -> Tensor:
        return scores[:, 0]

    def metric(self, scores: Tensor, targets: Tensor) -> Tensor:
        return (scores[:, 0].double() - targets.double()).square().mean().sqrt()
