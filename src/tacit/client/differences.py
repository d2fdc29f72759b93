"""Differences of each record's bounded gradients at two points, as gradients that can be bounded again.

SVRG and SAGA add differences u_j - y_j of bounded gradients. Bounding a difference requires its norm, which is
cheap to compute if gradients are outer products:

    ||u - y||^2 = ||u||^2 + ||y||^2 - 2 <u, y>,   <a (x) e, b (x) f> = <a, b> <e, f>.

This is done in double precision, because the three terms nearly cancel if a gradient has hardly moved. Only
shares without such a form are written out, some records at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tacit.client.bounds import Bound
from tacit.models.gradients import Gradients, RowGradients, chunks_of_rows, scaled
from tacit.models.layers import KEEP_ROWS
from tacit.models.shares import LayeredGradients, OuterShare, Share


@dataclass(frozen=True)
class _OfTwoPoints:
    now: Gradients
    past: Gradients

    @property
    def dim(self) -> int:
        return self.now.dim

    @property
    def counts(self) -> Tensor:
        return self.now.counts


@dataclass(frozen=True)
class ScaledDifferences(_OfTwoPoints):
    """s_j g_j - t_j h_j: gradients at two points, each with the scale that bounds it."""

    now_scales: Tensor
    past_scales: Tensor

    def norms(self) -> Tensor:
        """The norm of each difference, share by share: from inner products if possible, otherwise from rows."""
        now, past = self.now, self.past
        if isinstance(now, LayeredGradients) and isinstance(past, LayeredGradients):
            squares = [self._share(a, b) for a, b in zip(now.shares, past.shares, strict=True)]
        else:
            squares = [self._written()]
        return torch.stack(squares).sum(0).clamp(min=0.0).sqrt()

    def weighted_sums(self, weights: Tensor) -> Tensor:
        """The weighted sums of the differences per client, as the difference of two weighted sums."""
        first = self.now.weighted_sums(self.now_scales * weights)
        return first - self.past.weighted_sums(self.past_scales * weights)

    def rows(self, start: int, stop: int) -> Tensor:
        now = scaled(self.now.rows(start, stop), self.now_scales[start:stop])
        return now - scaled(self.past.rows(start, stop), self.past_scales[start:stop])

    def _combined(self, own: Tensor, past: Tensor, both: Tensor) -> Tensor:
        """s^2 <g, g> + t^2 <h, h> - 2 s t <g, h>; a record with scale zero counts as zero, whatever it is."""
        s, t = self.now_scales.double(), self.past_scales.double()
        total = torch.where(s > 0, s * s * own, 0.0) + torch.where(t > 0, t * t * past, 0.0)
        return total - torch.where((s > 0) & (t > 0), 2 * s * t * both, 0.0)

    def _share(self, now: Share, past: Share) -> Tensor:
        if isinstance(now, OuterShare) and isinstance(past, OuterShare):
            a, e, b, f = now.inputs, now.errors, past.inputs, past.errors
            squares = _products(a, a)
            # The inputs of the first layer are the records' features at both points.
            same = _same(a, b)
            own, other = squares * _products(e, e), (squares if same else _products(b, b)) * _products(f, f)
            return self._combined(own, other, (squares if same else _products(a, b)) * _products(e, f))
        size = max(1, KEEP_ROWS // max(1, now.size))
        own, other, both = _products_by_chunks(now, past, _ranges(len(self.now_scales), size))
        # A share may be counted as longer than its rows, to cover the rounding of its sums.
        return self._combined(torch.maximum(own, now.squares()), torch.maximum(other, past.squares()), both)

    def _written(self) -> Tensor:
        own, past, both = _products_by_chunks(self.now, self.past, chunks_of_rows(self))
        return self._combined(
            torch.maximum(own, self.now.norms().square()), torch.maximum(past, self.past.norms().square()), both
        )


@dataclass(frozen=True)
class WrittenDifferences(_OfTwoPoints, RowGradients):
    """Differences of gradients under a bound that does more than scale them; always written out."""

    bound: Bound

    def rows(self, start: int, stop: int) -> Tensor:
        """The differences of some records, each gradient bounded first."""
        return self._bounded(self.now, start, stop) - self._bounded(self.past, start, stop)

    def _bounded(self, gradients: Gradients, start: int, stop: int) -> Tensor:
        rows = gradients.rows(start, stop)
        return self.bound.sums(LayeredGradients.written(rows, torch.ones(len(rows), dtype=torch.int64)))


class _Rows(Protocol):
    def rows(self, start: int, stop: int) -> Tensor: ...


def _products_by_chunks(one: _Rows, other: _Rows, ranges: Iterable[tuple[int, int]]) -> Tensor:
    """<g, g>, <h, h> and <g, h> of the rows g of one and h of the other: (3, records)."""
    parts = [torch.zeros(3, 0, dtype=torch.float64)]
    for start, stop in ranges:
        g, h = one.rows(start, stop), other.rows(start, stop)
        parts.append(torch.stack([_products(g, g), _products(h, h), _products(g, h)]))
    return torch.cat(parts[1:] or parts, dim=1)


def _ranges(records: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, records, size):
        yield start, min(start + size, records)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether these are the same numbers in memory."""
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()


def _products(one: Tensor, other: Tensor) -> Tensor:
    """Inner products of rows, in double precision."""
    exact = one.double()
    return (exact * (exact if one is other else other.double())).sum(-1)
