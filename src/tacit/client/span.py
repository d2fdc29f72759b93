"""Local steps of linear models in the span of a client's own records.

A gradient of a linear model is A^T s, with A the client's records and s the slopes of its losses. So after any
number of steps W = rho W_0 - A^T c, and the scores for the next slopes are rho A W_0 - (A A^T) c. Given the Gram
matrix A A^T, a step costs records^2 instead of records x features, and W is computed once. The norm of A^T c
follows from the Gram matrix, too: where only the sum of bounded updates is needed, no update is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.federation import Batch
from tacit.models.gradients import padded
from tacit.models.linear import LinearModel
from tacit.models.model import Model, flat_features
from tacit.models.penalty import Ridge

_TRUSTED = 0.02
"""Norms are computed from Gram matrices only if at least this part of the squared length does not cancel."""


@dataclass(frozen=True)
class SpanUpdates:
    """The updates of several clients, as coefficients of their records; a bound takes them for its gradients.

    `weighted_sums` adds all of them up, as if one client had them all.
    """

    model: LinearModel
    coefficients: Tensor
    """(clients, outputs, records)"""
    features: Tensor
    """(clients, records, features)"""
    gram: Tensor
    """(clients, records, records), with the intercept"""
    offset: Tensor
    """(dim,): what is in every update beside the records; zero without a penalty"""

    @property
    def dim(self) -> int:
        return self.model.dim

    @property
    def counts(self) -> Tensor:
        return torch.tensor([len(self.coefficients)])

    def rows(self, start: int, stop: int) -> Tensor:
        """The updates of some clients, written out."""
        return self._written(slice(start, stop))

    def _written(self, which: slice | Tensor) -> Tensor:
        model, coefficients, features = self.model, self.coefficients[which], self.features[which]
        size = model.features * model.outputs
        way = features.new_empty(len(features), model.dim)
        products = torch.bmm(coefficients, features).transpose(1, 2)
        way[:, :size].view(-1, model.features, model.outputs).copy_(products)
        if model.intercept:
            way[:, size:] = coefficients.sum(2)
        return way if not bool(self.offset.any()) else way.add_(self.offset)

    def norms(self) -> Tensor:
        """||A^T c||^2 = c^T A A^T c, in double precision; from the written updates where most of it cancels."""
        squares = torch.mul(torch.bmm(self.coefficients, self.gram), self.coefficients).sum((1, 2)).double()
        lengths = self.gram.diagonal(dim1=1, dim2=2).sqrt()[:, None]
        reach = torch.mul(self.coefficients.abs(), lengths).sum(2).double().square().sum(1)
        norms = squares.clamp(min=0).sqrt()
        poor = ~(squares >= _TRUSTED * reach) if not bool(self.offset.any()) else torch.ones_like(norms) > 0
        if bool(poor.any()):
            norms[poor] = torch.linalg.vector_norm(self._written(poor), dim=1, dtype=torch.float64)
        return norms

    def weighted_sums(self, weights: Tensor) -> Tensor:
        """The sum of all updates, each times its weight: (1, dim), by one product."""
        model = self.model
        weights = weights.to(self.coefficients)
        # A client with weight zero adds zero, even if its update is not finite.
        scaled = torch.where(weights[:, None, None] != 0, self.coefficients, 0.0) * weights[:, None, None]
        flat = scaled.transpose(0, 1).reshape(model.outputs, -1)
        total = torch.mm(flat, self.features.reshape(-1, model.features)).T.reshape(-1)
        if model.intercept:
            total = torch.cat([total, flat.sum(1)])
        return (total + self.offset * weights.sum())[None]


def span_updates(
    model: Model,
    point: Tensor,
    batch: Batch,
    steps: int,
    step: float,
    grams: Callable[[], Tensor] | None = None,
) -> SpanUpdates | None:
    """(x - x_i) / step after `steps` full gradient steps of each client from x.

    It equals the plain computation up to rounding; None if it does not apply or would not be faster. `grams`
    gives the clients' A A^T if they are kept (`tacit.client.grams`).
    """
    plain = isinstance(model, LinearModel) and model.smoothing is None
    if not isinstance(model, LinearModel) or not plain or not isinstance(model.penalty, Ridge | None):
        return None
    longest = int(batch.counts.max()) if batch.clients else 0
    outputs, size = model.outputs, model.features * model.outputs
    gram_cost = longest * (longest * model.features + steps * longest * outputs)
    if longest == 0 or gram_cost > 2 * steps * longest * model.features * outputs:
        return None
    records, counts = flat_features(batch), batch.counts
    features, targets = padded(records, counts), padded(batch.targets, counts)
    gram = grams()[:, :longest, :longest] if grams else torch.bmm(features, features.transpose(1, 2))
    # Outputs before records: products, softmax and the backward pass are two to three times as fast.
    start = torch.matmul(point[:size].view(model.features, outputs).T.contiguous(), features.transpose(1, 2))
    if model.intercept:
        gram, start = gram + 1.0, start.add_(point[size:, None])
    # Padding records have weight zero.
    per_record = padded(torch.repeat_interleave(1 / counts.to(records.dtype), counts).to(records.device), counts)
    weights = step * per_record[:, None]
    shrink = 1 - step * (model.penalty.strength if model.penalty else 0.0)
    rho, coefficients = 1.0, torch.zeros_like(start)
    for _ in range(steps):
        scores = torch.baddbmm(start, coefficients, gram, beta=rho, alpha=-1)
        if shrink != 1.0:
            coefficients *= shrink
        coefficients.addcmul_(weights, model.loss.slopes(scores, targets))
        rho *= shrink
    coefficients /= step
    return SpanUpdates(model, coefficients, features, gram, point * ((1 - rho) / step))
