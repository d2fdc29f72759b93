"""The gradients of a batch, one for each record, kept in the form in which they cost least.

A bound needs the norm of every record's gradient and then a weighted sum of the gradients of every client.
Both can be had without ever writing down one gradient for each record, which is what makes private training
slow elsewhere: where a layer is linear, a record's gradient is the outer product of what went into the layer
and of the error that came back, its norm is the product of the two norms, and a weighted sum over records is
one matrix product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS_AT_A_TIME = 64 * 2**20
"""How many numbers of explicit per-record gradients are held at once."""

FEW_RECORDS = 64
"""Below this many records a client, padding to a rectangle beats a loop over the clients."""

NARROW, WIDE = 16, 256
"""Up to so many columns, matrix products are faster when the few columns lie as rows; from so many rows on."""

LARGE_PRODUCT = 4_000_000
"""From this many multiplications a client on, what a loop costs is lost in what its products cost."""


class Gradients(Protocol):
    """One gradient for each record of a batch of several clients."""

    @property
    def dim(self) -> int:
        """The length of one gradient."""
        ...

    @property
    def counts(self) -> Tensor:
        """How many of the records belong to each client, client after client."""
        ...

    def norms(self) -> Tensor:
        """The Euclidean norm of every record's gradient, in double precision: (records,).

        Huge, infinite, or not a number, where a weighted sum could not be trusted to scale the gradient as told.
        """
        ...

    def weighted_sums(self, weights: Tensor) -> Tensor:
        """For every client the sum of its records' gradients, each times its weight: (clients, dim).

        A record of weight zero adds exactly zero, even if its gradient is not finite.
        """
        ...

    def rows(self, start: int, stop: int) -> Tensor:
        """The gradients of some records, written out: (stop - start, dim)."""
        ...


def chunks_of_rows(gradients: Gradients) -> Iterator[tuple[int, int]]:
    """Ranges of records whose written-out gradients fit into memory together."""
    records = int(gradients.counts.sum())
    size = max(1, ROWS_AT_A_TIME // max(1, gradients.dim))
    for start in range(0, records, size):
        yield start, min(records, start + size)


def sums_by_client(rows: Tensor, counts: Tensor) -> Tensor:
    """Sum consecutive rows client by client: (records, ...) to (clients, ...)."""
    owners = torch.repeat_interleave(torch.arange(len(counts)), counts).to(rows.device)
    return rows.new_zeros((len(counts), *rows.shape[1:])).index_add_(0, owners, rows)


def padded(rows: Tensor, counts: Tensor) -> Tensor:
    """Consecutive rows as a rectangle (clients, largest count, ...), filled up with zeros.

    Free of any copy where every client has as many.
    """
    clients, longest = len(counts), int(counts.max())
    if clients * longest == len(rows):
        return rows.reshape(clients, longest, *rows.shape[1:])
    rectangle = rows.new_zeros((clients * longest, *rows.shape[1:]))
    rectangle[_places(counts, longest).to(rows.device)] = rows
    return rectangle.reshape(clients, longest, *rows.shape[1:])


def unpadded(rectangle: Tensor, counts: Tensor) -> Tensor:
    """The inverse of `padded`."""
    clients, longest = rectangle.shape[:2]
    flat = rectangle.reshape(clients * longest, *rectangle.shape[2:])
    if int(counts.sum()) == len(flat):
        return flat
    return flat[_places(counts, longest).to(rectangle.device)]


def _places(counts: Tensor, longest: int) -> Tensor:
    owners = torch.repeat_interleave(torch.arange(len(counts)), counts)
    starts = torch.cumsum(counts, 0) - counts
    return owners * longest + torch.arange(len(owners)) - starts[owners]


def products_by_client(left: Tensor, right: Tensor, counts: Tensor, out: Tensor) -> None:
    """Write left_c^T right_c, for the consecutive rows of every client c, into row c of `out`, row by row."""
    if len(counts) == 0 or len(left) == 0:
        out.zero_()
        return
    evenly_or_short = bool((counts == counts[0]).all()) or len(left) < FEW_RECORDS * len(counts)
    # Many small products are cheaper together, a few large ones one by one.
    small = len(left) * left.shape[1] * right.shape[1] < LARGE_PRODUCT * len(counts)
    # The long side last: two to three times as fast where a long one meets the few columns of a linear model.
    flip = right.shape[1] <= NARROW and left.shape[1] >= WIDE
    products = out.view(len(counts), left.shape[1], right.shape[1])
    if evenly_or_short and small and len(counts) > 1:
        first, second = (right, left) if flip else (left, right)
        together = torch.bmm(padded(first, counts).transpose(1, 2), padded(second, counts))
        products.copy_(together.transpose(1, 2) if flip else together)
        return
    sizes = counts.tolist()
    for a, b, product in zip(left.split(sizes), right.split(sizes), products, strict=True):
        if flip:
            product.copy_(torch.mm(b.T, a).T)
        else:
            torch.mm(a.T, b, out=product)


def affine(inputs: Tensor, weight: Tensor, bias: Tensor | None, counts: Tensor) -> Tensor:
    """inputs @ weight + bias for one weight matrix, or for one of its own per client.

    `weight` is (inputs, outputs), or (clients, inputs, outputs) to be used on every client's own rows.
    """
    if weight.dim() == 2:
        if weight.shape[1] <= NARROW:
            return F.linear(inputs, weight.T.contiguous(), bias)
        return inputs @ weight if bias is None else torch.addmm(bias, inputs, weight)
    rectangle = torch.bmm(padded(inputs, counts), weight)
    if bias is not None:
        rectangle = rectangle + bias[:, None, :]
    return unpadded(rectangle, counts)


def row_norms(rows: Tensor) -> Tensor:
    """Row norms as double-precision numbers, right to within 1e-4 whatever the rows are.

    Squares are added up in single precision, which takes a ninth of the time, over blocks so short that not even
    the worst rounding adds up to more than 3e-5; where squares may vanish or overflow, in double precision.
    """
    if rows.dtype != torch.float32:
        return double_norms(rows)
    blocks = [_block_norms(block) for block in rows.split(_BLOCK, dim=1)]
    return blocks[0] if len(blocks) == 1 else torch.linalg.vector_norm(torch.stack(blocks), dim=0)


_BLOCK = 1024
_LEAST_SAFE = 1e-12

LONGEST_INPUTS = 1e20
"""Inputs of a layer that are longer than this count as so long that bounds leave their record out.

A gradient inputs (x) errors is scaled by scaling the errors. If they become so small that single precision has
only some of their digits left, each is off by up to 2^-150, and the gradient by that times the inputs' norm. With
this limit that is less than 1e-25 for each error, where the least bound is 1e-12.
"""

_BEYOND = 1e150
"""Any error in single precision, except zero, times this has a norm whose scale counts as zero."""

_LONGEST = 1e100
"""Longer rows count as infinite, so that whatever they are multiplied with has a square that is not lost."""


def trusted(input_norms: Tensor) -> Tensor:
    """Norms of a layer's inputs; huge where errors could not be scaled precisely enough beside them."""
    return torch.where(input_norms > LONGEST_INPUTS, input_norms + _BEYOND, input_norms)


def _block_norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1).double()
    doubtful = ~((norms > _LEAST_SAFE) & (norms < torch.inf))
    if bool(doubtful.any()):
        norms[doubtful] = double_norms(rows[doubtful])
    return norms


def double_norms(rows: Tensor) -> Tensor:
    """Row norms from squares in double precision; infinite beyond what double precision can be trusted with."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms if rows.dtype == torch.float32 else torch.where(norms <= _LONGEST, norms, torch.inf)


@dataclass(frozen=True)
class OuterLayer:
    """A linear layer's share of every record's gradient: inputs (x) errors, and the errors for the bias."""

    inputs: Tensor
    errors: Tensor
    bias: bool

    @property
    def dim(self) -> int:
        """How many parameters the layer has: its weight (inputs x outputs) row by row, then its bias."""
        return (self.inputs.shape[1] + self.bias) * self.errors.shape[1]


@dataclass(frozen=True)
class OuterGradients:
    """Gradients of models made of linear layers, never written out for the sums and norms.

    ||g_j||^2 = sum over layers of (||inputs_j||^2 + 1 if there is a bias) ||errors_j||^2.
    """

    layers: tuple[OuterLayer, ...]
    counts: Tensor

    @property
    def dim(self) -> int:
        """The length of one gradient."""
        return sum(layer.dim for layer in self.layers)

    def norms(self) -> Tensor:
        """Products of norms, layer by layer: no gradient is written out."""
        squares = torch.zeros(
            len(self.layers[0].inputs), dtype=torch.float64, device=self.layers[0].inputs.device
        )
        for layer in self.layers:
            inputs = trusted(row_norms(layer.inputs)).square() + float(layer.bias)
            squares = squares + inputs * row_norms(layer.errors).square()
        return squares.sqrt()

    def weighted_sums(self, weights: Tensor) -> Tensor:
        """One matrix product a layer and client."""
        total, start = self.layers[0].errors.new_empty(len(self.counts), self.dim), 0
        weights = weights.to(self.layers[0].errors.dtype)
        keep = (weights != 0)[:, None]
        everything = bool(keep.all())
        for layer in self.layers:
            errors = layer.errors * weights[:, None]
            # A sum is cheaper than a look at every number; one that overflows only costs the look.
            if not (everything and bool(errors.sum().isfinite())):
                errors = torch.where(keep & torch.isfinite(errors), errors, 0.0)
            inputs = layer.inputs if everything else torch.where(keep, layer.inputs, 0.0)
            end = start + inputs.shape[1] * errors.shape[1]
            products_by_client(inputs, errors, self.counts, total[:, start:end])
            start += layer.dim
            if layer.bias:
                total[:, end:start] = sums_by_client(errors, self.counts)
        return total

    def rows(self, start: int, stop: int) -> Tensor:
        """Outer products, for the bounds that look at single coordinates."""
        parts: list[Tensor] = []
        for layer in self.layers:
            inputs, errors = layer.inputs[start:stop], layer.errors[start:stop]
            parts.append((inputs[:, :, None] * errors[:, None, :]).flatten(1))
            if layer.bias:
                parts.append(errors)
        return torch.cat(parts, dim=1)


@dataclass(frozen=True)
class WrittenGradients:
    """Gradients that are written out, for models that have no cheaper form."""

    gradients: Tensor
    counts: Tensor

    @property
    def dim(self) -> int:
        """The length of one gradient."""
        return int(self.gradients.shape[1])

    def norms(self) -> Tensor:
        """Row norms."""
        return row_norms(self.gradients)

    def weighted_sums(self, weights: Tensor) -> Tensor:
        """Weighted rows, summed by client."""
        weights = weights.to(self.gradients.dtype)
        rows = self.gradients * weights[:, None]
        if not bool((weights != 0).all()):
            rows = torch.where((weights != 0)[:, None], rows, 0.0)
        return rows if bool((self.counts == 1).all()) else sums_by_client(rows, self.counts)

    def rows(self, start: int, stop: int) -> Tensor:
        """As they are."""
        return self.gradients[start:stop]
