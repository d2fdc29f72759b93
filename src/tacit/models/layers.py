"""Per-record gradients of networks, layer by layer, each in the form in which it costs least.

A layer with weight W that meets record j at L positions, with inputs a_jl and errors e_jl there, has the gradient
G_j = sum_l e_jl a_jl^T. For L = 1, a linear layer, ||G_j|| = ||e_j|| ||a_j||. For L > 1, a convolution, there
are two ways to ||G_j||: write G_j down (outputs * inputs * L multiplications), or

    ||G_j||^2 = sum_{l, m} (e_jl . e_jm) (a_jl . a_jm)        ((outputs + inputs) * L^2 multiplications),

and whichever costs less is taken.
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
"""Up to here a layer's gradients are kept once they are written down, beyond they are written down twice."""

COST_OF_WRITING, COST_OF_WRITING_FAR, FAR = 16, 128, 2**16
"""To write a number down and to read it back takes as long as about so many multiplications: the second, where a
record has more than the third. Measured on one core, as is the next."""

COST_OF_PRODUCTS = 8
"""A multiplication of small matrices in double precision takes as long as about so many in single precision."""

CANCELLATION = 100
"""The least that a norm from products counts, in roundings of what it would be if nothing cancelled out.

Where the positions of a record nearly cancel, the sum in single precision is rounded relative to what cancels,
not to what is left: for L positions by at most (L + 2) 2^-24 of that. Norms count at least a hundred times as
much, so that a clipped record exceeds its bound by a factor of at most 1 + (1/100)^2 / 2, which is within the
margin that bounds keep.
"""


@dataclass(frozen=True)
class Owners:
    """Whose records the rows of a batch are, worked out once for all its layers.

    >>> clients = Owners.of(torch.tensor([2, 0, 1]), torch.device("cpu"))
    >>> clients.padded(torch.tensor([1.0, 2.0, 3.0]))
    tensor([[1., 2.],
            [0., 0.],
            [3., 0.]])
    """

    sizes: list[int]
    owners: Tensor
    places: Tensor | None
    """where a record goes in a rectangle of all clients; None where records fill it as they are"""

    @classmethod
    def of(cls, counts: Tensor, device: torch.device) -> Owners:
        """From how many consecutive records belong to each client."""
        owners, longest = owners_of(counts).to(device), int(counts.max())
        full = len(counts) * longest == len(owners)
        return cls(counts.tolist(), owners, None if full else places(counts, longest).to(device))

    def padded(self, rows: Tensor) -> Tensor:
        """Rows as a rectangle (clients, most records, ...), filled up with zeros."""
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
    """sum_l e_jl a_jl^T over L positions; the columns a_jl are made from `inputs` when they are needed."""

    inputs: Tensor
    errors: Tensor
    """(records, outputs, positions)"""
    columns: Callable[[Tensor], Tensor]
    """some records' inputs -> (records, width, positions)"""
    width: int

    @property
    def size(self) -> int:
        """Outputs times width."""
        return self.errors.shape[1] * self.width

    @property
    def like(self) -> Tensor:
        """The errors."""
        return self.errors

    def rows(self, start: int, stop: int) -> Tensor:
        """One small product a record."""
        columns = self.columns(self.inputs[start:stop])
        return torch.bmm(self.errors[start:stop], columns.transpose(1, 2)).flatten(1)

    def _ranges(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        outputs, positions = self.errors.shape[1:]
        size = max(1, KEEP_ROWS // max(outputs * self.width, self.width * positions, positions**2))
        for start in range(first, last, size):
            yield start, min(last, start + size)


@dataclass(frozen=True)
class RowsShare(_Positions):
    """Many positions, written down some records at a time: once for the norms and once for the sums."""

    def squares(self) -> Tensor:
        """Row by row."""
        return torch.cat([_squares(self.rows(a, b)) for a, b in self._ranges(0, len(self.errors))])

    def sums(self, weights: Tensor, counts: Tensor, out: Tensor) -> None:
        """Weighted rows, summed by client."""
        owners = owners_of(counts).to(out.device)
        total = self.errors.new_zeros(len(counts), self.size)
        for start, stop in self._ranges(0, len(self.errors)):
            total.index_add_(0, owners[start:stop], scaled(self.rows(start, stop), weights[start:stop]))
        out.copy_(total)


@dataclass(frozen=True)
class ProductsShare(_Positions):
    """Few positions of many parameters: norms from the products of positions, nothing is written down."""

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
        """One matrix product a client, over its records and positions together."""
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

    In double precision, in which noise for real releases is added, nothing is left to cancellation: sums are then
    always sums of gradients that were bounded as they are.
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
