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

from tacit.client.bounds import Bound, ClipNorm, Normalise
from tacit.client.cohort import Cohort
from tacit.client.memory import no_past, recall, remember
from tacit.client.sampling import Drawn, Poisson, Sampling
from tacit.errors import RequestError, probability
from tacit.federation import Batch, Federation
from tacit.models.gradients import OuterGradients, OuterLayer
from tacit.models.linear import LinearModel
from tacit.models.model import Model, flat_features
from tacit.noise.randomness import Purpose

State = dict[str, Tensor]

COEFFICIENTS = "coefficients"
"""Of every record: its bounded gradient at an older point is features (x) coefficients, for linear models."""


@dataclass(frozen=True)
class BoundedModel:
    """A model seen through a bound: sums of bounded gradients are all that an estimator gets."""

    model: Model
    bound: Bound
    precision: torch.dtype = torch.float32

    def sums(self, point: Tensor, batch: Batch) -> Tensor:
        """For every client the sum of its records' bounded gradients: (clients, dim)."""
        return self.bound.sums(self.model.gradients(point.to(self.precision), self._precise(batch)))

    def _precise(self, batch: Batch) -> Batch:
        if batch.features.dtype == self.precision:
            return batch
        targets = batch.targets.to(self.precision) if batch.targets.is_floating_point() else batch.targets
        return Batch(batch.features.to(self.precision), targets, batch.counts)

    def coefficients(self, point: Tensor, batch: Batch) -> Tensor | None:
        """Rows c_j such that every record's bounded gradient is features_j (x) c_j: (records, outputs).

        A linear model's gradients have this form, and keep it under bounds that scale them. Otherwise None.
        """
        # Exactly these: one that is derived from them may bound in another way.
        if not (isinstance(self.model, LinearModel) and type(self.bound) in (ClipNorm, Normalise)):
            return None
        assert isinstance(self.bound, ClipNorm | Normalise), "it is one of these"
        gradients = self.model.gradients(point.to(self.precision), self._precise(batch))
        (layer,) = gradients.layers
        scales = self.bound.scales(gradients).to(self.precision)[:, None]
        coefficients = layer.errors * scales
        return torch.where((scales != 0) & torch.isfinite(coefficients), coefficients, 0.0)

    def combined(self, coefficients: Tensor, batch: Batch) -> Tensor:
        """For every client the sum of features_j (x) c_j: (clients, dim). A row of zeros adds exactly zero."""
        assert isinstance(self.model, LinearModel), "only linear models have coefficients"
        layer = OuterLayer(flat_features(self._precise(batch)), coefficients, self.model.intercept)
        return OuterGradients((layer,), batch.counts).weighted_sums((coefficients != 0).any(1))


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
            differences = _change(model, point, drawn, state)[0]
        else:
            keys = state["snapshot_keys"][cohort.clients][drawn.batch.owners().cpu()]
            differences = model.sums(point, drawn.batch) - _sums_at_past_points(model, state, drawn.batch, keys)
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

    def reach(self, rate: float) -> tuple[float, float]:
        """2 - q when drawn, q when not."""
        return 2.0 - rate, rate

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
            differences, state[COEFFICIENTS][drawn.rows] = _change(model, point, drawn, state)
        else:
            keys = state["table_keys"][drawn.rows]
            differences = model.sums(point, drawn.batch) - _sums_at_past_points(model, state, drawn.batch, keys)
            state["table_keys"][drawn.rows] = cohort.round + 1
            state = remember(state, cohort.round + 1, point, state["table_keys"])
        means = state["table_means"][cohort.clients]
        b = _column(self.sampling.batch_sizes(cohort.sizes), differences)
        estimate = differences / b + means.to(differences.dtype)
        state["table_means"][cohort.clients] = means + differences / _column(cohort.sizes, means)
        return estimate, state

    def reach(self, rate: float) -> tuple[float, float]:
        """2 - q when drawn, q when not."""
        return 2.0 - rate, rate

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


def _change(model: BoundedModel, point: Tensor, drawn: Drawn, state: State) -> tuple[Tensor, Tensor]:
    """Sums of bounded gradients less the remembered ones, by one product; and the coefficients here."""
    now = model.coefficients(point, drawn.batch)
    assert now is not None, "a model that had coefficients has them still"
    return model.combined(now - state[COEFFICIENTS][drawn.rows], drawn.batch), now


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
