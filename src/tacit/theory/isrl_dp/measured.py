"""How unlike the silos are, measured: v^2 (eq. 29) and v_*^2 (appendix I) of ISRL-DP (Lowy & Razaviyayn 2023).

Everything here LOOKS AT PRIVATE RECORDS, outside of any accounting. It is for the researcher who simulates; a
deployed party releases none of it, and a setting chosen by it is not private.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tacit.errors import RequestError, count, positive
from tacit.federation import Batch, Federation
from tacit.models.model import Model, check_point, penalty_gradient

RECORDS_AT_A_TIME = 2**16
"""About how many records are held in double precision at once."""

RELATIVE_TOLERANCE = 1e-10
"""How small the gradient of the minimiser is, in root mean square gradients of a silo at the origin."""

MOST_STEPS = 100
HALVINGS = 40


def client_gradients(model: Model, federation: Federation, point: Tensor) -> Tensor:
    """The gradient of every silo's own objective at a point, penalty included: (clients, dim), in double.

    Looks at private records.
    """
    check_point(model, point)
    at = point.double().cpu()
    rows = [
        model.gradients(at, batch).weighted_sums(_weights(batch)).detach() for _, batch in _chunks(federation)
    ]
    return torch.cat(rows) + penalty_gradient(model, at)


def heterogeneity_at(model: Model, federation: Federation, point: Tensor) -> float:
    """(1/N) sum_i ||grad F_i(w) - grad F(w)||^2 at a point: what eq. 29 takes the supremum of.

    Looks at private records.

    >>> from tacit.models import Quadratic
    >>> bowls = Federation.from_clients([([[[1.0, 1.0]]], [0.0]), ([[[1.0, 3.0]]], [0.0])])
    >>> heterogeneity_at(Quadratic(dim=1, rank=1), bowls, torch.zeros(1))
    1.0
    """
    gradients = client_gradients(model, federation, point)
    return float((gradients - gradients.mean(0)).square().sum(1).mean())


def heterogeneity_squared(
    model: Model,
    federation: Federation,
    *,
    diameter: float,
    generator: np.random.Generator,
    starts: int = 4,
    steps: int = 50,
) -> float:
    """v^2 of eq. 29: the supremum of `heterogeneity_at` over ||w|| <= diameter/2, approached from below.

    Ascent towards the point of the ball that the gradient points to, never downhill, from the origin and from
    random points of the ball. Maximising is hard in general, so this is a lower estimate of the supremum; for
    quadratics it is one of a convex function, for which such steps end on the boundary. Looks at private records.

    >>> from tacit.models import Quadratic
    >>> from tacit.noise.randomness import Purpose, Randomness
    >>> bowls = Federation.from_clients([([[[1.0, 1.0]]], [0.0]), ([[[2.0, 1.0]]], [0.0])])
    >>> draw = Randomness(0).generator(Purpose.INIT)
    >>> round(heterogeneity_squared(Quadratic(dim=1, rank=1), bowls, diameter=2.0, generator=draw), 6)
    9.0
    """
    radius = positive("diameter", diameter) / 2
    best = 0.0
    for start in range(count("starts", starts)):
        point = torch.zeros(model.dim, dtype=torch.float64)
        if start:
            point = torch.from_numpy(generator.standard_normal(model.dim))
            point *= radius * generator.random() / float(point.norm())
        best = max(best, _ascend(model, federation, point, radius, count("steps", steps)))
    return best


def minimiser(model: Model, federation: Federation) -> Tensor:
    """w*: where the mean of the silos' objectives is least, by Newton's method; (dim,), in double.

    Newton's equations are solved by conjugate gradients with products of the Hessian, so no Hessian is written
    down; steps are halved until the objective falls. Unconstrained, as in the paper. Data that a classifier
    separates have no minimiser: the point then lies far out, where the gradient is negligible. Looks at
    private records.

    >>> from tacit.models import Quadratic
    >>> bowls = Federation.from_clients([([[[1.0, 1.0]]], [0.0]), ([[[1.0, 3.0]]], [0.0])])
    >>> minimiser(Quadratic(dim=1, rank=1), bowls)
    tensor([2.], dtype=torch.float64)
    """
    point = torch.zeros(model.dim, dtype=torch.float64)
    scale = float(client_gradients(model, federation, point).square().sum(1).mean().sqrt())
    for _ in range(MOST_STEPS):
        value, gradient = _objective(model, federation, point)
        size = float(gradient.norm()) / (scale or 1.0)
        if size <= RELATIVE_TOLERANCE:
            return point
        direction = _newton_direction(model, federation, point, gradient, accuracy=min(0.1, size))
        slope = float(gradient @ direction)
        # Rounding of the objective hides the last steps' decrease; allow for it.
        allowance = 1e-13 * abs(value)
        for halving in range(HALVINGS):
            candidate = point + direction / 2**halving
            if _objective(model, federation, candidate)[0] <= value + 1e-4 * slope / 2**halving + allowance:
                point = candidate
                break
        else:
            break
    raise RequestError(
        "no minimiser was found by Newton's method: the model must be convex (a ridge penalty helps)"
    )


def heterogeneity_at_minimiser(model: Model, federation: Federation) -> float:
    """v_*^2 of appendix I: (1/N) sum_i ||grad F_i(w*)||^2 at the common minimiser w*, by Newton's method.

    Zero for silos with the same distribution; zero does not prove that they have it. Looks at private records.

    >>> from tacit.models import Quadratic
    >>> bowls = Federation.from_clients([([[[1.0, 1.0]]], [0.0]), ([[[1.0, 3.0]]], [0.0])])
    >>> heterogeneity_at_minimiser(Quadratic(dim=1, rank=1), bowls)
    1.0
    """
    gradients = client_gradients(model, federation, minimiser(model, federation))
    return float(gradients.square().sum(1).mean())


def _chunks(federation: Federation) -> Iterator[tuple[int, Batch]]:
    """The silos in order, some at a time, in double precision; with each batch its first silo's position."""
    group = torch.cumsum(federation.sizes, 0) // RECORDS_AT_A_TIME
    first = 0
    for clients in torch.arange(federation.clients).split(torch.unique(group, return_counts=True)[1].tolist()):
        batch = federation.batch(clients)
        targets = batch.targets.double() if batch.targets.is_floating_point() else batch.targets
        yield first, dataclasses.replace(batch, features=batch.features.double().cpu(), targets=targets.cpu())
        first += len(clients)


def _weights(batch: Batch) -> Tensor:
    return (1 / batch.counts.double())[batch.owners()]


def _objective(model: Model, federation: Federation, point: Tensor) -> tuple[float, Tensor]:
    value = 0.0
    for _, batch in _chunks(federation):
        value += float((model.losses(point, batch) * _weights(batch)).sum()) / federation.clients
    if model.penalty is not None:
        value += float(model.penalty.value(point))
    return value, client_gradients(model, federation, point).mean(0)


def _client_products(model: Model, federation: Federation, point: Tensor, vectors: Tensor) -> Tensor:
    """The Hessian of every silo's mean loss times its own vector: (clients, dim), without the penalty."""
    products = torch.zeros(federation.clients, model.dim, dtype=torch.float64)
    for first, batch in _chunks(federation):
        rows = slice(first, first + batch.clients)
        points = point.repeat(batch.clients, 1).requires_grad_()
        loss = (model.losses(points, batch) * _weights(batch)).sum()
        (gradients,) = torch.autograd.grad(loss, points, create_graph=True)
        (products[rows],) = torch.autograd.grad((gradients * vectors[rows]).sum(), points)
    return products


def _hessian_product(model: Model, federation: Federation, point: Tensor, vector: Tensor) -> Tensor:
    product = _client_products(model, federation, point, vector.expand(federation.clients, -1)).mean(0)
    if model.penalty is None:
        return product
    at = point.clone().requires_grad_()
    (curved,) = torch.autograd.grad((model.penalty.gradient(at) * vector).sum(), at)
    return product + curved


def _newton_direction(
    model: Model, federation: Federation, point: Tensor, gradient: Tensor, accuracy: float
) -> Tensor:
    """Conjugate gradients for H p = -g, up to the accuracy, or until a direction turns out to be flat."""
    direction, residual = torch.zeros_like(gradient), -gradient
    search, energy = residual.clone(), float(residual @ residual)
    goal = energy * accuracy**2
    for _ in range(2 * len(gradient) + 10):
        bent = _hessian_product(model, federation, point, search)
        curvature = float(search @ bent)
        if curvature <= 1e-14 * float(search.norm() * bent.norm()):
            break
        length = energy / curvature
        direction, residual = direction + length * search, residual - length * bent
        last, energy = energy, float(residual @ residual)
        if energy <= goal:
            break
        search = residual + energy / last * search
    return direction if bool(direction.any()) else -gradient


def _ascend(model: Model, federation: Federation, point: Tensor, radius: float, steps: int) -> float:
    value = heterogeneity_at(model, federation, point)
    for _ in range(steps):
        gradients = client_gradients(model, federation, point)
        uphill = _client_products(model, federation, point, gradients - gradients.mean(0)).mean(0)
        if float(uphill.norm()) == 0:
            return value
        farthest = radius * uphill / uphill.norm()
        for halving in range(HALVINGS):
            candidate = point + (farthest - point) / 2**halving
            reached = heterogeneity_at(model, federation, candidate)
            if reached > value:
                break
        else:
            return value
        converged = reached - value <= 1e-12 * value
        point, value = candidate, reached
        if converged:
            return value
    return value
