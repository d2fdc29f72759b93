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
from typing import Protocol

import torch
from torch import Tensor

from tacit.models.gradients import FEW_RECORDS, ROWS_AT_A_TIME, double_norms, trusted

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
        owners = torch.repeat_interleave(torch.arange(len(counts)), counts)
        longest = int(counts.max())
        if len(counts) * longest == len(owners):
            return cls(counts.tolist(), owners.to(device), None)
        starts = torch.cumsum(counts, 0) - counts
        places = owners * longest + torch.arange(len(owners)) - starts[owners]
        return cls(counts.tolist(), owners.to(device), places.to(device))

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

    def sums(self, rows: Tensor) -> Tensor:
        """Rows added up client by client."""
        return rows.new_zeros(len(self.sizes), *rows.shape[1:]).index_add_(0, self.owners, rows)

    def products(self, left: Tensor, right: Tensor) -> Tensor:
        """left_c^T right_c of every client c's rows: (clients, left width, right width)."""
        if self.places is None or len(left) < FEW_RECORDS * len(self.sizes):
            return torch.bmm(self.padded(left).transpose(1, 2), self.padded(right))
        pairs = zip(left.split(self.sizes), right.split(self.sizes), strict=True)
        return torch.stack([a.T @ b for a, b in pairs])


class Share(Protocol):
    """One parameter's share of every record's gradient."""

    def squares(self) -> Tensor:
        """The squared norm of every record's share, in double precision: (records,)."""
        ...

    def sums(self, weights: Tensor, clients: Owners) -> Tensor:
        """The weighted sum of every client's records: (clients, parameters). Weight zero adds exactly zero."""
        ...

    def rows(self, start: int, stop: int) -> Tensor:
        """Some records' shares, written out: (stop - start, parameters)."""
        ...


def _squares(rows: Tensor) -> Tensor:
    return double_norms(rows.flatten(1)).square()


def _input_squares(inputs: Tensor) -> Tensor:
    return trusted(double_norms(inputs.flatten(1))).square()


def _factors(weights: Tensor, rows: Tensor) -> Tensor:
    return weights.to(rows.dtype).reshape(-1, *[1] * (rows.dim() - 1))


def _scaled(rows: Tensor, weights: Tensor) -> Tensor:
    """Every record times its weight, and exactly zero where that is zero."""
    factors = _factors(weights, rows)
    scaled = rows * factors
    return scaled if bool((factors != 0).all()) else torch.where(factors != 0, scaled, 0.0)


def _scaled_errors(errors: Tensor, weights: Tensor) -> Tensor:
    """The same for errors, which a large weight may carry out of range: such a record adds zero."""
    scaled = _scaled(errors, weights)
    finite = torch.isfinite(scaled).flatten(1).all(1)
    return scaled if bool(finite.all()) else torch.where(_factors(finite, scaled) != 0, scaled, 0.0)


def _kept(rows: Tensor, weights: Tensor) -> Tensor:
    """Zero for the records of weight zero, because zero times what is not finite would not be zero."""
    factors = _factors(weights, rows)
    return rows if bool((factors != 0).all()) else torch.where(factors != 0, rows, 0.0)


@dataclass(frozen=True)
class WrittenShare:
    """Written down for every record: (records, parameters)."""

    gradients: Tensor

    def squares(self) -> Tensor:
        """Row by row."""
        return _squares(self.gradients)

    def sums(self, weights: Tensor, clients: Owners) -> Tensor:
        """Weighted rows, summed by client."""
        return clients.sums(_scaled(self.gradients, weights))

    def rows(self, start: int, stop: int) -> Tensor:
        """As they are."""
        return self.gradients[start:stop]


@dataclass(frozen=True)
class OuterShare:
    """errors (x) inputs, one position a record: never written down."""

    inputs: Tensor
    errors: Tensor

    def squares(self) -> Tensor:
        """||errors||^2 ||inputs||^2."""
        return _input_squares(self.inputs) * _squares(self.errors)

    def sums(self, weights: Tensor, clients: Owners) -> Tensor:
        """One matrix product a client."""
        errors = _scaled_errors(self.errors, weights)
        return clients.products(errors, _kept(self.inputs, weights)).flatten(1)

    def rows(self, start: int, stop: int) -> Tensor:
        """Outer products."""
        return (self.errors[start:stop, :, None] * self.inputs[start:stop, None, :]).flatten(1)


@dataclass(frozen=True)
class _Positions:
    """sum_l e_jl a_jl^T over L positions; the columns a_jl are made from `inputs` when they are needed."""

    inputs: Tensor
    errors: Tensor
    """(records, outputs, positions)"""
    columns: Callable[[Tensor], Tensor]
    """some records' inputs -> (records, width, positions)"""
    width: int

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

    def sums(self, weights: Tensor, clients: Owners) -> Tensor:
        """Weighted rows, summed by client."""
        total = self.errors.new_zeros(len(clients.sizes), self.errors.shape[1] * self.width)
        for start, stop in self._ranges(0, len(self.errors)):
            total.index_add_(0, clients.owners[start:stop], _scaled(self.rows(start, stop), weights[start:stop]))
        return total


@dataclass(frozen=True)
class ProductsShare(_Positions):
    """Few positions of many parameters: norms from the products of positions, nothing is written down."""

    def squares(self) -> Tensor:
        """sum_{l, m} (e_l . e_m)(a_l . a_m), in double precision because its terms may cancel."""
        return torch.cat([self._squares_of(a, b) for a, b in self._ranges(0, len(self.errors))])

    def _squares_of(self, start: int, stop: int) -> Tensor:
        columns, errors = self.columns(self.inputs[start:stop]).double(), self.errors[start:stop].double()
        products = torch.bmm(columns.transpose(1, 2), columns) * torch.bmm(errors.transpose(1, 2), errors)
        if_nothing_cancels = _input_squares(columns) * _squares(errors)
        roundings = CANCELLATION * (errors.shape[2] + 2) * 2**-24
        return products.sum((1, 2)).clamp(min=0.0) + roundings**2 * if_nothing_cancels

    def sums(self, weights: Tensor, clients: Owners) -> Tensor:
        """One matrix product a client, over its records and positions together."""
        errors, inputs = _scaled_errors(self.errors, weights), _kept(self.inputs, weights)
        outputs = errors.shape[1]
        total = errors.new_zeros(len(clients.sizes), outputs, self.width)
        for client, (end, size) in enumerate(zip(accumulate(clients.sizes), clients.sizes, strict=True)):
            for start, stop in self._ranges(end - size, end):
                columns = self.columns(inputs[start:stop]).transpose(1, 2).flatten(0, 1)
                total[client] += errors[start:stop].transpose(0, 1).flatten(1) @ columns
        return total.flatten(1)


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


@dataclass(frozen=True)
class LayeredGradients:
    """The gradients of a batch as the shares of its parameters, in the parameters' order."""

    shares: tuple[Share, ...]
    sizes: tuple[int, ...]
    """How many numbers every parameter has."""
    counts: Tensor
    clients: Owners
    numbers: int
    """About how many numbers were held at once to compute them."""

    @property
    def dim(self) -> int:
        """The length of one gradient."""
        return sum(self.sizes)

    def norms(self) -> Tensor:
        """From the squares of the shares."""
        total = self.shares[0].squares()
        for share in self.shares[1:]:
            total = total + share.squares()
        return total.sqrt()

    def weighted_sums(self, weights: Tensor) -> Tensor:
        """Share by share, side by side."""
        return torch.cat([share.sums(weights, self.clients) for share in self.shares], dim=1)

    def rows(self, start: int, stop: int) -> Tensor:
        """Share by share, side by side."""
        return torch.cat([share.rows(start, stop) for share in self.shares], dim=1)
