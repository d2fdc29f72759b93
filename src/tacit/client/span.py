"""Local steps of linear models in the span of a client's own records.

A gradient of a linear model is A^T s, with A the client's records and s the slopes of its losses. So after any
number of steps W = rho W_0 - A^T c, and the scores that the next slopes need are rho A W_0 - (A A^T) c. With the
Gram matrix A A^T at hand a step costs records^2 instead of records x features, and W is written down once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.federation import Batch
from tacit.models.gradients import padded
from tacit.models.linear import LinearModel
from tacit.models.model import Model, flat_features
from tacit.models.penalty import Ridge


def span_update(model: Model, point: Tensor, batch: Batch, steps: int, step: float) -> Tensor | None:
    """(x - x_i) / step after `steps` full gradient steps of every client from x: (clients, dim).

    Equal to the plain computation up to rounding; None where it does not apply or would not be faster.
    """
    plain = isinstance(model, LinearModel) and model.smoothing is None
    if not isinstance(model, LinearModel) or not plain or not isinstance(model.penalty, Ridge | None):
        return None
    longest = int(batch.counts.max()) if batch.clients else 0
    outputs = model.outputs
    gram_cost = longest * (longest * model.features + steps * longest * outputs)
    if longest == 0 or gram_cost > 2 * steps * longest * model.features * outputs:
        return None
    records, counts = flat_features(batch), batch.counts
    features = padded(records, counts)
    gram = torch.bmm(features, features.transpose(1, 2)) + float(model.intercept)
    start = padded(model.scores(point, batch), counts)
    targets = padded(batch.targets, counts)
    # Records that only fill up the rectangle weigh nothing.
    per_record = padded(torch.repeat_interleave(1 / counts.to(records.dtype), counts).to(records.device), counts)
    shrink = 1 - step * (model.penalty.strength if model.penalty else 0.0)
    rho, coefficients = 1.0, torch.zeros_like(start)
    for _ in range(steps):
        scores = torch.baddbmm(start, gram, coefficients, beta=rho, alpha=-1)
        slopes = model.loss.slopes(scores.flatten(0, 1), targets.flatten()).view_as(scores)
        coefficients = shrink * coefficients + step * per_record[..., None] * slopes
        rho *= shrink
    coefficients = coefficients / step
    way = point.new_empty(batch.clients, model.dim)
    weights = way[:, : model.features * outputs].view(batch.clients, model.features, outputs)
    # The long side last, which is twice as fast for few outputs.
    weights.copy_(torch.bmm(coefficients.transpose(1, 2), features).transpose(1, 2))
    if model.intercept:
        way[:, model.features * outputs :] = coefficients.sum(1)
    return way if rho == 1.0 else way.add_(point, alpha=(1 - rho) / step)
