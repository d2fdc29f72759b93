"""The objective that training minimises, measured without clipping or noise.

f(x) = sum_i p_i (1/m_i) sum_j f(x; d_ij) + penalty(x), with p_i = 1/n unless the federation says otherwise:
SoteriaFL (Li et al. 2022), equation (1), and ISRL-DP (Lowy & Razaviyayn 2023), appendix H. These numbers use the
records directly. They are for the researcher who simulates; a deployed party releases none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.engine.together import WHOLE, Division
from tacit.federation import Batch, Federation
from tacit.models.model import Model, penalty_gradient
from tacit.models.module import ModuleModel
from tacit.models.network import SigmoidNetwork

CHUNK_BYTES = 2**29


@dataclass(frozen=True)
class Evaluation:
    """The values that are measured for a researcher."""

    train_loss: float
    grad_norm_sq: float
    test_metric: float | None


def evaluate(
    model: Model,
    point: Tensor,
    federation: Federation,
    memory_limit_bytes: int = CHUNK_BYTES,
    division: Division = WHOLE,
) -> Evaluation:
    """Loss and squared gradient norm of the full objective, and the metric on the test records.

    Of several processes, only the first measures the metric.
    """
    loss, gradient = objective(model, point, federation, memory_limit_bytes, division)
    metric = None
    if federation.test_features is not None and division.together.leads:
        metric = model.metric(point.to(federation.features.dtype), federation.test_batch())
        if federation.classes is None:
            # Errors of regressions are proportional to the unit of the targets.
            metric *= federation.target_scale
    return Evaluation(float(loss), float(gradient.double().square().sum()), metric)


def objective(
    model: Model,
    point: Tensor,
    federation: Federation,
    memory_limit_bytes: int = CHUNK_BYTES,
    division: Division = WHOLE,
) -> tuple[Tensor, Tensor]:
    """The value (double) and the gradient of f at a point."""
    point = point.to(federation.features.dtype)
    own = division.own(torch.arange(federation.clients))
    sums = torch.zeros(len(own), 1 + model.dim, dtype=torch.float64)
    for row, group in zip(sums, own, strict=True):
        for clients in _chunks(federation, group, min(memory_limit_bytes, CHUNK_BYTES)):
            # All clients at once need no copy of their records.
            batch = federation.batch(None if len(clients) == federation.clients else clients)
            per_client = 1 / federation.sizes[clients].double()
            if federation.weights is not None:
                per_client = per_client * federation.weights[clients]
            weights = per_client[batch.owners().cpu()]
            # Treated as weighted records of one big client, because sums per client are not needed.
            pooled = Batch(batch.features, batch.targets, torch.tensor([batch.records]))
            value, slope = _weighted(model, point, pooled, weights.to(point.device))
            row[0] += value.cpu()
            row[1:] += slope.double().cpu()
    mean = division.added(sums) / federation.clients
    loss, gradient = mean[0], mean[1:]
    if model.penalty is not None:
        loss = loss + model.penalty.value(point).double().cpu()
    penalty = penalty_gradient(model, point)
    return loss, gradient + (penalty.double().cpu() if isinstance(penalty, Tensor) else penalty)


def _weighted(model: Model, point: Tensor, batch: Batch, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted sum of the records' losses (double), and its gradient."""
    if isinstance(model, ModuleModel | SigmoidNetwork):
        at_once = model.weighted_loss(point, batch, weights)
        if at_once is not None:
            return at_once
    loss = (model.losses(point, batch).double() * weights).sum()
    return loss, model.gradients(point, batch).weighted_sums(weights.to(point.dtype))[0]


def _chunks(federation: Federation, clients: Tensor, most_bytes: int) -> list[Tensor]:
    """Consecutive clients in chunks that are small enough for copies of their records to fit into memory."""
    record = federation.features[0].numel() * federation.features.element_size()
    group = torch.cumsum(federation.sizes[clients], 0) // max(1, most_bytes // (3 * record))
    return list(clients.split(torch.unique(group, return_counts=True)[1].tolist()))
