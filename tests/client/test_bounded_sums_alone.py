"""Bounded sums are sums of gradients that were bounded one record at a time, however they are cut into parts."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import SHAVE, Bound, ClipEachCoordinate, ClipNorm, Normalise
from tacit.federation import Batch
from tacit.models import ModuleModel
from tacit.models.persons import PersonModel

WIDTH = 6
SIZES = ("models.module.ROWS_AT_A_TIME", "models.gradients.ROWS_AT_A_TIME", "models.gradients.ROWS_IN_CACHE")
KEPT = ("models.layers.KEEP_ROWS", "client.active_gradients.KEEP_NUMBERS")


class Shortcut(nn.Module):
    """Code of a user's own, with a parameter that is in no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale, self.head = (
            nn.Linear(WIDTH, WIDTH),
            nn.Parameter(torch.ones(WIDTH)),
            nn.Linear(6, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x + self.scale * torch.tanh(self.layer(x)) + self.layer(x))
        return out


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, 3),
    "chain": lambda: nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, 3)),
    "pictures": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
    ),
    "groups": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 1, 3)), nn.Conv2d(2, 4, (1, 2), groups=2), nn.Flatten(), nn.Linear(8, 3)
    ),
    "shortcut": Shortcut,
}
BOUNDS = (ClipNorm(0.01), ClipNorm(5.0), Normalise(0.3), ClipEachCoordinate(0.01), ClipEachCoordinate(0.5))


def _alone(model: ModuleModel, point: Tensor, row: Tensor, label: Tensor) -> Tensor:
    point = point.detach().clone().requires_grad_()
    loss = F.cross_entropy(functional_call(model.module, model._state(point), (row[None],)), label[None])
    return torch.autograd.grad(loss, point)[0]


def _bounded(bound: Bound, gradient: Tensor) -> Tensor:
    if isinstance(bound, ClipNorm) and not gradient.any():
        return gradient
    match bound:
        case ClipNorm(most):
            return gradient * min(1.0, most * SHAVE / float(gradient.norm()))
        case Normalise(length):
            # The sign of what is left of nothing is anyone's guess.
            assume(float(gradient.norm()) > 1e-8)
            return gradient * (length * SHAVE / float(gradient.norm()))
        case ClipEachCoordinate(limit):
            return gradient.clamp(-limit * SHAVE, limit * SHAVE)
    raise AssertionError(bound)


def _records(counts: list[int], persons: bool, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    number = sum(counts)
    features = 3 * torch.randn(number, WIDTH, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (number,), generator=generator)
    if not persons:
        return Batch(features, labels, torch.tensor(counts))
    rows = torch.randn(number, 3, WIDTH, generator=generator, dtype=torch.float64)
    used = torch.randint(1, 4, (number,), generator=generator)
    inside = torch.arange(3)[None] < used[:, None]
    targets = torch.randint(3, (number, 3), generator=generator) * inside
    bundle = torch.cat([rows * inside[..., None], targets[..., None], (inside / used[:, None])[..., None]], dim=2)
    return Batch(bundle, labels, torch.tensor(counts))


def _of_record(model: ModuleModel, point: Tensor, record: Tensor, label: Tensor) -> Tensor:
    if record.dim() == 1:
        return _alone(model, point, record, label)
    rows = [share * _alone(model, point, row[:-2], row[-2].long()) for row in record if (share := row[-1]) > 0]
    return torch.stack(rows).sum(0)


@pytest.mark.parametrize("name", NETWORKS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    counts=st.lists(st.sampled_from([0, 0, 1, 2, 3, 7, 13]), min_size=1, max_size=5),
    bound=st.sampled_from(BOUNDS),
    own_points=st.booleans(),
    persons=st.booleans(),
    kept=st.sampled_from([None, 1, 5]),
    memory=st.sampled_from([1, 60, 400, 3000, 2**26]),
    room=st.sampled_from([0, 40, 2**24]),
    seed=st.integers(0, 10_000),
)
def test_every_record_is_bounded_alone(
    name: str,
    counts: list[int],
    bound: Bound,
    own_points: bool,
    persons: bool,
    kept: int | None,
    memory: int,
    room: int,
    seed: int,
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ModuleModel(NETWORKS[name]().double())
        points = torch.randn(len(counts), model.dim, dtype=torch.float64)
        points = points if own_points else points[:1].expand_as(points)
        at = None if kept is None else torch.stack([torch.randperm(model.dim)[:kept] for _ in counts])
    batch = _records(counts, persons, seed)
    expected = torch.zeros(len(counts), kept or model.dim, dtype=torch.float64)
    for record, label, owner in zip(batch.features, batch.targets, batch.owners().tolist(), strict=True):
        gradient = _of_record(model, points[owner], record, label)
        expected[owner] += _bounded(bound, gradient if at is None else gradient[at[owner]])
    limits = {**dict.fromkeys(SIZES, memory), **dict.fromkeys(KEPT, room)}
    patches = [patch(f"tacit.{place}", most) for place, most in limits.items()]
    for one in patches:
        one.start()
    try:
        bounded = BoundedModel(PersonModel(model) if persons else model, bound, torch.float64)
        found = bounded.sums(points if own_points else points[0], batch, at)
    finally:
        for one in patches:
            one.stop()
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-7)
