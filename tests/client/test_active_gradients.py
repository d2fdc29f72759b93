"""Some coordinates of every gradient: the same numbers as from gradients that are written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tacit.client import active_gradients as module
from tacit.client.active_gradients import ActiveGradients, active_gradients
from tacit.client.bounds import ClipEachCoordinate, ClipNorm
from tacit.federation import Batch
from tacit.models import softmax_regression
from tacit.models.gradients import Gradients
from tacit.models.model import Model
from tacit.models.module import ModuleModel
from tacit.models.network import SigmoidNetwork
from tacit.models.shares import LayeredGradients

COUNTS = torch.tensor([4, 0, 7, 1])


class Scaled(nn.Module):
    """A parameter that is no layer's, a convolution, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.convolution = nn.Conv2d(1, 3, 2)
        self.first = nn.Linear(6, 5)
        self.last = nn.Linear(5, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.convolution((x * self.scale).reshape(-1, 1, 2, 3)).flatten(1)
        return self.last(torch.tanh(self.first(seen)))  # type: ignore[no-any-return]


MODELS: list[Model] = [
    softmax_regression(features=6, classes=3),
    softmax_regression(features=6, classes=3, intercept=False),
    SigmoidNetwork(features=6, hidden=4, classes=3),
    ModuleModel(Scaled()),
]


def _case(model: Model, kept: int) -> tuple[Gradients, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(kept)
    batch = Batch(torch.randn(12, 6, generator=generator), torch.arange(12) % 3, COUNTS)
    points = torch.randn(4, model.dim, generator=generator)
    order = torch.stack([torch.randperm(model.dim, generator=generator)[:kept] for _ in range(4)])
    indices = order.sort(1).values
    gradients = model.gradients(points, batch)
    return gradients, indices, gradients.rows(0, 12).gather(1, indices[batch.owners()])


@pytest.mark.parametrize("model", MODELS, ids=["linear", "no intercept", "network", "module"])
@pytest.mark.parametrize("kept", [1, 5, 18])
def test_the_coordinates_of_the_written_gradients(model: Model, kept: int) -> None:
    gradients, indices, expected = _case(model, kept)
    active = ActiveGradients(gradients, indices)
    assert active.dim == kept
    torch.testing.assert_close(active.rows(0, 12), expected)
    torch.testing.assert_close(active.rows(3, 9), expected[3:9])
    torch.testing.assert_close(active.norms(), expected.double().norm(dim=1), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("few", [False, True])
def test_bounds_see_only_the_coordinates(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept or picked again in parts, the bounded sums are those of the short vectors."""
    gradients, indices, expected = _case(MODELS[2], 9)
    monkeypatch.setattr(module, "KEEP_NUMBERS", 10**6 if few else 0)
    active = active_gradients(gradients, indices)
    assert isinstance(active, LayeredGradients if few else ActiveGradients)
    for bound in (ClipNorm(0.05), ClipEachCoordinate(0.01)):
        torch.testing.assert_close(bound.sums(active), bound.sums(LayeredGradients.written(expected, COUNTS)))


def test_a_batch_of_nobody() -> None:
    model = MODELS[0]
    empty = Batch(torch.zeros(0, 6), torch.zeros(0).long(), torch.zeros(2).long())
    gradients = model.gradients(torch.zeros(2, model.dim), empty)
    active = active_gradients(gradients, torch.tensor([[0, 2], [1, 5]]))
    for bound in (ClipNorm(1.0), ClipEachCoordinate(1.0)):
        assert torch.equal(bound.sums(active), torch.zeros(2, 2))
        assert torch.equal(
            bound.sums(ActiveGradients(gradients, torch.tensor([[0, 2], [1, 5]]))), torch.zeros(2, 2)
        )
