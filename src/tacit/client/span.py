"""Local steps of linear models in the span of a client's own records.

A gradient of a linear model is A^T s, with A the client's records and s the slopes of its losses. So after any
number of steps W = rho W_0 - A^T c, and the scores for the next slopes are rho A W_0 - (A A^T) c. Given the Gram
matrix A A^T, a step costs records^2 instead of records x features, and W is computed once. The norm of A^T c
follows from the Gram matrix, too: where only the sum of bounded updates is needed, no update is written out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tacit.federation import Federation
from tacit.models.gradients import double_norms, padded
from tacit.models.gradients import scaled as scale_rows
from tacit.models.linear import LinearModel
from tacit.models.losses import CrossEntropy
from tacit.models.model import Model
from tacit.models.penalty import Ridge

_TRUSTED = 0.02
"""Norms are computed from Gram matrices only if at least this part of the squared length does not cancel."""

_LEAST_SQUARE = 1e-30
"""The squared length of a shorter record may have lost its digits, or all of it, in single precision."""


_BLOCK_BYTES = 2 * 2**20
"""Records are copied this many bytes at a time: they are still in the cache when they are multiplied."""


@dataclass(frozen=True)
class RecordBlocks:
    """The records of some clients, a few clients at a time."""

    federation: Federation
    clients: Tensor
    """positions in the federation"""

    @cached_property
    def counts(self) -> Tensor:
        """The number of records of each client."""
        return self.federation.sizes[self.clients]

    @cached_property
    def longest(self) -> int:
        """The most records of a client."""
        return int(self.counts.max()) if self.counts.numel() else 0

    @cached_property
    def _rows(self) -> Tensor:
        """Where the records lie in the federation, client after client."""
        return self.federation.records_of(self.clients)

    def targets(self) -> Tensor:
        """(clients, longest): the targets, padded with zeros."""
        targets = self.federation.targets
        return padded(targets.index_select(0, self._rows.to(targets.device)), self.counts)

    def shares(self, dtype: torch.dtype) -> Tensor:
        """(clients, longest): each record's share of its client's mean; padding records have none."""
        each = 1 / self.counts.to(dtype)
        if self._rectangular:
            return each[:, None].expand(-1, self.longest)
        return padded(torch.repeat_interleave(each, self.counts), self.counts)

    def blocks(self, which: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Parts of the clients at these places (by default of all), and their records, padded with zeros.

        The records of a part are overwritten by those of the next one.
        """
        features = self.federation.features.flatten(1)
        counts, parts = (self.counts, self._parts) if which is None else self._placed(which)
        for here, rows, first in parts:
            # Records that lie one after the other are not copied.
            own = self._copied(features, rows) if first is None else features[first : first + rows.shape[0]]
            rectangle = (
                own.view(-1, self.longest, own.shape[1]) if self._rectangular else padded(own, counts[here])
            )
            yield here, rectangle

    @cached_property
    def _parts(self) -> list[tuple[slice, Tensor, int | None]]:
        """The clients of each block, where their records lie, and the first of them if they lie together."""
        return self._cut(self.counts, self._rows)

    def _placed(self, which: Tensor) -> tuple[Tensor, list[tuple[slice, Tensor, int | None]]]:
        counts = self.counts[which]
        return counts, self._cut(counts, self.federation.records_of(self.clients[which]))

    def _cut(self, counts: Tensor, rows: Tensor) -> list[tuple[slice, Tensor, int | None]]:
        clients, size = counts.shape[0], self._clients_per_block
        ends = [0, *torch.cumsum(counts, 0).tolist()]
        parts: list[tuple[slice, Tensor, int | None]] = []
        for start in range(0, clients, size):
            here = slice(start, min(start + size, clients))
            own = rows[ends[here.start] : ends[here.stop]]
            number, first, last = own.shape[0], int(own[0]), int(own[-1])
            together = last - first == number - 1 and bool((own.diff() == 1).all())
            parts.append((here, own, first if together else None))
        return parts

    @cached_property
    def _rectangular(self) -> bool:
        """Whether all clients have the same number of records, so that nothing is padded."""
        return self._rows.shape[0] == self.counts.shape[0] * self.longest > 0

    def _copied(self, features: Tensor, rows: Tensor) -> Tensor:
        return torch.index_select(features, 0, rows.to(features.device), out=self._room[: rows.shape[0]])

    @cached_property
    def _clients_per_block(self) -> int:
        record_bytes = self.federation.features.element_size() * self.federation.features[0].numel()
        return max(1, _BLOCK_BYTES // max(1, self.longest * record_bytes))

    @cached_property
    def _room(self) -> Tensor:
        """Memory for the records of one block, used again for the next: fresh memory costs more than copying."""
        rows = min(self._clients_per_block, self.counts.shape[0]) * self.longest
        return self.federation.features.new_empty(rows, self.federation.features[0].numel())


@dataclass(frozen=True)
class SpanUpdates:
    """The updates of several clients, as coefficients of their records; a bound takes them for its gradients.

    `weighted_sums` adds all of them up, as if one client had them all.
    """

    model: LinearModel
    coefficients: Tensor
    """(clients, outputs, records)"""
    records: RecordBlocks
    gram: Tensor
    """(clients, records, records), with the intercept"""
    offset: Tensor
    """(dim,): what is in every update besides the records; zero without a penalty"""

    @property
    def dim(self) -> int:
        return self.model.dim

    @property
    def counts(self) -> Tensor:
        return torch.tensor([len(self.coefficients)])

    def rows(self, start: int, stop: int) -> Tensor:
        """The updates of some clients, written out."""
        return self._written(torch.arange(start, stop))

    def _written(self, which: Tensor) -> Tensor:
        model, size = self.model, self.model.features * self.model.outputs
        way = self.coefficients.new_empty(len(which), model.dim)
        for here, features in self.records.blocks(which):
            coefficients, rows = self.coefficients[which[here]], way[here]
            products = torch.bmm(coefficients[:, :, : features.shape[1]], features).transpose(1, 2)
            rows[:, :size].view(-1, model.features, model.outputs).copy_(products)
            if model.intercept:
                rows[:, size:] = coefficients.sum(2)
        return way if not self._moved else way.add_(self.offset)

    @property
    def _moved(self) -> bool:
        return bool(self.offset.any())

    @cached_property
    def _squares(self) -> tuple[Tensor, Tensor]:
        """Bounds on the squared norms, (clients,) double, and the places of the clients for which they are poor.

        For these, digits are lost because records or their coefficients are too small, or because most of the sum
        cancels. Otherwise the bound is above the true square: rounding moves c^T A A^T c by at most 2^-24 of
        `reach` for each number that was added up.
        """
        squares = torch.mul(torch.bmm(self.coefficients, self.gram), self.coefficients).sum((1, 2)).double()
        own = self.gram.diagonal(dim1=1, dim2=2)[:, None]
        reach = torch.mul(self.coefficients.abs(), own.sqrt()).sum(2).double().square().sum(1)
        poor = torch.ones_like(squares, dtype=torch.bool) if self._moved else ~(squares >= _TRUSTED * reach)
        short = own < _LEAST_SQUARE
        if bool(short.any()):
            poor |= (short & (self.coefficients != 0)).any(2).any(1)
        added = self.model.features + 2 * self.coefficients.shape[2] + 2
        return squares + added * 2.0**-24 * reach, poor.nonzero()[:, 0].cpu()

    @cached_property
    def _rewritten(self) -> Tensor:
        """The updates of the clients whose norms do not follow from their Gram matrices."""
        return self._written(self._squares[1])

    def norms(self) -> Tensor:
        """||A^T c||^2 = c^T A A^T c, rounded up; from the written update where that would be poor."""
        squares, poor = self._squares
        norms = squares.clamp(min=0).sqrt()
        if len(poor):
            norms[poor.to(norms.device)] = double_norms(self._rewritten)
        return norms

    def weighted_sums(self, weights: Tensor) -> Tensor:
        """The sum of all updates, each times its weight: (1, dim), by one product for each block.

        An update whose norm was taken from its written form is added in that form: written again, it would be
        rounded differently, and by more than its bound if its records nearly cancel each other.
        """
        model, weights = self.model, weights.to(self.coefficients)
        poor = self._squares[1].to(weights.device)
        known = weights.index_fill(0, poor, 0.0)
        # A client with weight zero adds zero, even if its update is not finite.
        scaled = torch.where(known[:, None, None] != 0, self.coefficients, 0.0) * known[:, None, None]
        total = scaled.new_zeros(model.outputs, model.features)
        for here, features in self.records.blocks() if len(poor) < len(weights) else ():
            flat = scaled[here, :, : features.shape[1]].transpose(0, 1).reshape(model.outputs, -1)
            total.addmm_(flat, features.reshape(-1, model.features))
        whole = total.T.reshape(-1)
        if model.intercept:
            whole = torch.cat([whole, scaled.sum((0, 2))])
        if len(poor):
            whole = whole + scale_rows(self._rewritten, weights[poor]).sum(0)
        return whole[None]


def span_updates(
    model: Model,
    point: Tensor,
    records: RecordBlocks,
    steps: int,
    step: float,
    grams: Callable[[], Tensor] | None = None,
) -> SpanUpdates | None:
    """(x - x_i) / step after `steps` full gradient steps of each client from x.

    It equals the plain computation up to rounding; None if it does not apply or would not be faster. `grams`
    gives the clients' A A^T if they are kept (`tacit.client.grams`).
    """
    plain = isinstance(model, LinearModel) and model.smoothing is None
    if not isinstance(model, LinearModel) or not plain or not isinstance(model.penalty, Ridge | None):
        return None
    longest, clients = records.longest, len(records.clients)
    outputs, size = model.outputs, model.features * model.outputs
    gram_cost = longest * (longest * model.features + steps * longest * outputs)
    if longest == 0 or gram_cost > 2 * steps * longest * model.features * outputs:
        return None
    gram = grams()[:, :longest, :longest] if grams else point.new_zeros(clients, longest, longest)
    # Outputs before records: products, softmax and the backward pass are two to three times as fast.
    start = point.new_zeros(clients, outputs, longest)
    weight = point[:size].view(model.features, outputs).T.contiguous()
    for here, features in records.blocks():
        width = features.shape[1]
        if grams is None:
            gram[here, :width, :width] = torch.bmm(features, features.transpose(1, 2))
        scores = torch.mm(weight, features.reshape(-1, model.features).T)
        start[here, :, :width] = scores.view(outputs, -1, width).transpose(0, 1)
    if model.intercept:
        gram, start = gram + 1.0, start.add_(point[size:, None])
    targets = records.targets()
    if isinstance(model.loss, CrossEntropy):
        # Subtracting probabilities in every step takes half the time of looking up each record's class.
        targets = model.loss.probabilities(targets, start)
    # Padding records have weight zero. Written out for every output, which halves the time of multiplying by it.
    per_record = step * records.shares(point.dtype)[:, None]
    weights = per_record.expand(-1, outputs, -1).contiguous().to(point.device)
    shrink = 1 - step * (model.penalty.strength if model.penalty else 0.0)
    rho, coefficients = 1.0, torch.zeros_like(start)
    for _ in range(steps):
        scores = torch.baddbmm(start, coefficients, gram, beta=rho, alpha=-1)
        if shrink != 1.0:
            coefficients *= shrink
        coefficients.addcmul_(weights, model.loss.slopes(scores, targets))
        rho *= shrink
    coefficients /= step
    return SpanUpdates(model, coefficients, records, gram, point * ((1 - rho) / step))
