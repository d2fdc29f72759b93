"""The model interface: a loss over one flat parameter vector, with a gradient for each record."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tacit.errors import RequestError
from tacit.federation import Batch
from tacit.models.gradients import Gradients
from tacit.models.penalty import Penalty


class Model(Protocol):
    """A loss over one flat parameter vector.

    A point is (dim,) if all clients share it, or (clients, dim) if each has its own. `losses` and `gradients`
    concern the records only; the penalty, which no record influences, is separate so that it can be added after
    the bound and the noise.
    """

    @property
    def dim(self) -> int:
        """The number of parameters."""
        ...

    @property
    def penalty(self) -> Penalty | None:
        """The part of the objective that no record influences."""
        ...

    @property
    def metric_name(self) -> str:
        """The name of what `metric` measures: accuracy, rmse, loss."""
        ...

    def init(self, generator: np.random.Generator) -> Tensor:
        """The point at which training starts: (dim,)."""
        ...

    def losses(self, point: Tensor, batch: Batch) -> Tensor:
        """The loss of every record: (records,)."""
        ...

    def gradients(self, point: Tensor, batch: Batch) -> Gradients:
        """The gradient of every record's loss."""
        ...

    def predict(self, point: Tensor, features: Tensor) -> Tensor:
        """The predicted target of every record."""
        ...

    def metric(self, point: Tensor, batch: Batch) -> float:
        """The model's performance on a batch, as the metric that users look at."""
        ...


def penalty_gradient(model: Model, point: Tensor) -> Tensor | float:
    """The gradient of the model's penalty, or 0 if it has none."""
    return 0.0 if model.penalty is None else model.penalty.gradient(point)


def check_point(model: Model, point: Tensor) -> None:
    """Refuse a point of the wrong length."""
    if point.shape[-1] != model.dim:
        raise RequestError(f"the model has {model.dim} parameters, but the point has {point.shape[-1]}")


def flat_features(batch: Batch) -> Tensor:
    """The features of a batch as rows."""
    return batch.features.flatten(1)


def glorot(generator: np.random.Generator, inputs: int, outputs: int) -> Tensor:
    """Uniform weights of variance 2 / (inputs + outputs), the usual initialisation of sigmoid layers."""
    limit = float(np.sqrt(6 / (inputs + outputs)))
    draw = generator.uniform(-limit, limit, size=(inputs, outputs)).astype(np.float32)
    return torch.from_numpy(draw)
