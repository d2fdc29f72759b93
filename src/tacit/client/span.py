"""Local steps of linear models in the span of a client's own records.

A gradient of a linear model is A^T s, with A the client's records and s the slopes of its losses. So after any
number of steps W = rho W_0 - A^T c, and the scores for the next slopes are rho A W_0 - (A A^T) c. Given the Gram
matrix A A^T, a step costs records^2 instead of records x features, and W is computed once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tacit.federation import Batch
from tacit.models.gradients import padded
from tacit.models.linear import LinearModel
from tacit.models.model import Model, flat_features
from tacit.models.penalty import Ridge


def span_update(
    model: Model,
    point: Tensor,
    batch: Batch,
    steps: int,
    step: float,
    grams: Callable[[], Tensor] | None = None,
) -> Tensor | None:
    """(x - x_i) / step after `steps` full gradient steps of each client from x: (clients, dim).

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
    way = point.new_empty(batch.clients, model.dim)
    way[:, :size].view(-1, model.features, outputs).copy_(torch.bmm(coefficients, features).transpose(1, 2))
    if model.intercept:
        way[:, size:] = coefficients.sum(2)
    return way if rho == 1.0 else way.add_(point, alpha=(1 - rho) / step)
