"""A model seen through a bound: what an estimator gets to see of a client's records."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.client.active_gradients import active_gradients
from tacit.client.bounds import Bound, ClipNorm, Normalise
from tacit.client.differences import ScaledDifferences, WrittenDifferences
from tacit.federation import Batch
from tacit.models.gradients import Gradients, OuterGradients, OuterLayer
from tacit.models.linear import LinearModel
from tacit.models.model import Model, flat_features


@dataclass(frozen=True)
class BoundedModel:
    """A model seen through a bound: sums of bounded gradients are all that an estimator gets."""

    model: Model
    bound: Bound
    precision: torch.dtype = torch.float32

    def sums(self, point: Tensor, batch: Batch, at: Tensor | None = None) -> Tensor:
        """For every client the sum of its records' bounded gradients: (clients, dim).

        With `at`, (clients, k) coordinates of each client, the gradients are bounded and summed there alone.
        """
        gradients = self.model.gradients(point.to(self.precision), self._precise(batch))
        return self.bound.sums(gradients if at is None else active_gradients(gradients, at))

    def _precise(self, batch: Batch) -> Batch:
        if batch.features.dtype == self.precision:
            return batch
        targets = batch.targets.to(self.precision) if batch.targets.is_floating_point() else batch.targets
        return Batch(batch.features.to(self.precision), targets, batch.counts)

    def coefficients(self, point: Tensor, batch: Batch) -> Tensor | None:
        """Rows c_j such that every record's bounded gradient is features_j (x) c_j: (records, outputs).

        A linear model's gradients have this form, and keep it under bounds that scale them. Otherwise None.
        """
        # Exactly these: one that is derived from them may bound in another way.
        if not (isinstance(self.model, LinearModel) and type(self.bound) in (ClipNorm, Normalise)):
            return None
        assert isinstance(self.bound, ClipNorm | Normalise), "it is one of these"
        gradients = self.model.gradients(point.to(self.precision), self._precise(batch))
        (layer,) = gradients.layers
        scales = self.bound.scales(gradients).to(self.precision)[:, None]
        coefficients = layer.errors * scales
        return torch.where((scales != 0) & torch.isfinite(coefficients), coefficients, 0.0)

    def combined(self, coefficients: Tensor, batch: Batch) -> Tensor:
        """For every client the sum of features_j (x) c_j: (clients, dim). A row of zeros adds exactly zero."""
        return self.outer(coefficients, batch).weighted_sums((coefficients != 0).any(1))

    def outer(self, coefficients: Tensor, batch: Batch) -> OuterGradients:
        """The gradients features_j (x) c_j."""
        assert isinstance(self.model, LinearModel), "only linear models have coefficients"
        layer = OuterLayer(flat_features(self._precise(batch)), coefficients, self.model.intercept)
        return OuterGradients((layer,), batch.counts)

    def differences(self, point: Tensor, past: Tensor, batch: Batch) -> Gradients:
        """Every record's bounded gradient at a point, less the one at a past point."""
        batch = self._precise(batch)
        now, old = (self.model.gradients(at.to(self.precision), batch) for at in (point, past))
        # Exactly these, as for the coefficients.
        if type(self.bound) not in (ClipNorm, Normalise):
            return WrittenDifferences(now, old, self.bound)
        assert isinstance(self.bound, ClipNorm | Normalise), "it is one of these"
        return ScaledDifferences(now, self.bound.scales(now), old, self.bound.scales(old))
