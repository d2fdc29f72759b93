"""The rotation is orthogonal, has an inverse, and spreads what it is given."""

from __future__ import annotations

import pytest
import torch

from tacit.compress.rotation import Rotation

DIMS = [1, 2, 3, 7, 8, 100, 1000]


@pytest.mark.parametrize("dim", DIMS)
def test_it_is_orthogonal_and_turns_back(dim: int) -> None:
    rotation = Rotation(dim)
    matrix = rotation.forward(torch.eye(dim, dtype=torch.float64))
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(dim, dtype=torch.float64))
    torch.testing.assert_close(rotation.back(matrix), torch.eye(dim, dtype=torch.float64))


@pytest.mark.parametrize("dim", [100, 1000, 21_840])
def test_it_spreads_sparse_dense_and_structured_vectors(dim: int) -> None:
    rotation = Rotation(dim)
    generator = torch.Generator().manual_seed(0)
    ends = torch.zeros(2, dim)
    ends[0, 0] = ends[1, -1] = 1.0
    few = torch.randn(20, dim, generator=generator) * (torch.rand(20, dim, generator=generator) < 5 / dim)
    rows = torch.cat([ends, few, torch.randn(5, dim, generator=generator), torch.ones(1, dim)])
    rows = rows[rows.norm(dim=1) > 0]
    turned = rotation.forward(rows / rows.norm(dim=1, keepdim=True))
    assert float(turned.abs().max()) <= rotation.reach(1.0)
    assert rotation.reach(1.0) < 1


def test_lengths_are_never_said_to_shrink_below_one_coordinate() -> None:
    assert Rotation(3).reach(2.0) == 2.0
