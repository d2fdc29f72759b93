"""A model combined with a bound: the only access that an estimator has to a client's records."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.client.active_gradients import active_gradients
from tacit.client.bounds import Bound, Scaling
from tacit.client.differences import ScaledDifferences, WrittenDifferences
from tacit.federation import Batch
from tacit.models.gradients import Divisible, Gradients
from tacit.models.linear import LinearModel
from tacit.models.model import Model, flat_features
from tacit.models.shares import LayeredGradients, linear_shares


@dataclass(frozen=True)
class BoundedModel:
    """A model combined with a bound: an estimator sees only bounded gradients."""

    model: Model
    bound: Bound
    precision: torch.dtype = torch.float32

    def sums(self, point: Tensor, batch: Batch, at: Tensor | None = None) -> Tensor:
        """For each client, the sum of its records' bounded gradients: (clients, dim).

        With `at`, (clients, k) coordinates per client, gradients are bounded and summed only there.
        """
        gradients = self.model.gradients(point.to(self.precision), self._precise(batch))
        if not isinstance(gradients, Divisible):
            return self._sums(gradients, at)
        # Norms and sums come from one computation of each part: what does not fit into memory is computed once.
        total = gradients.point.new_zeros(len(gradients.counts), gradients.dim if at is None else at.shape[1])
        for clients, part in gradients.parts():
            total[clients] += self._sums(part, None if at is None else at[clients])
        return total

    def _sums(self, gradients: Gradients, at: Tensor | None) -> Tensor:
        return self.bound.sums(gradients if at is None else active_gradients(gradients, at))

    def _precise(self, batch: Batch) -> Batch:
        if batch.features.dtype == self.precision:
            return batch
        targets = batch.targets.to(self.precision) if batch.targets.is_floating_point() else batch.targets
        return Batch(batch.features.to(self.precision), targets, batch.counts)

    def coefficients(self, point: Tensor, batch: Batch) -> Tensor | None:
        """Rows c_j such that every record's bounded gradient is features_j (x) c_j: (records, outputs).

        A linear model's gradients have this form, and bounds that scale them preserve it. Otherwise None.
        """
        if not (isinstance(self.model, LinearModel) and isinstance(self.bound, Scaling)):
            return None
        gradients = self.model.gradients(point.to(self.precision), self._precise(batch))
        errors = gradients.shares[0].like
        scales = self.bound.scales(gradients).to(self.precision)[:, None]
        coefficients = errors * scales
        return torch.where((scales != 0) & torch.isfinite(coefficients), coefficients, 0.0)

    def combined(self, coefficients: Tensor, batch: Batch) -> Tensor:
        """For each client, the sum of features_j (x) c_j: (clients, dim). A row of zeros adds exactly zero."""
        return self.outer(coefficients, batch).weighted_sums((coefficients != 0).any(1))

    def outer(self, coefficients: Tensor, batch: Batch) -> LayeredGradients:
        """The gradients features_j (x) c_j."""
        assert isinstance(self.model, LinearModel), "only linear models have coefficients"
        features = flat_features(self._precise(batch))
        return LayeredGradients(linear_shares(features, coefficients, self.model.intercept), batch.counts)

    def differences(self, point: Tensor, past: Tensor, batch: Batch) -> Gradients:
        """Each record's bounded gradient at a point, minus its bounded gradient at a past point."""
        batch = self._precise(batch)
        now, old = (self.model.gradients(at.to(self.precision), batch) for at in (point, past))
        if not isinstance(self.bound, Scaling):
            return WrittenDifferences(now, old, self.bound)
        return ScaledDifferences(now, old, self.bound.scales(now), self.bound.scales(old))
