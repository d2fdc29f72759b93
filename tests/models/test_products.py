"""Products and sums by client, on every path that is chosen for speed, against the plain computation."""

from __future__ import annotations

import pytest
import torch

from tacit.models import gradients
from tacit.models.gradients import affine, products_by_client
from tacit.models.shares import LayeredGradients


@pytest.mark.parametrize("large", [1, 10**9])
@pytest.mark.parametrize(("left_width", "right_width"), [(5, 3), (300, 10), (300, 17), (5, 40)])
@pytest.mark.parametrize("sizes", [[4], [4, 4, 4], [3, 0, 7], [90, 0, 70], [0, 0], []])
def test_products_are_those_of_every_client_alone(
    sizes: list[int], left_width: int, right_width: int, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "LARGE_PRODUCT", large)
    draw = torch.Generator().manual_seed(3)
    left = torch.randn(sum(sizes), left_width, generator=draw, dtype=torch.float64)
    right = torch.randn(sum(sizes), right_width, generator=draw, dtype=torch.float64)
    # A slice of something larger, as the sums of a model of several layers are.
    out = torch.full((len(sizes), left_width * right_width + 5), torch.nan, dtype=torch.float64)
    products_by_client(left, right, torch.tensor(sizes, dtype=torch.int64), out[:, 2:-3])
    plain = [(a.T @ b).flatten() for a, b in zip(left.split(sizes), right.split(sizes), strict=True)]
    expected = torch.stack(plain) if plain else torch.empty(0, left_width * right_width, dtype=torch.float64)
    torch.testing.assert_close(out[:, 2:-3], expected)
    assert bool(out[:, [0, 1, -3, -2, -1]].isnan().all())


@pytest.mark.parametrize("outputs", [1, 10, 40])
@pytest.mark.parametrize("with_bias", [True, False])
def test_affine_is_the_product_and_the_bias(outputs: int, with_bias: bool) -> None:
    draw = torch.Generator().manual_seed(4)
    inputs, weight = torch.randn(7, 30, generator=draw), torch.randn(30, outputs, generator=draw)
    bias = torch.randn(outputs, generator=draw) if with_bias else None
    found = affine(inputs, weight, bias, torch.tensor([7]))
    expected = inputs.double() @ weight.double() + (0.0 if bias is None else bias.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_one_row_a_client_is_its_own_sum_and_weight_zero_is_zero() -> None:
    rows = torch.tensor([[1.0, 2.0], [torch.nan, torch.inf], [3.0, 4.0]])
    weights = torch.tensor([2.0, 0.0, 1.0])
    each = LayeredGradients.written(rows, torch.ones(3, dtype=torch.int64)).weighted_sums(weights)
    assert each.tolist() == [[2.0, 4.0], [0.0, 0.0], [3.0, 4.0]]
    assert LayeredGradients.written(rows, torch.tensor([3])).weighted_sums(weights).tolist() == [[5.0, 8.0]]
