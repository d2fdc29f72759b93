"""Some coordinates of every record's gradient, without writing down the others.

Where a layer is linear, coordinate (i, o) of a record's gradient is the input i times the error o. So k of them
are two gathers of k numbers and one product, however many parameters the layer has. Only what has no such form
(a convolution's share, for instance) is written out before its coordinates are picked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tacit.models.gradients import (
    ROWS_AT_A_TIME,
    Gradients,
    OuterGradients,
    WrittenGradients,
    chunks_of_rows,
    sums_by_client,
)
from tacit.models.layers import LayeredGradients, OuterShare

KEEP_NUMBERS = ROWS_AT_A_TIME // 4
"""Up to here the coordinates are kept once they were picked; beyond, they are picked again when needed."""

FEW = 3
"""Picking pays where there are so many times more coordinates than are picked: it reads out of order."""


def active_gradients(gradients: Gradients, indices: Tensor) -> Gradients:
    """The gradients of all records at `indices` (clients, k), those of their own client: vectors of length k."""
    active = ActiveGradients(gradients, indices)
    records = int(gradients.counts.sum())
    if records * active.dim > KEEP_NUMBERS:
        return active
    return WrittenGradients(active.rows(0, records), gradients.counts)


@dataclass(frozen=True)
class ActiveGradients:
    """Picked whenever they are asked for, some records at a time."""

    gradients: Gradients
    indices: Tensor

    @property
    def dim(self) -> int:
        """How many coordinates are picked."""
        return int(self.indices.shape[1])

    @property
    def counts(self) -> Tensor:
        """The records of each client."""
        return self.gradients.counts

    def norms(self) -> Tensor:
        """The norms of the picked parts alone."""
        parts = [WrittenGradients(self.rows(*part), self.counts).norms() for part in chunks_of_rows(self)]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def weighted_sums(self, weights: Tensor) -> Tensor:
        """Weighted rows, summed by client."""
        total = sums_by_client(self.rows(0, 0), torch.zeros_like(self.counts))
        owners = self._owners()
        for start, stop in chunks_of_rows(self):
            rows = self.rows(start, stop)
            scales = weights[start:stop].to(rows)[:, None]
            total.index_add_(0, owners[start:stop].to(rows.device), torch.where(scales != 0, rows * scales, 0.0))
        return total

    def rows(self, start: int, stop: int) -> Tensor:
        """The picked coordinates of some records: (stop - start, k)."""
        owners = self._owners()[start:stop]
        few = self.dim * FEW < self.gradients.dim
        factors = _factors(self.gradients, start, stop) if few else None
        if factors is None:
            return self.gradients.rows(start, stop).gather(1, self.indices[owners])
        left, right, from_left, from_right = factors
        lefts = left.gather(1, from_left.to(left.device)[self.indices][owners])
        return lefts.mul_(right.gather(1, from_right.to(left.device)[self.indices][owners]))

    def _owners(self) -> Tensor:
        return torch.repeat_interleave(torch.arange(len(self.counts)), self.counts)


def _factors(gradients: Gradients, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Two matrices, and for every coordinate the column of each whose product it is; None if there is no such.

    Column 0 of both is one: a coordinate that is no product is itself times one.
    """
    if isinstance(gradients, OuterGradients):
        inputs = [layer.inputs[start:stop] for layer in gradients.layers]
        errors = [layer.errors[start:stop] for layer in gradients.layers]
        shapes = tuple((a.inputs.shape[1], a.errors.shape[1], a.bias) for a in gradients.layers)
        return (*_sides(inputs, errors), *_columns_of_layers(shapes))
    if isinstance(gradients, LayeredGradients):
        inputs, errors, widths = [], [], []
        for share in gradients.shares:
            if isinstance(share, OuterShare):
                inputs.append(share.inputs[start:stop])
                errors.append(share.errors[start:stop])
                widths.append((share.inputs.shape[1], share.errors.shape[1]))
            else:
                inputs.append(share.rows(start, stop))
                widths.append((inputs[-1].shape[1], 0))
        return (*_sides(inputs, errors), *_columns_of_shares(tuple(widths)))
    return None


def _sides(inputs: Sequence[Tensor], errors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    one = inputs[0].new_ones(len(inputs[0]), 1)
    return torch.cat([one, *inputs], dim=1), torch.cat([one, *errors], dim=1)


@lru_cache(maxsize=64)
def _columns_of_layers(shapes: tuple[tuple[int, int, bool], ...]) -> tuple[Tensor, Tensor]:
    """Of `OuterGradients`: a weight (inputs x outputs) row by row, then its bias."""
    lefts, rights, left, right = [], [], 1, 1
    for inputs, outputs, bias in shapes:
        errors = torch.arange(right, right + outputs)
        lefts += [
            torch.arange(left, left + inputs).repeat_interleave(outputs),
            torch.zeros(outputs * bias).long(),
        ]
        rights += [errors.repeat(inputs), errors[: outputs * bias]]
        left, right = left + inputs, right + outputs
    return torch.cat(lefts), torch.cat(rights)


@lru_cache(maxsize=64)
def _columns_of_shares(widths: tuple[tuple[int, int], ...]) -> tuple[Tensor, Tensor]:
    """Of `LayeredGradients`: a weight (outputs x inputs) row by row, or written numbers where outputs are 0."""
    lefts, rights, left, right = [], [], 1, 1
    for inputs, outputs in widths:
        columns = torch.arange(left, left + inputs)
        lefts.append(columns.repeat(max(1, outputs)))
        errors = torch.arange(right, right + outputs).repeat_interleave(inputs)
        rights.append(errors if outputs else torch.zeros_like(columns))
        left, right = left + inputs, right + outputs
    return torch.cat(lefts), torch.cat(rights)
