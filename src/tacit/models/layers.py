"""Per-record gradients of networks, layer by layer, each in its cheapest form.

A layer with weight W that is applied to record j at L positions, with inputs a_jl and errors e_jl there, has the
gradient G_j = sum_l e_jl a_jl^T. For L = 1, a linear layer, ||G_j|| = ||e_j|| ||a_j||. For L > 1, a convolution,
there are two ways to compute ||G_j||: write G_j out (outputs * inputs * L multiplications), or

    ||G_j||^2 = sum_{l, m} (e_jl . e_jm) (a_jl . a_jm)        ((outputs + inputs) * L^2 multiplications),

and the cheaper one is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from tacit.models.gradients import ROWS_AT_A_TIME, double_norms, owners_of, places, scaled, trusted
from tacit.models.shares import OuterShare, Share, WrittenShare, kept, scaled_errors

KEEP_ROWS = ROWS_AT_A_TIME // 4
"""Up to this size, a layer's written-out gradients are kept; larger ones are written out twice."""

COST_OF_WRITING, COST_OF_WRITING_FAR, FAR = 16, 128, 2**16
"""Writing and reading back a number takes as long as about this many multiplications: the first value, or the
second if a record has more numbers than the third. Measured on one core, as is the next."""

COST_OF_PRODUCTS = 8
"""A double-precision product of small matrices takes as long as about this many in single precision."""

CANCELLATION = 100
"""The least value of a norm from products, in units of the rounding error of the sum without cancellation.

If the positions of a record nearly cancel, the single-precision sum is rounded relative to the terms that cancel,
not to the result: for L positions by at most (L + 2) 2^-24 of them. Norms are taken to be at least a hundred
times that, so that a clipped record exceeds its bound by a factor of at most 1 + (1/100)^2 / 2, which is within
the margin of the bounds.
"""


@dataclass(frozen=True)
class Owners:
    """Which client each row of a batch belongs to, computed once for all layers.

    >>> clients = Owners.of(torch.tensor([2, 0, 1]), torch.device("cpu"))
    >>> clients.padded(torch.tensor([1.0, 2.0, 3.0]))
    tensor([[1., 2.],
            [0., 0.],
            [3., 0.]])
    """

    sizes: list[int]
    owners: Tensor
    places: Tensor | None
    """the place of each record in a rectangle of all clients; None if the records fill it without padding"""

    @classmethod
    def of(cls, counts: Tensor, device: torch.device) -> Owners:
        """The owners, from the number of consecutive records of each client."""
        owners, longest = owners_of(counts).to(device), int(counts.max())
        full = len(counts) * longest == len(owners)
        return cls(counts.tolist(), owners, None if full else places(counts, longest).to(device))

    def padded(self, rows: Tensor) -> Tensor:
        """Rows as a rectangle (clients, most records, ...), padded with zeros."""
        shape = (len(self.sizes), max(self.sizes), *rows.shape[1:])
        if self.places is None:
            return rows.reshape(shape)
        rectangle = rows.new_zeros(shape)
        rectangle.flatten(0, 1)[self.places] = rows
        return rectangle

    def unpadded(self, rectangle: Tensor) -> Tensor:
        """The inverse of `padded`."""
        rows = rectangle.flatten(0, 1)
        return rows if self.places is None else rows[self.places]


def _squares(rows: Tensor) -> Tensor:
    return double_norms(rows.flatten(1)).square()


@dataclass(frozen=True)
class _Positions:
    """sum_l e_jl a_jl^T over L positions; the columns a_jl are computed from `inputs` when needed."""

    inputs: Tensor
    errors: Tensor
    """(records, outputs, positions)"""
    columns: Callable[[Tensor], Tensor]
    """maps some records' inputs to columns (records, width, positions)"""
    width: int

    @property
    def size(self) -> int:
        """The number of parameters, outputs times width."""
        return self.errors.shape[1] * self.width

    @property
    def like(self) -> Tensor:
        """The errors."""
        return self.errors

    def rows(self, start: int, stop: int) -> Tensor:
        """Some records' shares, written out: one small product per record."""
        columns = self.columns(self.inputs[start:stop])
        return torch.bmm(self.errors[start:stop], columns.transpose(1, 2)).flatten(1)

    def _ranges(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        outputs, positions = self.errors.shape[1:]
        size = max(1, KEEP_ROWS // max(outputs * self.width, self.width * positions, positions**2))
        for start in range(first, last, size):
            yield start, min(last, start + size)


@dataclass(frozen=True)
class RowsShare(_Positions):
    """Many positions: written out some records at a time, once for the norms and once for the sums."""

    def squares(self) -> Tensor:
        """The squared norm of each row, some records at a time."""
        return torch.cat([_squares(self.rows(a, b)) for a, b in self._ranges(0, len(self.errors))])

    def sums(self, weights: Tensor, counts: Tensor, out: Tensor) -> None:
        owners = owners_of(counts).to(out.device)
        total = self.errors.new_zeros(len(counts), self.size)
        for start, stop in self._ranges(0, len(self.errors)):
            total.index_add_(0, owners[start:stop], scaled(self.rows(start, stop), weights[start:stop]))
        out.copy_(total)


@dataclass(frozen=True)
class ProductsShare(_Positions):
    """Few positions and many parameters: norms come from products of positions, and nothing is written out."""

    def squares(self) -> Tensor:
        """sum_{l, m} (e_l . e_m)(a_l . a_m), in double precision because its terms may cancel."""
        return torch.cat([self._squares_of(a, b) for a, b in self._ranges(0, len(self.errors))])

    def _squares_of(self, start: int, stop: int) -> Tensor:
        columns, errors = self.columns(self.inputs[start:stop]).double(), self.errors[start:stop].double()
        products = torch.bmm(columns.transpose(1, 2), columns) * torch.bmm(errors.transpose(1, 2), errors)
        if_nothing_cancels = trusted(double_norms(columns.flatten(1))).square() * _squares(errors)
        roundings = CANCELLATION * (errors.shape[2] + 2) * 2**-24
        return products.sum((1, 2)).clamp(min=0.0) + roundings**2 * if_nothing_cancels

    def sums(self, weights: Tensor, counts: Tensor, out: Tensor) -> None:
        """One matrix product per client, over its records and positions together."""
        errors, inputs = scaled_errors(self.errors, weights), kept(self.inputs, weights)
        sizes = counts.tolist()
        for client, (end, size) in enumerate(zip(accumulate(sizes), sizes, strict=True)):
            total = errors.new_zeros(errors.shape[1], self.width)
            for start, stop in self._ranges(end - size, end):
                columns = self.columns(inputs[start:stop]).transpose(1, 2).flatten(0, 1)
                total += errors[start:stop].transpose(0, 1).flatten(1) @ columns
            out[client] = total.flatten()


def weight_share(inputs: Tensor, errors: Tensor, columns: Callable[[Tensor], Tensor], width: int) -> Share:
    """The cheapest form of a weight's share: (outputs x width) parameters, errors (records, outputs, positions).

    In double precision, which is used when noise for real releases is added, norms never come from products,
    whose terms may cancel: sums are then always sums of gradients whose own norms were bounded.
    """
    records, outputs, positions = errors.shape
    if positions == 1:
        return OuterShare(columns(inputs)[:, :, 0], errors[:, :, 0])
    by_products = COST_OF_PRODUCTS * positions**2 * (outputs + width)
    writing = COST_OF_WRITING_FAR if outputs * width > FAR else COST_OF_WRITING
    by_rows = outputs * width * (positions + writing)
    if by_products < by_rows and errors.dtype == torch.float32:
        return ProductsShare(inputs, errors, columns, width)
    rows = RowsShare(inputs, errors, columns, width)
    return WrittenShare(rows.rows(0, records)) if records * outputs * width <= KEEP_ROWS else rows
