"""The one-hidden-layer sigmoid network of SoteriaFL (Li et al. 2022), appendix A.2; closed-form gradients."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from tacit.errors import count
from tacit.federation import Batch
from tacit.models.gradients import affine
from tacit.models.linear import _unlabelled
from tacit.models.losses import CrossEntropy, ScoreLoss
from tacit.models.model import check_point, flat_features, glorot
from tacit.models.named import Stored
from tacit.models.penalty import Penalty
from tacit.models.shares import LayeredGradients, linear_shares

sigmoid_backward = torch.ops.aten.sigmoid_backward
"""Maps errors and outputs to errors * outputs * (1 - outputs), in one pass."""


@dataclass(frozen=True)
class SigmoidNetwork:
    """loss(sigmoid(features @ W_1 + c_1) @ W_2 + c_2, target), x = vec(W_1, c_1, W_2, c_2).

    >>> SigmoidNetwork(features=784, hidden=64, classes=10).dim
    50890
    """

    features: int
    """the number of features"""
    hidden: int = 64
    """units of the hidden layer"""
    classes: int = 10
    """the number of outputs"""
    loss: ScoreLoss = field(default_factory=CrossEntropy)
    """the loss of outputs and target"""
    penalty: Penalty | None = None
    """the part of the objective that no record influences"""

    def __post_init__(self) -> None:
        count("features", self.features)
        count("hidden", self.hidden)
        count("classes", self.classes, at_least=2)

    @property
    def dim(self) -> int:
        return (self.features + 1) * self.hidden + (self.hidden + 1) * self.classes

    @property
    def metric_name(self) -> str:
        return self.loss.metric_name

    def init(self, generator: np.random.Generator) -> Tensor:
        first = glorot(generator, self.features, self.hidden)
        second = glorot(generator, self.hidden, self.classes)
        zeros = torch.zeros(self.hidden), torch.zeros(self.classes)
        return torch.cat([first.flatten(), zeros[0], second.flatten(), zeros[1]])

    def _layers(self, point: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        check_point(self, point)
        sizes = (self.features * self.hidden, self.hidden, self.hidden * self.classes, self.classes)
        first, first_bias, second, second_bias = point.split(sizes, dim=-1)
        leading = point.shape[:-1]
        return (
            first.reshape(*leading, self.features, self.hidden),
            first_bias,
            second.reshape(*leading, self.hidden, self.classes),
            second_bias,
        )

    def _forward(self, point: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        first, first_bias, second, second_bias = self._layers(point)
        hidden = torch.sigmoid(affine(flat_features(batch), first, first_bias, batch.counts))
        return hidden, affine(hidden, second, second_bias, batch.counts)

    def losses(self, point: Tensor, batch: Batch) -> Tensor:
        return self.loss.values(self._forward(point, batch)[1], batch.targets)

    def gradients(self, point: Tensor, batch: Batch) -> LayeredGradients:
        """Explicit backpropagation: the errors of both layers, which with their inputs give the gradient."""
        return self._backward(point, batch, *self._forward(point, batch))

    def weighted_loss(self, point: Tensor, batch: Batch, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted sum of the losses (double) of one client's records, and its gradient, in one pass."""
        hidden, scores = self._forward(point, batch)
        loss = (self.loss.values(scores, batch.targets).double() * weights).sum()
        gradients = self._backward(point, batch, hidden, scores)
        return loss, gradients.weighted_sums(weights.to(point.dtype))[0]

    def _backward(self, point: Tensor, batch: Batch, hidden: Tensor, scores: Tensor) -> LayeredGradients:
        slopes = self.loss.slopes(scores, batch.targets)
        second = self._layers(point)[2]
        errors = sigmoid_backward(affine(slopes, second.transpose(-1, -2), None, batch.counts), hidden)
        first_layer = linear_shares(flat_features(batch), errors, bias=True)
        return LayeredGradients((*first_layer, *linear_shares(hidden, slopes, bias=True)), batch.counts)

    def predict(self, point: Tensor, features: Tensor) -> Tensor:
        return self.loss.predict(self._forward(point, _unlabelled(features))[1])

    def metric(self, point: Tensor, batch: Batch) -> float:
        return float(self.loss.metric(self._forward(point, batch)[1], batch.targets))

    @property
    def stored(self) -> tuple[Stored, ...]:
        return (
            Stored("0.weight", (self.hidden, self.features), turned=True),
            Stored("0.bias", (self.hidden,)),
            Stored("2.weight", (self.classes, self.hidden), turned=True),
            Stored("2.bias", (self.classes,)),
        )

    def untrained(self) -> nn.Module:
        first, second = nn.Linear(self.features, self.hidden), nn.Linear(self.hidden, self.classes)
        return nn.Sequential(first, nn.Sigmoid(), second)
