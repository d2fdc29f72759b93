"""The gradient estimators of SoteriaFL (papers/000, Algorithm 3), from bounded per-record gradients.

Whatever is written below as a gradient of a record, u_j at the current point or y_j at an older one, is
bounded record by record before anything is added up. So with G the bound, b = q m the batch and m the records:

    minibatch   (1/b) sum_{j in I} u_j                              drawn: G/b         not drawn: 0
    SVRG, SAGA  (1/b) sum_{j in I} (u_j - y_j) + (1/m) sum_j y_j    drawn: (2-q) G/b   not drawn: G/m

The right-hand side is how far one record can move the estimate (Theorem B of docs/privacy.md): u_j counts
1/b, y_j counts -1/b + 1/m = -(1-q)/b when drawn and 1/m = q/b when not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tacit.client.bounds import Bound
from tacit.client.cohort import Cohort
from tacit.client.memory import no_past, recall, remember
from tacit.client.sampling import Poisson, Sampling
from tacit.errors import RequestError, probability
from tacit.federation import Batch, Federation
from tacit.models.model import Model
from tacit.noise.randomness import Purpose

State = dict[str, Tensor]


@dataclass(frozen=True)
class BoundedModel:
    """A model seen through a bound: sums of bounded gradients are all that an estimator gets."""

    model: Model
    bound: Bound
    precision: torch.dtype = torch.float32

    def sums(self, point: Tensor, batch: Batch) -> Tensor:
        """For every client the sum of its records' bounded gradients: (clients, dim)."""
        if batch.features.dtype != self.precision:
            targets = batch.targets.to(self.precision) if batch.targets.is_floating_point() else batch.targets
            batch = Batch(batch.features.to(self.precision), targets, batch.counts)
        return self.bound.sums(self.model.gradients(point.to(self.precision), batch))


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

    def reach(self, rate: float) -> tuple[float, float]:
        """How far one record moves the sum, in bounds: (when drawn, when not drawn)."""
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

    def reach(self, rate: float) -> tuple[float, float]:
        """A record that is not drawn has no influence."""
        return 1.0, 0.0

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

    def __post_init__(self) -> None:
        probability("snapshot_probability", self.snapshot_probability)

    def init(self, model: BoundedModel, point: Tensor, federation: Federation) -> State:
        """The first snapshot is the start, w^0 = x^0."""
        sums = model.sums(point, federation.batch())
        return {
            "snapshot_means": sums / _column(federation.sizes, sums),
            "snapshot_keys": torch.zeros(federation.clients, dtype=torch.int64),
            **remember(no_past(point), 0, point, torch.empty(0)),
        }

    def estimate(self, model: BoundedModel, point: Tensor, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        """Two passes over the batch, and one over everything when the coin says so."""
        batch = self.sampling.draw(cohort).batch
        keys = state["snapshot_keys"][cohort.clients]
        differences = model.sums(point, batch) - _sums_at_past_points(
            model, state, batch, keys[batch.owners().cpu()]
        )
        b = _column(self.sampling.batch_sizes(cohort.sizes), differences)
        estimate = differences / b + state["snapshot_means"][cohort.clients]
        if self._moves(cohort):
            sums = model.sums(point, cohort.everything())
            state["snapshot_means"][cohort.clients] = sums / _column(cohort.sizes, sums)
            state["snapshot_keys"][cohort.clients] = cohort.round + 1
            state = remember(state, cohort.round + 1, point, state["snapshot_keys"])
        return estimate, state

    def _moves(self, cohort: Cohort) -> bool:
        return cohort.public_coin(Purpose.SNAPSHOT, self.snapshot_probability)

    def reach(self, rate: float) -> tuple[float, float]:
        """2 - q when drawn, q when not."""
        return 2.0 - rate, rate

    def evaluations(self, cohort: Cohort) -> float:
        """The batch twice; everything at the start and whenever the snapshot moves."""
        everything = float(cohort.sizes.sum())
        passes = int(self._moves(cohort)) + int(cohort.round == 0)
        return 2 * float(self.sampling.batch_sizes(cohort.sizes).sum()) + passes * everything

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """Everything, when the snapshot moves."""
        return sizes.double()


@dataclass(frozen=True)
class Saga:
    """Batch differences to a table with one gradient for each record, plus the table's mean (option III).

    The table is hidden state that depends on past batches. That is harmless when every record has a coin of
    its own (Theorem B), and unproved otherwise: only Poisson sampling is accepted.
    """

    sampling: Sampling

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, Poisson):
            raise RequestError(
                f"saga with sampling {self.sampling.name!r} has no proof that hidden table entries do no harm; "
                "use sampling 'poisson'"
            )

    def init(self, model: BoundedModel, point: Tensor, federation: Federation) -> State:
        """Every table entry starts at the gradient at the start, w_ij^0 = x^0."""
        sums = model.sums(point, federation.batch()).double()
        return {
            # In double precision, because it is updated in place over the whole run.
            "table_means": sums / _column(federation.sizes, sums),
            "table_keys": torch.zeros(federation.records, dtype=torch.int64),
            **remember(no_past(point), 0, point, torch.empty(0)),
        }

    def estimate(self, model: BoundedModel, point: Tensor, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        """One pass over the batch at the point, one at the points its table entries belong to."""
        drawn = self.sampling.draw(cohort)
        keys = state["table_keys"][drawn.rows]
        differences = model.sums(point, drawn.batch) - _sums_at_past_points(model, state, drawn.batch, keys)
        means = state["table_means"][cohort.clients]
        b = _column(self.sampling.batch_sizes(cohort.sizes), differences)
        estimate = differences / b + means.to(differences.dtype)
        state["table_means"][cohort.clients] = means + differences / _column(cohort.sizes, means)
        state["table_keys"][drawn.rows] = cohort.round + 1
        return estimate, remember(state, cohort.round + 1, point, state["table_keys"])

    def reach(self, rate: float) -> tuple[float, float]:
        """2 - q when drawn, q when not."""
        return 2.0 - rate, rate

    def evaluations(self, cohort: Cohort) -> float:
        """The batch twice, and everything at the start."""
        start = float(cohort.sizes.sum()) if cohort.round == 0 else 0.0
        return 2 * float(self.sampling.batch_sizes(cohort.sizes).sum()) + start

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """The batch, and the parts of it that share a past point."""
        return 2 * self.sampling.batch_sizes(sizes)


def _sums_at_past_points(model: BoundedModel, state: State, batch: Batch, keys: Tensor) -> Tensor:
    """Sums of bounded gradients where every record stands at the past point of its key."""
    total = torch.zeros(batch.clients, model.model.dim, dtype=model.precision).to(batch.features.device)
    owners = batch.owners().cpu()
    for key in torch.unique(keys).tolist():
        rows = torch.nonzero(keys == key).flatten()
        counts = torch.bincount(owners[rows], minlength=batch.clients)
        part = batch if len(rows) == batch.records else batch.select(rows, counts)
        total = total + model.sums(recall(state, key), part)
    return total
