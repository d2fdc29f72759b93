"""Per-record gradients, split by parameter into shares, each in its cheapest form.

Linear layers have outer products (`OuterShare`), which are never written out: ||a (x) e|| = ||a|| ||e||, and a
weighted sum over records is one matrix product. Gradients without a cheaper form are written out
(`WrittenShare`). Shares of convolutions are in `tacit.models.layers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tacit.models.gradients import per_record, products_by_client, row_norms, scaled, sums_by_client, trusted


class Share(Protocol):
    """One parameter's share of every record's gradient."""

    @property
    def size(self) -> int:
        """The number of elements of the parameter."""
        ...

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and device of the sums."""
        ...

    def squares(self) -> Tensor:
        """The squared norm of each record's share, in double precision: (records,)."""
        ...

    def sums(self, weights: Tensor, counts: Tensor, out: Tensor) -> None:
        """Write each client's weighted sum to `out`: (clients, size). A weight of zero adds exactly zero."""
        ...

    def rows(self, start: int, stop: int) -> Tensor:
        """Some records' shares, written out: (stop - start, size)."""
        ...


def scaled_errors(errors: Tensor, weights: Tensor) -> Tensor:
    """Errors times weights; a record whose errors overflow because of a large weight adds zero."""
    product = scaled(errors, weights)
    # A sum is cheaper than a check of every number; if it overflows, every number is checked.
    if bool(product.sum().isfinite()):
        return product
    return torch.where(per_record(torch.isfinite(product).flatten(1).all(1), product) != 0, product, 0.0)


def kept(rows: Tensor, weights: Tensor) -> Tensor:
    """Rows set to zero for records of weight zero, because zero times infinity or NaN would not be zero."""
    return rows if bool(weights.all()) else torch.where(per_record(weights, rows) != 0, rows, 0.0)


@dataclass(frozen=True)
class WrittenShare:
    """A share that is written out for every record: (records, parameters)."""

    gradients: Tensor

    @property
    def size(self) -> int:
        return self.gradients.shape[1]

    @property
    def like(self) -> Tensor:
        return self.gradients

    def squares(self) -> Tensor:
        return row_norms(self.gradients).square()

    def sums(self, weights: Tensor, counts: Tensor, out: Tensor) -> None:
        if bool((counts == 1).all()) and bool(weights.all()):
            torch.mul(self.gradients, per_record(weights, self.gradients), out=out)
        else:
            # Adding rows up directly in `out`, whose rows are not contiguous, takes several times as long.
            out.copy_(sums_by_client(scaled(self.gradients, weights), counts))

    def rows(self, start: int, stop: int) -> Tensor:
        return self.gradients[start:stop]


@dataclass(frozen=True)
class OuterShare:
    """A weight's gradients, inputs (x) errors with one position per record; never written out."""

    inputs: Tensor
    errors: Tensor
    by_input: bool = False
    """whether the weight lies row by row as (inputs x outputs), or as (outputs x inputs)"""

    @property
    def size(self) -> int:
        return self.inputs.shape[1] * self.errors.shape[1]

    @property
    def like(self) -> Tensor:
        return self.errors

    def squares(self) -> Tensor:
        """||errors||^2 ||inputs||^2."""
        return trusted(row_norms(self.inputs)).square() * row_norms(self.errors).square()

    def sums(self, weights: Tensor, counts: Tensor, out: Tensor) -> None:
        inputs, errors = kept(self.inputs, weights), scaled_errors(self.errors, weights)
        products_by_client(*((inputs, errors) if self.by_input else (errors, inputs)), counts, out)

    def rows(self, start: int, stop: int) -> Tensor:
        """The outer products of some records, written out."""
        inputs, errors = self.inputs[start:stop], self.errors[start:stop]
        left, right = (inputs, errors) if self.by_input else (errors, inputs)
        return (left[:, :, None] * right[:, None, :]).flatten(1)


@dataclass(frozen=True)
class LayeredGradients:
    """The gradients of a batch as the shares of the model's parameters, in their order in a point."""

    shares: tuple[Share, ...]
    counts: Tensor
    numbers: int = 0
    """about how many numbers were held at once to compute them, if this was counted"""

    @classmethod
    def written(cls, rows: Tensor, counts: Tensor) -> LayeredGradients:
        """Gradients that are written out, for models that have no cheaper form: (records, dim).

        >>> LayeredGradients.written(torch.tensor([[3.0, 4.0]]), torch.tensor([1])).norms()
        tensor([5.], dtype=torch.float64)
        """
        return cls((WrittenShare(rows),), counts)

    @property
    def dim(self) -> int:
        return sum(share.size for share in self.shares)

    def norms(self) -> Tensor:
        """The norms, from the squares of the shares; no gradient is written out."""
        total = self.shares[0].squares()
        for share in self.shares[1:]:
            total = total + share.squares()
        return total.sqrt()

    def weighted_sums(self, weights: Tensor) -> Tensor:
        """The weighted sums of all shares, side by side."""
        total, start = self.shares[0].like.new_empty(len(self.counts), self.dim), 0
        for share in self.shares:
            share.sums(weights, self.counts, total[:, start : start + share.size])
            start += share.size
        return total

    def rows(self, start: int, stop: int) -> Tensor:
        """The rows of all shares, side by side."""
        parts = [share.rows(start, stop) for share in self.shares]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def linear_shares(inputs: Tensor, errors: Tensor, bias: bool) -> tuple[Share, ...]:
    """The shares of a linear layer: its weight (inputs x outputs) row by row, then its bias."""
    weight = OuterShare(inputs, errors, by_input=True)
    return (weight, WrittenShare(errors)) if bias else (weight,)
