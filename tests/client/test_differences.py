"""Differences of bounded gradients: norms as if written out, sums to match, the same bits in chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tacit.client import differences as module
from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import Bound, ClipEachCoordinate, ClipNorm, Normalise
from tacit.client.differences import ScaledDifferences, WrittenDifferences
from tacit.federation import Batch
from tacit.models import gradients, softmax_regression
from tacit.models.model import Model
from tacit.models.module import ModuleModel, _ChunkedGradients
from tacit.models.network import SigmoidNetwork
from tacit.models.shares import LayeredGradients, OuterShare

RECORDS = 12


def _convolutional() -> ModuleModel:
    torch.manual_seed(5)
    layers = [nn.Conv2d(1, 8, 2), nn.Tanh(), nn.Conv2d(8, 40, 2), nn.Flatten(), nn.Linear(160, 3)]
    return ModuleModel(nn.Sequential(nn.Unflatten(1, (1, 4)), *layers))


MODELS: dict[str, Model] = {
    "linear": softmax_regression(features=16, classes=3),
    "network": SigmoidNetwork(features=16, hidden=5, classes=3),
    "module": _convolutional(),
}


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(RECORDS, 16, generator=generator)
    features[2] = 0.0
    features[3] *= 1e4
    return Batch(features, torch.randint(3, (RECORDS,), generator=generator), torch.tensor([7, 0, 5]))


def _points(model: Model, apart: float) -> tuple[Tensor, Tensor]:
    start = model.init(np.random.default_rng(2))
    return start, start + apart * torch.randn(model.dim, generator=torch.Generator().manual_seed(3))


def _differences(model: Model, bound: Bound, apart: float) -> ScaledDifferences | WrittenDifferences:
    batch = _batch()
    if isinstance(model, ModuleModel):
        batch = Batch(batch.features.reshape(-1, 4, 4), batch.targets, batch.counts)
    found = BoundedModel(model, bound).differences(*_points(model, apart), batch)
    assert isinstance(found, ScaledDifferences | WrittenDifferences)
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bound", [ClipNorm(0.5), Normalise(0.5), ClipEachCoordinate(0.01)])
@pytest.mark.parametrize("apart", [1.0, 1e-3])
def test_norms_and_sums_are_those_of_the_rows(name: str, bound: Bound, apart: float) -> None:
    found = _differences(MODELS[name], bound, apart)
    rows = found.rows(0, RECORDS).double()
    # Convolutions count as a little longer than they are, to make up for how their sums are rounded.
    torch.testing.assert_close(found.norms(), rows.norm(dim=1), rtol=1e-4, atol=1e-4)
    assert bool((found.norms() >= rows.norm(dim=1) * (1 - 1e-5) - 1e-6).all())
    weights = torch.rand(RECORDS, dtype=torch.float64)
    parts = (weights[:, None] * rows).split([7, 0, 5])
    torch.testing.assert_close(
        found.weighted_sums(weights).double(), torch.stack([part.sum(0) for part in parts]), rtol=1e-4, atol=1e-5
    )


def test_a_convolution_is_among_the_shares_that_are_written_out() -> None:
    found = _differences(MODELS["module"], ClipNorm(0.5), 1.0)
    assert isinstance(found, ScaledDifferences)
    assert isinstance(found.now, LayeredGradients)
    kinds = {type(share) for share in found.now.shares}
    assert OuterShare in kinds
    assert len(kinds) > 1


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bound", [ClipNorm(0.5), ClipEachCoordinate(0.01)])
def test_chunks_of_any_size_give_the_same_bits(name: str, bound: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _differences(MODELS[name], bound, 1.0)
    whole = found.norms()
    monkeypatch.setattr(module, "KEEP_ROWS", 1)
    monkeypatch.setattr(gradients, "ROWS_AT_A_TIME", 3 * found.dim)
    assert torch.equal(found.norms(), whole)


def test_gradients_that_are_computed_again_in_chunks_are_no_shorter() -> None:
    model = MODELS["module"]
    assert isinstance(model, ModuleModel)
    batch = _batch()
    batch = Batch(batch.features.reshape(-1, 4, 4), batch.targets, batch.counts)
    whole = _differences(model, ClipNorm(0.5), 1.0)
    assert isinstance(whole, ScaledDifferences)
    now, past = (_ChunkedGradients(model, point, batch, 5) for point in _points(model, 1.0))
    chunked = ScaledDifferences(now, past, whole.now_scales, whole.past_scales)
    torch.testing.assert_close(chunked.norms(), whole.norms(), rtol=1e-4, atol=1e-4)
    assert bool((chunked.norms() >= chunked.rows(0, RECORDS).double().norm(dim=1) * (1 - 1e-5)).all())


def test_gradients_that_are_not_finite_count_as_zero() -> None:
    model = MODELS["linear"]
    batch = _batch()
    batch.features[1], batch.features[4] = torch.inf, torch.nan
    found = BoundedModel(model, ClipNorm(0.5)).differences(*_points(model, 1.0), batch)
    assert bool(torch.isfinite(found.norms()).all())
    assert float(found.norms()[1]) == float(found.norms()[4]) == 0
    assert bool(torch.isfinite(ClipNorm(0.3).sums(found)).all())
