"""Some coordinates of every record's gradient, without computing the others.

For a linear layer, coordinate (i, o) of a record's gradient is input i times error o. So k of them are two
gathers of k numbers and one product, however many parameters the layer has. Only shares without such a form (a
convolution's, for instance) are written out before their coordinates are picked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tacit.models.gradients import ROWS_AT_A_TIME, Divisible, Gradients, RowGradients, chunks_of_rows, owners_of
from tacit.models.shares import LayeredGradients, OuterShare

KEEP_NUMBERS = ROWS_AT_A_TIME // 4
"""Up to this size, picked coordinates are kept; larger ones are picked again when needed."""

FEW = 3
"""Picking pays off only if there are this many times more coordinates than are picked: it reads out of order."""


def active_gradients(gradients: Gradients, indices: Tensor) -> Gradients:
    """The gradients of all records at their own client's `indices` (clients, k): vectors of length k."""
    active = ActiveGradients(gradients, indices)
    records = int(gradients.counts.sum())
    if records * active.dim > KEEP_NUMBERS:
        return active
    # What is picked from is read while it is in the cache, unless it is computed again for every group.
    groups = chunks_of_rows(gradients, in_cache=not isinstance(gradients, Divisible))
    rows = [active.rows(*group) for group in groups] or [active.rows(0, 0)]
    return LayeredGradients.written(torch.cat(rows), gradients.counts)


@dataclass(frozen=True)
class ActiveGradients(RowGradients):
    """Gradient coordinates that are picked when needed, some records at a time."""

    gradients: Gradients
    indices: Tensor

    @property
    def dim(self) -> int:
        return int(self.indices.shape[1])

    @property
    def counts(self) -> Tensor:
        return self.gradients.counts

    def rows(self, start: int, stop: int) -> Tensor:
        """The picked coordinates of some records: (stop - start, k)."""
        owners = owners_of(self.counts)[start:stop]
        few = self.dim * FEW < self.gradients.dim
        factors = _factors(self.gradients, start, stop) if few else None
        if factors is None:
            return self.gradients.rows(start, stop).gather(1, self.indices[owners])
        left, right, from_left, from_right = factors
        lefts = left.gather(1, from_left.to(left.device)[self.indices][owners])
        return lefts.mul_(right.gather(1, from_right.to(left.device)[self.indices][owners]))


def _factors(gradients: Gradients, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Two matrices, and for each coordinate the two columns whose product it is; None if there are none.

    Column 0 of both matrices is one, so a coordinate that is not a product is itself times one.
    """
    if not isinstance(gradients, LayeredGradients):
        return None
    inputs, errors, shapes = [], [], []
    for share in gradients.shares:
        if isinstance(share, OuterShare):
            inputs.append(share.inputs[start:stop])
            errors.append(share.errors[start:stop])
            shapes.append((share.inputs.shape[1], share.errors.shape[1], share.by_input))
        else:
            inputs.append(share.rows(start, stop))
            shapes.append((share.size, 0, False))
    one = inputs[0].new_ones(len(inputs[0]), 1)
    return torch.cat([one, *inputs], dim=1), torch.cat([one, *errors], dim=1), *_columns(tuple(shapes))


@lru_cache(maxsize=64)
def _columns(shapes: tuple[tuple[int, int, bool], ...]) -> tuple[Tensor, Tensor]:
    """The columns for shares given as (inputs, outputs, order); outputs are 0 for shares that are written out."""
    lefts, rights, left, right = [], [], 1, 1
    for inputs, outputs, by_input in shapes:
        columns, errors = torch.arange(left, left + inputs), torch.arange(right, right + outputs)
        if not outputs:
            lefts.append(columns)
            rights.append(torch.zeros_like(columns))
        elif by_input:
            lefts.append(columns.repeat_interleave(outputs))
            rights.append(errors.repeat(inputs))
        else:
            lefts.append(columns.repeat(outputs))
            rights.append(errors.repeat_interleave(inputs))
        left, right = left + inputs, right + outputs
    return torch.cat(lefts), torch.cat(rights)
