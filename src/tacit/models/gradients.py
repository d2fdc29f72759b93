"""The per-record gradients of a batch, kept in their cheapest form.

A bound needs the norm of each record's gradient and then a weighted sum of each client's gradients. Both can be
computed without writing out one gradient per record, which is what makes private training slow elsewhere. For a
linear layer, a record's gradient is the outer product of the layer's input and the error that comes back; its
norm is the product of the two norms, and a weighted sum over records is one matrix product.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS_AT_A_TIME = 64 * 2**20
"""The most numbers of written-out per-record gradients held in memory at once."""

ROWS_IN_CACHE = 2 * 2**20
"""So many numbers stay in a processor's cache until the next pass over them."""

FEW_RECORDS = 64
"""Below this many records per client, padding to a rectangle is faster than a loop over the clients."""

NARROW = 16
"""Up to this many columns, products are faster with the columns stored as rows."""

LARGE_PRODUCT = 4_000_000
"""With this many multiplications per client or more, the overhead of a loop is negligible."""


class Gradients(Protocol):
    """One gradient for each record of a batch of several clients."""

    @property
    def dim(self) -> int:
        """The length of one gradient."""
        ...

    @property
    def counts(self) -> Tensor:
        """The number of records of each client, client after client."""
        ...

    def norms(self) -> Tensor:
        """The Euclidean norm of each record's gradient, in double precision: (records,).

        It is huge, infinite or NaN if a weighted sum could not be trusted to scale that gradient precisely.
        """
        ...

    def weighted_sums(self, weights: Tensor) -> Tensor:
        """For each client, the sum of its records' gradients, each times its weight: (clients, dim).

        A record with weight zero adds exactly zero, even if its gradient is not finite.
        """
        ...

    def rows(self, start: int, stop: int) -> Tensor:
        """The gradients of some records, written out: (stop - start, dim)."""
        ...


class Divisible(ABC):
    """Gradients of several clients that are computed again whenever they are needed, because of their size."""

    point: Tensor

    @abstractmethod
    def parts(self) -> Iterator[tuple[slice, Gradients]]:
        """As many gradients at a time as can be kept, each record's once, and whose they are.

        A part has some consecutive clients, or some records of a client that is too large.
        """


def chunks_of_rows(gradients: Gradients, *, in_cache: bool = False) -> Iterator[tuple[int, int]]:
    """Ranges of records whose written-out gradients fit into memory together, or into a processor's cache."""
    records = int(gradients.counts.sum())
    size = max(1, (ROWS_IN_CACHE if in_cache else ROWS_AT_A_TIME) // max(1, gradients.dim))
    for start in range(0, records, size):
        yield start, min(records, start + size)


def owners_of(counts: Tensor) -> Tensor:
    """The client's position for each record: (records,)."""
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def sums_by_client(rows: Tensor, counts: Tensor) -> Tensor:
    """Sum consecutive rows per client: (records, ...) to (clients, ...)."""
    owners = owners_of(counts).to(rows.device)
    return rows.new_zeros((len(counts), *rows.shape[1:])).index_add_(0, owners, rows)


def padded(rows: Tensor, counts: Tensor) -> Tensor:
    """Consecutive rows as a rectangle (clients, largest count, ...), padded with zeros.

    Nothing is copied if every client has the same number of rows.
    """
    clients, longest = len(counts), int(counts.max())
    if clients * longest == len(rows):
        return rows.reshape(clients, longest, *rows.shape[1:])
    rectangle = rows.new_zeros((clients * longest, *rows.shape[1:]))
    rectangle[places(counts, longest).to(rows.device)] = rows
    return rectangle.reshape(clients, longest, *rows.shape[1:])


def unpadded(rectangle: Tensor, counts: Tensor) -> Tensor:
    """The inverse of `padded`."""
    clients, longest = rectangle.shape[:2]
    flat = rectangle.reshape(clients * longest, *rectangle.shape[2:])
    if int(counts.sum()) == len(flat):
        return flat
    return flat[places(counts, longest).to(rectangle.device)]


def places(counts: Tensor, longest: int) -> Tensor:
    """The place of each record in the padded rectangle of all clients."""
    owners, starts = owners_of(counts), torch.cumsum(counts, 0) - counts
    return owners * longest + torch.arange(len(owners)) - starts[owners]


def products_by_client(left: Tensor, right: Tensor, counts: Tensor, out: Tensor) -> None:
    """Write left_c^T right_c, for the consecutive rows of each client c, flattened into row c of `out`."""
    if len(counts) == 0 or len(left) == 0:
        out.zero_()
        return
    products = out.view(len(counts), left.shape[1], right.shape[1])
    if len(left) == len(counts) and bool((counts == 1).all()):
        torch.mul(left[:, :, None], right[:, None, :], out=products)
        return
    evenly_or_short = bool((counts == counts[0]).all()) or len(left) < FEW_RECORDS * len(counts)
    # Many small products are cheaper together; a few large ones are cheaper one by one.
    small = len(left) * left.shape[1] * right.shape[1] < LARGE_PRODUCT * len(counts)
    # The long side comes last: two to twenty times as fast if it meets the few columns of a linear model.
    flip = right.shape[1] <= NARROW and left.shape[1] > right.shape[1]
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
    """inputs @ weight + bias, for one weight matrix or one per client.

    `weight` is (inputs, outputs), or (clients, inputs, outputs) to be used on each client's own rows.
    """
    if weight.dim() == 2:
        if weight.shape[1] <= NARROW:
            return F.linear(inputs, weight.T.contiguous(), bias)
        return inputs @ weight if bias is None else torch.addmm(bias, inputs, weight)
    rows = padded(inputs, counts)
    if weight.shape[2] <= NARROW and rows.shape[1] >= FEW_RECORDS:
        rectangle = torch.bmm(weight.transpose(1, 2).contiguous(), rows.transpose(1, 2)).transpose(1, 2)
    else:
        rectangle = torch.bmm(rows, weight)
    if bias is not None:
        rectangle = rectangle + bias[:, None, :]
    return unpadded(rectangle, counts)


def row_norms(rows: Tensor) -> Tensor:
    """Row norms as double-precision numbers, accurate to 1e-4 for all rows.

    Squares are added up in single precision, which takes a ninth of the time, over blocks so short that even the
    worst rounding adds up to at most 3e-5. If squares may underflow or overflow, double precision is used.
    """
    if rows.dtype != torch.float32 or rows.shape[1] <= _SHORT:
        return double_norms(rows)
    blocks = [_block_norms(block) for block in rows.split(_BLOCK, dim=1)]
    return blocks[0] if len(blocks) == 1 else torch.linalg.vector_norm(torch.stack(blocks), dim=0)


_BLOCK = 1024
_SHORT = 64
_LEAST_SAFE = 1e-12

LONGEST_INPUTS = 1e20
"""If a layer's inputs are longer than this, bounds leave the record out.

A gradient inputs (x) errors is scaled by scaling the errors. If they become so small that single precision keeps
only some of their digits, each is off by up to 2^-150, and the gradient by that times the inputs' norm. With this
limit, that is less than 1e-25 per error, while the smallest bound is 1e-12.
"""

_BEYOND = 1e150
"""Any nonzero single-precision error times this has such a large norm that its scale counts as zero."""

_LONGEST = 1e100
"""Longer rows count as infinite, so that the squares of the factors they are multiplied with do not underflow."""


def trusted(input_norms: Tensor) -> Tensor:
    """Norms of a layer's inputs; huge if errors multiplied with them could not be scaled precisely enough."""
    return torch.where(input_norms > LONGEST_INPUTS, input_norms + _BEYOND, input_norms)


def _block_norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1).double()
    doubtful = ~((norms > _LEAST_SAFE) & (norms < torch.inf))
    if bool(doubtful.any()):
        norms[doubtful] = double_norms(rows[doubtful])
    return norms


def double_norms(rows: Tensor) -> Tensor:
    """Row norms from squares in double precision; infinite if they are too large for double precision."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms if rows.dtype == torch.float32 else torch.where(norms <= _LONGEST, norms, torch.inf)


def scaled(rows: Tensor, weights: Tensor) -> Tensor:
    """Each record times its weight; exactly zero if the weight is zero."""
    factors = per_record(weights, rows)
    product = rows * factors
    return product if bool(weights.all()) else torch.where(factors != 0, product, 0.0)


def per_record(weights: Tensor, rows: Tensor) -> Tensor:
    """Weights reshaped to multiply rows: (records, 1, ...)."""
    return weights.to(rows.dtype).reshape(-1, *[1] * (rows.dim() - 1))


class RowGradients(ABC):
    """Gradients without a cheaper form than rows; the rows are written out some records at a time."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """The length of one gradient."""

    @property
    @abstractmethod
    def counts(self) -> Tensor:
        """The number of records of each client."""

    @abstractmethod
    def rows(self, start: int, stop: int) -> Tensor:
        """The gradients of some records: (stop - start, dim)."""

    def norms(self) -> Tensor:
        parts = [row_norms(self.rows(*part)) for part in chunks_of_rows(self)]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def weighted_sums(self, weights: Tensor) -> Tensor:
        total = self.rows(0, 0).new_zeros(len(self.counts), self.dim)
        owners = owners_of(self.counts)
        for start, stop in chunks_of_rows(self):
            rows = scaled(self.rows(start, stop), weights[start:stop])
            total.index_add_(0, owners[start:stop].to(rows.device), rows)
        return total
