"""A model of persons who have several rows each: one person is one record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tacit.federation import Batch
from tacit.models.gradients import sums_by_client
from tacit.models.model import Model
from tacit.models.named import Stored, stored_parts, untrained_module
from tacit.models.penalty import Penalty
from tacit.models.shares import LayeredGradients


@dataclass(frozen=True)
class PersonModel:
    """The loss of a person is the mean loss of the person's rows, under a model of single rows.

    A record is a bundle (`tacit.data.schema.records.bundled`): rows of features, target and share, where unused
    rows have a share of 0. Guarantee: a person's gradient is computed from that person's bundle alone, so
    sampling, bounds and noise, which treat records, treat persons here.
    """

    rows: Model

    @property
    def dim(self) -> int:
        """The number of parameters."""
        return self.rows.dim

    @property
    def penalty(self) -> Penalty | None:
        """The penalty of the model of rows."""
        return self.rows.penalty

    @property
    def metric_name(self) -> str:
        """The metric of the model of rows."""
        return self.rows.metric_name

    def init(self, generator: np.random.Generator) -> Tensor:
        """Where the model of rows starts."""
        return self.rows.init(generator)

    def losses(self, point: Tensor, batch: Batch) -> Tensor:
        """The mean loss of each person's rows."""
        rows, shares = self.unbundled(batch)
        return sums_by_client(self.rows.losses(self._points(point, batch), rows) * shares, rows.counts)

    def gradients(self, point: Tensor, batch: Batch) -> LayeredGradients:
        """The mean gradient of each person's rows, written out."""
        rows, shares = self.unbundled(batch)
        means = self.rows.gradients(self._points(point, batch), rows).weighted_sums(shares)
        return LayeredGradients.written(means, batch.counts)

    def predict(self, point: Tensor, features: Tensor) -> Tensor:
        """The predicted target of every row: (rows, features)."""
        return self.rows.predict(point, features)

    def metric(self, point: Tensor, batch: Batch) -> float:
        """The metric over all rows, each counting the same."""
        rows, _ = self.unbundled(batch)
        return self.rows.metric(point, Batch(rows.features, rows.targets, torch.tensor([rows.records])))

    @property
    def stored(self) -> Sequence[Stored]:
        return stored_parts(self.rows)

    def untrained(self) -> nn.Module:
        return untrained_module(self.rows)

    def unbundled(self, batch: Batch) -> tuple[Batch, Tensor]:
        """The rows in use, as a batch in which every person is a client, and the share of each row."""
        shares = batch.features[..., -1]
        used = shares > 0
        rows, labels = batch.features[used], not batch.targets.is_floating_point()
        targets = rows[:, -2].long() if labels else rows[:, -2]
        return Batch(rows[:, :-2], targets, used.sum(1).cpu()), shares[used]

    @staticmethod
    def _points(point: Tensor, batch: Batch) -> Tensor:
        """The point of each person, if clients have their own."""
        return point if point.dim() == 1 else point[batch.owners()]


def model_of_rows(model: Model) -> Model:
    """The model of single rows, also where a record is a person with several."""
    return model.rows if isinstance(model, PersonModel) else model
