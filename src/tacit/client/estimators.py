"""The gradient estimators of SoteriaFL (Li et al. 2022, Algorithm 3), from bounded per-record gradients.

Whatever is written below as a gradient of a record, u_j at the current point or y_j at an older one, is
bounded record by record before anything is added up, and so is their difference. With G the bound, r G that of a
difference, b = q m the batch and m the records:

    minibatch   (1/b) sum_{j in I} u_j
    SVRG, SAGA  (1/b) sum_{j in I} d_j + (1/m) sum_j y_j,    d_j = (u_j - y_j) min(1, r G / ||u_j - y_j||)

How far one record can move the estimate (Theorem B of docs/privacy.md), in units of G/b:

                drawn          not drawn    on average over the draw
    minibatch   1              0            q
    SVRG, SAGA  q + (1-q) r    q            q

because the average of what record j adds is q (y_j + d_j), and y_j + d_j lies between y_j and u_j. Differences
to a recent point are short, so r = 1 changes hardly any of them; r = 2 changes none.
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
"""How far a record's gradient may be from its remembered one, in bounds, unless a recipe says otherwise."""

_LEAST_DIFFERENCE_BOUND = 0.01
"""Shorter differences would be lost in the rounding of the gradients that they are differences of."""


def check_difference_bound(value: float) -> None:
    """Refuse what bounds no difference, or cannot be kept in single precision."""
    if not _LEAST_DIFFERENCE_BOUND <= positive("difference_bound", value) <= 2:
        raise RequestError(
            f"difference_bound must be between {_LEAST_DIFFERENCE_BOUND} and 2 (no difference of two bounded "
            f"gradients is longer than 2 bounds), not {value!r}"
        )


COEFFICIENTS = "coefficients"
"""Of every record: its bounded gradient at an older point is features (x) coefficients, for linear models."""


class Estimator(Protocol):
    """How a client estimates its gradient. State goes in and comes out; what goes in is consumed."""

    @property
    def sampling(self) -> Sampling:
        """How the batch of a round is drawn."""
        ...

    def init(self, model: BoundedModel, point: Tensor, federation: Federation) -> State:
        """The clients' memory before the first round."""
        ...

    def estimate(self, model: BoundedModel, point: Tensor, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        """The estimate of every client: (clients, dim)."""
        ...

    def reach(self, rate: float) -> Reach:
        """How far one record moves the sum, in bounds, if it is drawn with this chance."""
        ...

    def renewed(self, cohort: Cohort) -> float:
        """The part of a client's memory that moves to this round's point, in expectation over what is secret."""
        ...

    def evaluations(self, cohort: Cohort) -> float:
        """How many record gradients the cohort computes in this round.

        In expectation over the batch: the number really drawn is private.
        """
        ...

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """About how many records of clients of these sizes are gathered at a time."""
        ...


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.device, like.dtype)[:, None]


@dataclass(frozen=True)
class Minibatch:
    """(1/b) sum of the bounded gradients of a batch; with full batches the full gradient (option I)."""

    sampling: Sampling

    def init(self, model: BoundedModel, point: Tensor, federation: Federation) -> State:
        """No memory."""
        return {}

    def estimate(self, model: BoundedModel, point: Tensor, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        """One pass over the batch."""
        sums = model.sums(point, self.sampling.draw(cohort).batch)
        return sums.div_(_column(self.sampling.batch_sizes(cohort.sizes), sums)), state

    def reach(self, rate: float) -> Reach:
        """One bound when drawn. A record that is not drawn has no influence."""
        return Reach()

    def renewed(self, cohort: Cohort) -> float:
        """Nothing older is remembered."""
        return 1.0

    def evaluations(self, cohort: Cohort) -> float:
        """The batch."""
        return float(self.sampling.batch_sizes(cohort.sizes).sum())

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """The batch."""
        return self.sampling.batch_sizes(sizes)


@dataclass(frozen=True)
class Svrg:
    """Batch differences to a snapshot, plus the full gradient at the snapshot (option II).

    The snapshot moves to the current point by a coin that is public and the same for all clients. A client
    that misses the round keeps the snapshot it has.
    """

    sampling: Sampling
    snapshot_probability: float
    difference_bound: float = DIFFERENCE_BOUND
    """how far a record's gradient may be from that at the snapshot, in bounds; 2 leaves all as they are"""

    def __post_init__(self) -> None:
        probability("snapshot_probability", self.snapshot_probability)
        check_difference_bound(self.difference_bound)

    def init(self, model: BoundedModel, point: Tensor, federation: Federation) -> State:
        """The first snapshot is the start, w^0 = x^0."""
        sums, state = _all_at(model, point, federation.batch())
        if COEFFICIENTS not in state:
            state["snapshot_keys"] = torch.zeros(federation.clients, dtype=torch.int64)
        return {"snapshot_means": sums / _column(federation.sizes, sums), **state}

    def estimate(self, model: BoundedModel, point: Tensor, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        """A pass over the batch here and one at the snapshot, and one over everything when the coin says so.

        Where there are coefficients, those of the snapshot are at hand, and one pass is enough.
        """
        drawn = self.sampling.draw(cohort)
        if COEFFICIENTS in state:
            parts: Iterable[Gradients] = [_change(model, point, drawn, state)[0]]
        else:
            keys = state["snapshot_keys"][cohort.clients][drawn.batch.owners().cpu()]
            parts = _since_past_points(model, point, state, drawn.batch, keys)
        differences = _bounded_sums(model, parts, drawn.batch, self.difference_bound)[0]
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
        """All of it, if the snapshot moves."""
        return float(self._moves(cohort))

    def evaluations(self, cohort: Cohort) -> float:
        """The batch twice (the second time remembered, for linear models); everything when the snapshot moves."""
        everything = float(cohort.sizes.sum())
        passes = int(self._moves(cohort)) + int(cohort.round == 0)
        return 2 * float(self.sampling.batch_sizes(cohort.sizes).sum()) + passes * everything

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """Everything, when the snapshot moves."""
        return sizes.double()


@dataclass(frozen=True)
class Saga:
    """Batch differences to a table with one gradient for each record, plus the table's mean (option III).

    What enters the table is the record's bounded gradient itself, however short its difference was cut.

    The table is hidden state that depends on past batches. That is harmless when every record has a coin of
    its own (Theorem B), and unproved otherwise: only Poisson sampling is accepted.
    """

    sampling: Sampling
    difference_bound: float = DIFFERENCE_BOUND
    """how far a record's gradient may be from its table entry, in bounds; 2 leaves all as they are"""

    def __post_init__(self) -> None:
        check_difference_bound(self.difference_bound)
        if not isinstance(self.sampling, Poisson):
            raise RequestError(
                f"saga with sampling {self.sampling.name!r} has no proof that hidden table entries do no harm; "
                "use sampling 'poisson'"
            )

    def init(self, model: BoundedModel, point: Tensor, federation: Federation) -> State:
        """Every table entry starts at the gradient at the start, w_ij^0 = x^0."""
        sums, state = _all_at(model, point, federation.batch())
        if COEFFICIENTS not in state:
            state["table_keys"] = torch.zeros(federation.records, dtype=torch.int64)
        # In double precision, because it is updated in place over the whole run.
        return {"table_means": sums.double() / _column(federation.sizes, sums.double()), **state}

    def estimate(self, model: BoundedModel, point: Tensor, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        """A pass over the batch at the point, and one at the points its table entries belong to.

        Where there are coefficients, they are the table, and one pass is enough.
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
        """The entries of the records that are drawn."""
        return float(self.sampling.batch_sizes(cohort.sizes).sum() / cohort.sizes.sum())

    def evaluations(self, cohort: Cohort) -> float:
        """The batch twice (the second time remembered, for linear models), and everything at the start."""
        start = float(cohort.sizes.sum()) if cohort.round == 0 else 0.0
        return 2 * float(self.sampling.batch_sizes(cohort.sizes).sum()) + start

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """The batch, and the parts of it that share a past point."""
        return 2 * self.sampling.batch_sizes(sizes)


def _all_at(model: BoundedModel, point: Tensor, batch: Batch) -> tuple[Tensor, State]:
    """Sums of bounded gradients at a point, and a memory of it for every record of the batch."""
    coefficients = model.coefficients(point, batch)
    if coefficients is None:
        return model.sums(point, batch), remember(no_past(point), 0, point, torch.empty(0))
    return model.combined(coefficients, batch), {COEFFICIENTS: coefficients}


def _change(model: BoundedModel, point: Tensor, drawn: Drawn, state: State) -> tuple[Gradients, Tensor]:
    """Bounded gradients less the remembered ones; and the coefficients here."""
    now = model.coefficients(point, drawn.batch)
    assert now is not None, "a model that had coefficients has them still"
    return model.outer(now - state[COEFFICIENTS][drawn.rows], drawn.batch), now


def _since_past_points(
    model: BoundedModel, point: Tensor, state: State, batch: Batch, keys: Tensor
) -> Iterator[Gradients]:
    """Bounded gradients less those at the past point of every record's key, one past point after the other."""
    owners = batch.owners().cpu()
    for key in torch.unique(keys).tolist():
        rows = torch.nonzero(keys == key).flatten()
        counts = torch.bincount(owners[rows], minlength=batch.clients)
        part = batch if len(rows) == batch.records else batch.select(rows, counts)
        yield model.differences(point, recall(state, key), part)


def _bounded_sums(
    model: BoundedModel, parts: Iterable[Gradients], batch: Batch, difference_bound: float
) -> tuple[Tensor, Tensor]:
    """For every client the sum of its records' differences, each bounded; and the sum of the same as they are."""
    limit = None
    if difference_bound < 2:
        limit = ClipNorm(difference_bound * model.bound.norm(model.model.dim))
    bounded = torch.zeros(batch.clients, model.model.dim, dtype=model.precision).to(batch.features.device)
    plain = bounded
    for differences in parts:
        ones = torch.ones(int(differences.counts.sum()), dtype=torch.float64, device=bounded.device)
        scales = ones if limit is None else limit.scales(differences)
        kept = differences.weighted_sums(scales)
        all_of_it = kept if bool((scales == 1).all()) else differences.weighted_sums(ones)
        bounded, plain = bounded + kept, plain + all_of_it
    return bounded, plain
