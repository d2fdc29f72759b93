"""Bounds hold for every input, record by record."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.client.bounds import Bound, ClipEachCoordinate, ClipNorm, Normalise
from tacit.errors import RequestError
from tacit.models import softmax_regression
from tacit.models.shares import LayeredGradients, linear_shares

BOUNDS: list[Bound] = [ClipNorm(0.7), Normalise(0.7), ClipEachCoordinate(0.3)]

anything = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
)


@pytest.mark.parametrize("bound", BOUNDS)
@given(rows=anything)
def test_no_record_adds_more_than_the_bound(bound: Bound, rows: np.ndarray) -> None:
    gradients = LayeredGradients.written(torch.from_numpy(rows), torch.ones(len(rows), dtype=torch.int64))
    each = bound.sums(gradients)
    assert bool(torch.isfinite(each).all())
    assert float(each.double().norm(dim=1).max()) <= bound.norm(rows.shape[1])


def test_clipping_leaves_short_gradients_alone_and_keeps_directions() -> None:
    rows = torch.tensor([[0.3, 0.4], [30.0, 40.0]])
    clipped = ClipNorm(1.0).sums(LayeredGradients.written(rows, torch.tensor([1, 1])))
    torch.testing.assert_close(clipped, torch.tensor([[0.3, 0.4], [0.6, 0.8]]), atol=1e-4, rtol=2e-4)


def test_normalising_gives_every_gradient_the_same_length_but_zero() -> None:
    rows = torch.tensor([[0.3, 0.4], [30.0, 40.0], [0.0, 0.0]])
    sums = Normalise(2.0).sums(LayeredGradients.written(rows, torch.tensor([1, 1, 1])))
    torch.testing.assert_close(sums.norm(dim=1), torch.tensor([2.0, 2.0, 0.0]), atol=1e-4, rtol=2e-4)


def test_the_bound_is_per_record_not_on_the_mean() -> None:
    """Two opposite large gradients: clipping the mean would leave their difference unbounded."""
    rows = torch.tensor([[1e6, 0.0], [-1e6, 1.0]])
    sums = ClipNorm(1.0).sums(LayeredGradients.written(rows, torch.tensor([2])))
    assert float(sums.norm()) < 1e-5


def test_the_bound_holds_for_long_gradients() -> None:
    for dim in (30_720, 10**6):
        rows = torch.randn(8, dim, generator=torch.Generator().manual_seed(dim))
        each = ClipNorm(1.0).sums(LayeredGradients.written(rows, torch.ones(8, dtype=torch.int64)))
        assert float(each.double().norm(dim=1).max()) <= 1.0


def test_bounded_sums_of_a_model_need_no_written_gradients() -> None:
    model = softmax_regression(features=4, classes=3)
    generator = torch.Generator().manual_seed(0)
    from tacit.federation import Batch

    batch = Batch(torch.randn(9, 4, generator=generator), torch.arange(9) % 3, torch.tensor([5, 4]))
    gradients = model.gradients(torch.randn(model.dim, generator=generator), batch)
    written = LayeredGradients.written(gradients.rows(0, 9), batch.counts)
    for bound in BOUNDS:
        torch.testing.assert_close(bound.sums(gradients), bound.sums(written), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_must_be_a_positive_number(value: float) -> None:
    for kind in (ClipNorm, Normalise, ClipEachCoordinate):
        with pytest.raises(RequestError):
            kind(value)


def test_the_bound_holds_where_squares_vanish_and_where_inputs_overflow() -> None:
    """Single-precision squares of these features are zero, and those of the errors infinite."""
    inputs = torch.full((1, 784), 2.6e-23)
    for slope in (1e10, 1e18, 3e38):
        gradients = LayeredGradients(linear_shares(inputs, torch.tensor([[slope]]), False), torch.tensor([1]))
        for bound in (ClipNorm(1e-4), Normalise(1.0)):
            assert float(bound.sums(gradients).double().norm()) <= bound.norm(784)
    shares = linear_shares(torch.tensor([[float("inf"), 1.0]]), torch.tensor([[1.0]]), True)
    infinite = LayeredGradients(shares, torch.tensor([1]))
    assert torch.equal(ClipNorm(1.0).sums(infinite), torch.zeros(1, 3))


@pytest.mark.parametrize("bound", [ClipNorm(1.0), Normalise(1.0)])
def test_the_bound_holds_where_scales_leave_single_precision(bound: Bound) -> None:
    """A scale of 0.8e-45 would be rounded to 1.4e-45."""
    sizes = torch.logspace(15, 24, 500)
    gradients = LayeredGradients(linear_shares(sizes[:, None], sizes[:, None], False), torch.ones(500).long())
    each = bound.sums(gradients).abs()
    assert float(each.max()) <= 1.0
    assert float(each[sizes < 1e18].min()) > 0.999


@pytest.mark.parametrize("value", [3e-44, 1e13])
def test_bounds_beyond_single_precision_are_refused(value: float) -> None:
    for kind in (ClipNorm, Normalise, ClipEachCoordinate):
        with pytest.raises(RequestError, match="between"):
            kind(value)
