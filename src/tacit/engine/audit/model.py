"""The auditor's model and data: records are gradients, and the point sets their size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.federation import Batch, Federation
from tacit.models.penalty import Penalty
from tacit.models.shares import LayeredGradients

BEYOND = 1e3
"""Length of gradients at full level, in bounds, so that only the bound keeps them short."""


@dataclass(frozen=True)
class GradientGame:
    """A model in which a record is its own gradient, times a level between -1 and 1 that is set by the point.

    The level is mean(x)/far. Below 1, gradients are `level` times the record; from 1 on, `BEYOND` times. So
    whoever chooses the point chooses the sign and length of all gradients.
    """

    dim: int
    far: float = 1.0
    """a distance that no local step of a client covers, so that a client cannot change the level"""
    penalty: Penalty | None = None
    metric_name: str = "loss"

    def point(self, level: float) -> Tensor:
        """A point of this level; for full levels, well inside their range."""
        return torch.full((self.dim,), self.far * (level if abs(level) < 1 else 2 * level))

    def init(self, generator: np.random.Generator) -> Tensor:
        """A point at level -1."""
        return self.point(-1.0)

    def losses(self, point: Tensor, batch: Batch) -> Tensor:
        """The loss of every record: level <record_j, x>."""
        points = point.expand(batch.records, -1) if point.dim() == 1 else point[batch.owners()]
        return self._levels(point, batch) * (batch.features * points).sum(1)

    def gradients(self, point: Tensor, batch: Batch) -> LayeredGradients:
        """The gradient of every record: level record_j."""
        return LayeredGradients.written(self._levels(point, batch)[:, None] * batch.features, batch.counts)

    def predict(self, point: Tensor, features: Tensor) -> Tensor:
        """The loss of every record, as there is nothing to predict."""
        records = len(features)
        return self.losses(point, Batch(features, torch.zeros(records), torch.tensor([records])))

    def metric(self, point: Tensor, batch: Batch) -> float:
        return float(self.losses(point, batch).double().mean())

    def _levels(self, point: Tensor, batch: Batch) -> Tensor:
        levels = point.mean(-1) / self.far
        levels = torch.where(levels.abs() < 1, levels, BEYOND * levels.sign()).to(batch.features.dtype)
        return levels.expand(batch.records) if point.dim() == 1 else levels[batch.owners()]


def clients_with(records: Tensor, ids: Tensor, sizes: Tensor | None = None) -> Federation:
    """Clients with the given or equal numbers of these records, whose randomness is addressed by these ids."""
    return Federation(
        features=records,
        targets=torch.zeros(len(records)),
        sizes=torch.full((len(ids),), len(records) // len(ids)) if sizes is None else sizes,
        ids=ids,
        name="gradient game",
    )
