"""Models whose score is linear in the parameters: softmax, logistic, linear and quantile regression, and the SVM.

A record's gradient is the outer product of its features and the loss's slope, so norms and clipped sums cost no
more than one ordinary gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tacit.errors import RequestError, count, positive
from tacit.federation import Batch
from tacit.models.gradients import affine
from tacit.models.losses import CrossEntropy, Logistic, ScoreLoss, Squared
from tacit.models.model import check_point, flat_features
from tacit.models.named import Stored
from tacit.models.nonsmooth import Absolute, Envelope, Hinge, Pinball
from tacit.models.penalty import NonconvexPenalty, Penalty, Ridge
from tacit.models.shares import LayeredGradients, linear_shares


@dataclass(frozen=True)
class LinearModel:
    """loss(features @ W + b, target) + penalty(W, b), with W (features x outputs) row by row, then b.

    With a `smoothing` of beta, `losses` and `gradients` are those of the beta-Moreau envelope of each record's
    loss, as a function of (W, b) (`tacit.models.nonsmooth`); penalty and metric are unchanged.

    >>> model = logistic_regression(features=3)
    >>> model.dim, model.smoothness(feature_norm=1.0)
    (4, 0.5)
    """

    features: int
    """the number of features"""
    outputs: int
    """the number of scores: one per class, or 1"""
    loss: ScoreLoss
    """the loss of scores and target"""
    intercept: bool = True
    """whether there is a constant b"""
    penalty: Penalty | None = None
    """the part of the objective that no record influences"""
    smoothing: float | None = None
    start: float = 0.0
    """where the intercept starts; everything else starts at 0"""

    def __post_init__(self) -> None:
        count("features", self.features)
        count("outputs", self.outputs)
        if self.smoothing is not None:
            positive("smoothing", self.smoothing)
            if self.outputs != 1:
                raise RequestError(f"smoothing needs a score of one number, not of {self.outputs}; leave it out")

    @property
    def dim(self) -> int:
        """(features + 1 for an intercept) times outputs."""
        return (self.features + self.intercept) * self.outputs

    @property
    def metric_name(self) -> str:
        return self.loss.metric_name

    def smoothness(self, feature_norm: float) -> float | None:
        """The largest curvature of any record's loss, including the penalty, if features have at most this norm.

        None if the loss has a kink and no smoothing. With smoothing, curvature c becomes c beta/(c + beta). The
        bound on the features must be public: it comes from how they are made, not from looking at them.
        """
        curvature = self.loss.curvature * (positive("feature_norm", feature_norm) ** 2 + self.intercept)
        if self.smoothing is not None:
            curvature = self.smoothing / (1 + self.smoothing / curvature)
        return None if math.isinf(curvature) else curvature + (self.penalty.curvature if self.penalty else 0.0)

    def lipschitz(self, feature_norm: float) -> float | None:
        """The largest norm of any record's gradient (without penalty), or None if it is unbounded."""
        if self.loss.slope_bound is None:
            return None
        reach = positive("feature_norm", feature_norm) ** 2 + self.intercept
        return float(self.loss.slope_bound * reach**0.5)

    def init(self, generator: np.random.Generator) -> Tensor:
        """Zero, and `start` for the intercept: a convex problem does not need a random start."""
        point = torch.zeros(self.dim)
        if self.intercept:
            point[-self.outputs :] = self.start
        return point

    def scores(self, point: Tensor, batch: Batch) -> Tensor:
        """features @ W + b: (records, outputs)."""
        check_point(self, point)
        size = self.features * self.outputs
        weight = point[..., :size].reshape(*point.shape[:-1], self.features, self.outputs)
        bias = point[..., size:] if self.intercept else None
        return affine(flat_features(batch), weight, bias, batch.counts)

    def losses(self, point: Tensor, batch: Batch) -> Tensor:
        return self._loss_of(batch).values(self.scores(point, batch), batch.targets)

    def gradients(self, point: Tensor, batch: Batch) -> LayeredGradients:
        """The gradients features (x) slopes."""
        slopes = self._loss_of(batch).slopes(self.scores(point, batch), batch.targets)
        return LayeredGradients(linear_shares(flat_features(batch), slopes, self.intercept), batch.counts)

    def _loss_of(self, batch: Batch) -> ScoreLoss | Envelope:
        """The loss of a score; the amount of smoothing depends on the norm of each record's features."""
        if self.smoothing is None:
            return self.loss
        features = flat_features(batch)
        norms = torch.linalg.vector_norm(features, dim=1, dtype=torch.float64)
        steps = (norms.square() + self.intercept) / self.smoothing
        return Envelope(self.loss, steps.clamp(max=torch.finfo(features.dtype).max).to(features.dtype))

    def predict(self, point: Tensor, features: Tensor) -> Tensor:
        return self.loss.predict(self.scores(point, _unlabelled(features)))

    def metric(self, point: Tensor, batch: Batch) -> float:
        return float(self.loss.metric(self.scores(point, batch), batch.targets))

    @property
    def stored(self) -> tuple[Stored, ...]:
        bias = (Stored("bias", (self.outputs,)),) if self.intercept else ()
        return Stored("weight", (self.outputs, self.features), turned=True), *bias

    def untrained(self) -> nn.Module:
        return nn.Linear(self.features, self.outputs, bias=self.intercept)


def _unlabelled(features: Tensor) -> Batch:
    records = len(features)
    return Batch(features, torch.zeros(records, dtype=torch.int64), torch.tensor([records]))


def _ridge(strength: float) -> Penalty | None:
    return Ridge(positive("ridge", strength)) if strength else None


def softmax_regression(*, features: int, classes: int, intercept: bool = True, ridge: float = 0.0) -> LinearModel:
    """Multi-class linear classification by cross-entropy.

    Args:
        features: number of features.
        classes: number of classes.
        intercept: whether scores have an offset that does not depend on the features.
        ridge: strength of the penalty ridge/2 ||x||^2; it is public, so it costs no privacy.
    """
    return LinearModel(features, count("classes", classes, at_least=2), CrossEntropy(), intercept, _ridge(ridge))


def logistic_regression(*, features: int, intercept: bool = True, ridge: float = 0.0) -> LinearModel:
    """Two-class linear classification; targets are 0 and 1.

    Args:
        features: number of features.
        intercept: whether scores have an offset that does not depend on the features.
        ridge: strength of the penalty ridge/2 ||x||^2; it is public, so it costs no privacy.
    """
    return LinearModel(features, 1, Logistic(), intercept, _ridge(ridge))


def nonconvex_logistic_regression(
    *, features: int, intercept: bool = False, strength: float = 0.2
) -> LinearModel:
    """Logistic regression with a nonconvex penalty and no intercept: SoteriaFL (Li et al. 2022), appendix A.1.

    Args:
        features: number of features.
        intercept: whether scores have an offset that does not depend on the features.
        strength: lambda of the penalty lambda sum_j x_j^2 / (1 + x_j^2).
    """
    return LinearModel(features, 1, Logistic(), intercept, NonconvexPenalty(positive("strength", strength)))


def least_squares(*, features: int, intercept: bool = True, ridge: float = 0.0) -> LinearModel:
    """Linear regression by squared error.

    Args:
        features: number of features.
        intercept: whether scores have an offset that does not depend on the features.
        ridge: strength of the penalty ridge/2 ||x||^2; it is public, so it costs no privacy.
    """
    return LinearModel(features, 1, Squared(), intercept, _ridge(ridge))


def support_vector_machine(
    *, features: int, intercept: bool = True, ridge: float = 0.0, smoothing: float | None = None
) -> LinearModel:
    """Two-class linear classification by the hinge loss; targets are 0 and 1.

    Args:
        features: number of features.
        intercept: whether scores have an offset that does not depend on the features.
        ridge: strength of the penalty ridge/2 ||x||^2; it is public, so it costs no privacy.
        smoothing: curvature to which the kink of the loss is smoothed (Moreau envelope); by default none.
    """
    return LinearModel(features, 1, Hinge(), intercept, _ridge(ridge), smoothing)


def absolute_regression(
    *, features: int, intercept: bool = True, ridge: float = 0.0, smoothing: float | None = None
) -> LinearModel:
    """Linear regression by absolute error: the conditional median, which is robust to outliers.

    Args:
        features: number of features.
        intercept: whether scores have an offset that does not depend on the features.
        ridge: strength of the penalty ridge/2 ||x||^2; it is public, so it costs no privacy.
        smoothing: curvature to which the kink of the loss is smoothed (Moreau envelope); by default none.
    """
    return LinearModel(features, 1, Absolute(), intercept, _ridge(ridge), smoothing)


def quantile_regression(
    *,
    features: int,
    quantile: float = 0.5,
    intercept: bool = True,
    ridge: float = 0.0,
    smoothing: float | None = None,
) -> LinearModel:
    """Linear regression of a quantile by the pinball loss.

    Args:
        features: number of features.
        quantile: the quantile that is predicted, above 0 and below 1.
        intercept: whether scores have an offset that does not depend on the features.
        ridge: strength of the penalty ridge/2 ||x||^2; it is public, so it costs no privacy.
        smoothing: curvature to which the kink of the loss is smoothed (Moreau envelope); by default none.
    """
    return LinearModel(features, 1, Pinball(quantile), intercept, _ridge(ridge), smoothing)
