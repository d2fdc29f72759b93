"""The gradient estimators of SoteriaFL (Li et al. 2022, Algorithm 3), from bounded per-record gradients.

Every record gradient below, u_j at the current point or y_j at an older one, is bounded record by record before
anything is added up, and so is their difference. With G the bound, r G the bound on a difference, b = q m the
batch size and m the number of records:

    minibatch   (1/b) sum_{j in I} u_j
    SVRG, SAGA  (1/b) sum_{j in I} d_j + (1/m) sum_j y_j,    d_j = (u_j - y_j) min(1, r G / ||u_j - y_j||)

How far one record can move the estimate (Theorem B of docs/privacy.md), in units of G/b:

                drawn          not drawn    on average over the draw
    minibatch   1              0            q
    SVRG, SAGA  q + (1-q) r    q            q

because record j adds q (y_j + d_j) on average, and y_j + d_j lies between y_j and u_j. Differences to a recent
point are short, so r = 1 changes hardly any of them; r = 2 changes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import ClipNorm
from tacit.client.cohort import Cohort
from tacit.client.gradient_table import no_past, recall, remember
from tacit.client.sampling import Drawn, Poisson, Reach, Sampling
from tacit.errors import RequestError, positive, probability
from tacit.federation import Batch, Federation
from tacit.models.gradients import Gradients
from tacit.noise.randomness import Purpose
from tacit.state import State

DIFFERENCE_BOUND = 1.0
"""The default bound on the distance of a record's gradient from its remembered one, in bounds."""

_LEAST_DIFFERENCE_BOUND = 0.01
"""Shorter differences would be lost in the rounding of the two gradients."""


def check_difference_bound(value: float) -> None:
    """Refuse a bound above 2, which no difference exceeds, or one that is too small for single precision."""
    if not _LEAST_DIFFERENCE_BOUND <= positive("difference_bound", value) <= 2:
        raise RequestError(
            f"difference_bound must be between {_LEAST_DIFFERENCE_BOUND} and 2 (no difference of two bounded "
            f"gradients is longer than 2 bounds), not {value!r}"
        )


COEFFICIENTS = "coefficients"
"""Per record, for linear models: its bounded gradient at an older point is features (x) coefficients."""


class Estimator(Protocol):
    """How a client estimates its gradient. Methods take a state and return a new one; the old one is consumed."""

    @property
    def sampling(self) -> Sampling:
        """How the batches are drawn."""
        ...

    def init(self, model: BoundedModel, point: Tensor, federation: Federation) -> State:
        """The clients' memory before the first round."""
        ...

    def estimate(self, model: BoundedModel, point: Tensor, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        """The estimate of each client: (clients, dim)."""
        ...

    def reach(self, rate: float) -> Reach:
        """How far one record moves the sum, in bounds, if it is drawn with probability `rate`."""
        ...

    def renewed(self, cohort: Cohort) -> float:
        """The share of a client's memory that moves to this round's point, in expectation over secret draws."""
        ...

    def evaluations(self, cohort: Cohort) -> float:
        """The number of record gradients that the cohort computes in this round.

        It is an expectation over the batch, because the number that was really drawn is private.
        """
        ...

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """About how many records are held in memory at a time, for clients of these sizes."""
        ...


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.device, like.dtype)[:, None]


@dataclass(frozen=True)
class Minibatch:
    """(1/b) times the sum of a batch's bounded gradients; with full batches, the full gradient (option I)."""

    sampling: Sampling
    """how batches are drawn"""

    def init(self, model: BoundedModel, point: Tensor, federation: Federation) -> State:
        return {}

    def estimate(self, model: BoundedModel, point: Tensor, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        sums = model.sums(point, self.sampling.draw(cohort).batch)
        return sums.div_(_column(self.sampling.batch_sizes(cohort.sizes), sums)), state

    def reach(self, rate: float) -> Reach:
        """One bound when drawn; a record that is not drawn has no influence."""
        return Reach()

    def renewed(self, cohort: Cohort) -> float:
        return 1.0

    def evaluations(self, cohort: Cohort) -> float:
        return float(self.sampling.batch_sizes(cohort.sizes).sum())

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        return self.sampling.batch_sizes(sizes)


@dataclass(frozen=True)
class Svrg:
    """Batch differences to a snapshot, plus the full gradient at the snapshot (option II).

    A public coin, the same for all clients, decides whether the snapshot moves to the current point. A client
    that misses the round keeps its old snapshot.
    """

    sampling: Sampling
    """how batches are drawn"""
    snapshot_probability: float
    """the probability that the snapshot moves in a round"""
    difference_bound: float = DIFFERENCE_BOUND
    """how far a record's gradient may be from the one at the snapshot, in bounds; 2 changes no difference"""

    def __post_init__(self) -> None:
        probability("snapshot_probability", self.snapshot_probability)
        check_difference_bound(self.difference_bound)

    def init(self, model: BoundedModel, point: Tensor, federation: Federation) -> State:
        """The first snapshot is the starting point, w^0 = x^0."""
        sums, state = _all_at(model, point, federation.batch())
        if COEFFICIENTS not in state:
            state["snapshot_keys"] = torch.zeros(federation.clients, dtype=torch.int64)
        return {"snapshot_means": sums / _column(federation.sizes, sums), **state}

    def estimate(self, model: BoundedModel, point: Tensor, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        """One pass over the batch at the point and one at the snapshot, and one over all records if that moves.

        With coefficients (linear models), those of the snapshot are stored, so one pass over the batch is enough.
        """
        drawn = self.sampling.draw(cohort)
        if COEFFICIENTS in state:
            parts: Iterable[Gradients] = [_change(model, point, drawn, state)[0]]
        else:
            keys = state["snapshot_keys"][cohort.clients][drawn.batch.owners().cpu()]
            parts = _since_past_points(model, point, state, drawn.batch, keys)
        differences = _bounded_sums(model, parts, drawn.batch, self.difference_bound, both=False)[0]
        b = _column(self.sampling.batch_sizes(cohort.sizes), differences)
        estimate = differences / b + state["snapshot_means"][cohort.clients]
        if self._moves(cohort):
            state = self._moved(model, point, cohort, state)
        return estimate, state

    def _moved(self, model: BoundedModel, point: Tensor, cohort: Cohort, state: State) -> State:
        if COEFFICIENTS in state:
            sums, new = _all_at(model, point, cohort.everything())
            state[COEFFICIENTS][cohort.federation.records_of(cohort.clients)] = new[COEFFICIENTS]
        else:
            sums = model.sums(point, cohort.everything())
            state["snapshot_keys"][cohort.clients] = cohort.round + 1
            state = remember(state, cohort.round + 1, point, state["snapshot_keys"])
        state["snapshot_means"][cohort.clients] = sums / _column(cohort.sizes, sums)
        return state

    def _moves(self, cohort: Cohort) -> bool:
        return cohort.public_coin(Purpose.SNAPSHOT, self.snapshot_probability)

    def reach(self, rate: float) -> Reach:
        """q y_j, and d_j when drawn; on average q (y_j + d_j), which is a bounded gradient."""
        return Reach(drawn=self.difference_bound, always=rate, average=rate)

    def renewed(self, cohort: Cohort) -> float:
        """All of it if the snapshot moves, otherwise nothing."""
        return float(self._moves(cohort))

    def evaluations(self, cohort: Cohort) -> float:
        """The batch twice (linear models remember the second value), and all records when the snapshot moves."""
        everything = float(cohort.sizes.sum())
        passes = int(self._moves(cohort)) + int(cohort.round == 0)
        return 2 * float(self.sampling.batch_sizes(cohort.sizes).sum()) + passes * everything

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """All records, which are needed when the snapshot moves."""
        return sizes.double()


@dataclass(frozen=True)
class Saga:
    """Batch differences to a table with one gradient for each record, plus the table's mean (option III).

    The table stores the record's bounded gradient itself, even if its difference was shortened.

    The table is hidden state that depends on past batches. That is harmless if every record has its own coin
    (Theorem B), and unproved otherwise, so only Poisson sampling is accepted.
    """

    sampling: Sampling
    """how batches are drawn; Poisson only"""
    difference_bound: float = DIFFERENCE_BOUND
    """how far a record's gradient may be from its table entry, in bounds; 2 changes no difference"""

    def __post_init__(self) -> None:
        check_difference_bound(self.difference_bound)
        if not isinstance(self.sampling, Poisson):
            raise RequestError(
                f"there is no privacy proof for saga with sampling {self.sampling.name!r}, because of its hidden "
                "table entries; use sampling 'poisson'"
            )

    def init(self, model: BoundedModel, point: Tensor, federation: Federation) -> State:
        """Every table entry starts as the gradient at the starting point, w_ij^0 = x^0."""
        sums, state = _all_at(model, point, federation.batch())
        if COEFFICIENTS not in state:
            state["table_keys"] = torch.zeros(federation.records, dtype=torch.int64)
        # In double precision, because it is updated in place over the whole run.
        return {"table_means": sums.double() / _column(federation.sizes, sums.double()), **state}

    def estimate(self, model: BoundedModel, point: Tensor, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        """One pass over the batch at the point, and one at the points that its table entries belong to.

        With coefficients (linear models), these are the table, and one pass is enough.
        """
        drawn = self.sampling.draw(cohort)
        if COEFFICIENTS in state:
            change, now = _change(model, point, drawn, state)
            bounded, plain = _bounded_sums(model, [change], drawn.batch, self.difference_bound)
            state[COEFFICIENTS][drawn.rows] = now
        else:
            keys = state["table_keys"][drawn.rows]
            parts = _since_past_points(model, point, state, drawn.batch, keys)
            bounded, plain = _bounded_sums(model, parts, drawn.batch, self.difference_bound)
            state["table_keys"][drawn.rows] = cohort.round + 1
            state = remember(state, cohort.round + 1, point, state["table_keys"])
        means = state["table_means"][cohort.clients]
        b = _column(self.sampling.batch_sizes(cohort.sizes), bounded)
        estimate = bounded / b + means.to(bounded.dtype)
        state["table_means"][cohort.clients] = means + plain / _column(cohort.sizes, means)
        return estimate, state

    def reach(self, rate: float) -> Reach:
        """q y_j, and d_j when drawn; on average q (y_j + d_j), which is a bounded gradient."""
        return Reach(drawn=self.difference_bound, always=rate, average=rate)

    def renewed(self, cohort: Cohort) -> float:
        """The share of the records that are drawn."""
        return float(self.sampling.batch_sizes(cohort.sizes).sum() / cohort.sizes.sum())

    def evaluations(self, cohort: Cohort) -> float:
        """The batch twice (linear models remember the second value), and all records at the start."""
        start = float(cohort.sizes.sum()) if cohort.round == 0 else 0.0
        return 2 * float(self.sampling.batch_sizes(cohort.sizes).sum()) + start

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """The batch, and the parts of it that have the same past point."""
        return 2 * self.sampling.batch_sizes(sizes)


def _all_at(model: BoundedModel, point: Tensor, batch: Batch) -> tuple[Tensor, State]:
    """Sums of bounded gradients at a point, and the memory of this point for each record of the batch."""
    coefficients = model.coefficients(point, batch)
    if coefficients is None:
        return model.sums(point, batch), remember(no_past(point), 0, point, torch.empty(0))
    return model.combined(coefficients, batch), {COEFFICIENTS: coefficients}


def _change(model: BoundedModel, point: Tensor, drawn: Drawn, state: State) -> tuple[Gradients, Tensor]:
    """Bounded gradients minus the remembered ones, and the coefficients at this point."""
    now = model.coefficients(point, drawn.batch)
    assert now is not None, "a model that had coefficients has them still"
    return model.outer(now - state[COEFFICIENTS][drawn.rows], drawn.batch), now


def _since_past_points(
    model: BoundedModel, point: Tensor, state: State, batch: Batch, keys: Tensor
) -> Iterator[Gradients]:
    """Bounded gradients minus those at each record's past point, one past point after the other."""
    owners = batch.owners().cpu()
    for key in torch.unique(keys).tolist():
        rows = torch.nonzero(keys == key).flatten()
        counts = torch.bincount(owners[rows], minlength=batch.clients)
        part = batch if len(rows) == batch.records else batch.select(rows, counts)
        yield model.differences(point, recall(state, key), part)


def _bounded_sums(
    model: BoundedModel, parts: Iterable[Gradients], batch: Batch, difference_bound: float, *, both: bool = True
) -> tuple[Tensor, Tensor]:
    """For each client, the sum of its records' bounded differences, and the sum of the unbounded differences.

    Unless `both` are needed, the second may be the first.
    """
    limit = None
    if difference_bound < 2:
        limit = ClipNorm(difference_bound * model.bound.norm(model.model.dim))
    bounded = torch.zeros(batch.clients, model.model.dim, dtype=model.precision).to(batch.features.device)
    plain = bounded
    for differences in parts:
        ones = torch.ones(int(differences.counts.sum()), dtype=torch.float64, device=bounded.device)
        scales = ones if limit is None else limit.scales(differences)
        kept = differences.weighted_sums(scales)
        all_of_it = kept if not both or bool((scales == 1).all()) else differences.weighted_sums(ones)
        bounded, plain = bounded + kept, plain + all_of_it
    return bounded, plain
