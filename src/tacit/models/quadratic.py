"""The synthetic problem of DP-NormFedAvg (Das et al. 2022), appendix F: one convex quadratic per client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.errors import RequestError, count
from tacit.federation import Batch, Federation
from tacit.models.model import check_point
from tacit.models.penalty import Penalty
from tacit.models.shares import LayeredGradients
from tacit.noise.randomness import Purpose, Randomness


@dataclass(frozen=True)
class Quadratic:
    """f_i(w) = 1/2 (w - w_i*)^T A_i A_i^T (w - w_i*); a record's features are [A_i | w_i*]."""

    dim: int
    """the number of parameters"""
    rank: int
    """the number of columns of A_i"""
    penalty: Penalty | None = None
    """the part of the objective that no record influences"""
    metric_name: str = "loss"
    """the name of the metric in reports"""

    def init(self, generator: np.random.Generator) -> Tensor:
        return torch.zeros(self.dim)

    def _residuals(self, point: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        check_point(self, point)
        if batch.features.shape[1:] != (self.dim, self.rank + 1):
            shape = tuple(batch.features.shape[1:])
            raise RequestError(f"a record must be [A | w*] of shape {(self.dim, self.rank + 1)}, not {shape}")
        roots, minima = batch.features[:, :, :-1], batch.features[:, :, -1]
        points = point if point.dim() == 1 else point[batch.owners()]
        return roots, torch.bmm((points - minima)[:, None], roots)[:, 0]

    def losses(self, point: Tensor, batch: Batch) -> Tensor:
        """1/2 ||A_j^T (w - w_j*)||^2."""
        return self._residuals(point, batch)[1].square().sum(1) / 2

    def gradients(self, point: Tensor, batch: Batch) -> LayeredGradients:
        """A_j A_j^T (w - w_j*)."""
        roots, residuals = self._residuals(point, batch)
        return LayeredGradients.written(torch.bmm(roots, residuals[:, :, None])[:, :, 0], batch.counts)

    def predict(self, point: Tensor, features: Tensor) -> Tensor:
        """The loss of each record, because there is nothing to predict."""
        records = len(features)
        batch = Batch(features, torch.zeros(records), torch.tensor([records]))
        return self.losses(point, batch)

    def metric(self, point: Tensor, batch: Batch) -> float:
        return float(self.losses(point, batch).double().mean())


def quadratic_federation(*, clients: int = 100, dim: int = 200, rank: int = 20, seed: int = 0) -> Federation:
    """Draw the problem: w_i* from N(0, I), the entries of A_i from N(0, 1/rank^2).

    Args:
        clients: number of clients, each with one quadratic.
        dim: number of parameters.
        rank: columns of each A_i.
        seed: seed of the problem.

    >>> quadratic_federation(clients=3, dim=5, rank=2).features.shape
    torch.Size([3, 5, 3])
    """
    count("clients", clients)
    generator = Randomness(seed).generator(Purpose.DATA)
    roots = generator.standard_normal((clients, dim, rank)) / rank
    minima = generator.standard_normal((clients, dim, 1))
    features = torch.from_numpy(np.concatenate([roots, minima], axis=2).astype(np.float32))
    return Federation(
        features=features,
        targets=torch.zeros(clients),
        sizes=torch.ones(clients, dtype=torch.int64),
        ids=torch.arange(clients),
        name="quadratic",
    )


def quadratic_minimiser(federation: Federation) -> Tensor:
    """The w that minimises the mean of all clients' quadratics, by least squares in double precision."""
    features = federation.features.double()
    roots, minima = features[:, :, :-1], features[:, :, -1]
    hessian = torch.einsum("jdr,jer->de", roots, roots)
    pull = torch.einsum("jdr,jer,je->d", roots, roots, minima)
    minimiser: Tensor = torch.linalg.lstsq(hessian, pull[:, None]).solution[:, 0]
    return minimiser
