"""The records of all clients (clients may hold different numbers of records), and batches of them.

Records are stored client after client in one tensor, so selecting a cohort of a hundred thousand clients is one
indexing operation. A client has a *position* in its federation (0, 1, ...), which the methods below take. It also
has an *id*, its number in the whole federation. The id determines the client's randomness and stays the same when
the client is taken out to run alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.errors import DataError, RequestError
from tacit.federation_checks import check_federation, check_index
from tacit.federation_constructors import FederationConstructors
from tacit.privacy.promises.terms import RECORD_COUNTS

if TYPE_CHECKING:
    from tacit.data.features import FeatureMap
    from tacit.data.schema import Schema
    from tacit.side.middle import Middle


_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, eq=False)
class Batch:
    """Some records of some clients, stored client after client; the c-th client has `counts[c]` of them.

    A client may have no records (a Poisson sample can be empty). It then keeps its row, with a count of 0.

    >>> batch = Batch(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1]))
    >>> batch.clients, batch.records, batch.owners().tolist()
    (3, 3, [0, 0, 2])
    """

    features: Tensor
    """(records, *feature_shape)"""
    targets: Tensor
    """(records,), floating or int64"""
    counts: Tensor
    """(clients,) int64, on the CPU"""

    def __post_init__(self) -> None:
        check_index("counts", self.counts)
        if self.targets.ndim != 1 or self.targets.shape[0] != self.features.shape[0]:
            raise DataError(
                f"a batch needs one target per record: features have shape {tuple(self.features.shape)}, "
                f"targets {tuple(self.targets.shape)}"
            )
        if int(self.counts.sum()) != self.records:
            raise DataError(f"counts add up to {int(self.counts.sum())}, but there are {self.records} records")

    @property
    def clients(self) -> int:
        """The number of clients in the batch, including those without records."""
        return self.counts.shape[0]

    @property
    def records(self) -> int:
        """The number of records in the batch, over all clients."""
        return self.features.shape[0]

    def owners(self) -> Tensor:
        """(records,) int64 on the features' device: the client (0 to clients - 1) that each record belongs to."""
        rows = torch.repeat_interleave(torch.arange(self.clients), self.counts, output_size=self.records)
        return rows.to(self.features.device)

    def select(self, rows: Tensor, counts: Tensor) -> Batch:
        """A batch of the records at `rows`, listed client after client, `counts[c]` of them for client c."""
        rows = rows.to(self.features.device)
        return Batch(self.features[rows], self.targets[rows], counts)


@dataclass(frozen=True, eq=False, repr=False)
class Federation(FederationConstructors):
    """The records of all clients. Clients may hold different numbers of records.

    A federation is checked when it is built: every number is finite, every client has at least one record, every
    label is a class, and no two clients share an id (they would draw the same noise).

    >>> Federation.from_clients([([[0.0], [1.0]], [0, 1]), ([[2.0]], [1])])
    custom: 2 clients, 3 records (1 to 2 each), 1 feature, 2 classes
    """

    features: Tensor
    """(records, *feature_shape), float32 or float64, client after client"""
    targets: Tensor
    """(records,), int64 for classification, floating for regression"""
    sizes: Tensor
    """(clients,) int64 on the CPU, every one at least 1"""
    ids: Tensor
    """(clients,) int64 on the CPU: the number in the whole federation, which determines a client's randomness"""
    test_features: Tensor | None = None
    """features of the test records, (records, *feature_shape)"""
    test_targets: Tensor | None = None
    """targets of the test records, (records,)"""
    classes: int | None = None
    """The number of classes; None for regression"""
    names: tuple[str, ...] | None = None
    """The clients' names, such as the values of the client column"""
    name: str = "custom"
    """The data set's name"""
    class_names: tuple[str, ...] | None = None
    """The names of class 0, 1, ... if the labels were text"""
    peeks: tuple[str, ...] = ()
    """What was computed from private data without being accounted for. A guarantee for a run on these data must
    list these quantities as treated as public"""

    charged: DpEvent | None = None
    """What every client has released to prepare its records, such as ranges; every promise includes it"""
    held_back: Tensor | None = None
    """(clients,) int64 on the CPU: how many more records every client has, which are kept for an evaluation"""

    weights: Tensor | None = None
    """(clients,) double on the CPU: each client's weight, p_i times the number of clients, so 1 on average over
    the whole federation; None for 1 each"""
    feature_norm: float | None = None
    """A public bound on the norm of a record's features, if one is known"""
    target_bound: float | None = None
    """A public bound on the absolute target of a regression, if one is known; or on its distance from `middle`"""
    middle: Middle | None = None
    """Where the targets of a regression lie, if that was learned; linear models start there"""
    schema: Schema | None = None
    """The public description of the table that the records come from. If it names persons, a record is a person:
    a bundle of rows (`tacit.data.schema.records.bundled`)"""
    features_by: FeatureMap | None = None
    """The fixed function that made these features of the records as they were given; None if they are those"""

    def __post_init__(self) -> None:
        check_federation(self)
        object.__setattr__(self, "features", _aligned(self.features))
        if self.test_features is not None:
            object.__setattr__(self, "test_features", _aligned(self.test_features))

    def __repr__(self) -> str:
        return self.describe()

    @property
    def clients(self) -> int:
        """The number of clients."""
        return self.sizes.shape[0]

    @property
    def records(self) -> int:
        """The number of training records, over all clients."""
        return self.features.shape[0]

    @property
    def most_released(self) -> Tensor:
        """(clients,) int64: the most records of every client that are in one release.

        These are the ones trained on, or all of them if ranges were learned before some were held back.
        """
        return self.sizes if self.charged is None or self.held_back is None else self.sizes + self.held_back

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one record's features: (d,) for vectors, (channels, height, width) for images."""
        return tuple(self.features.shape[1:])

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of what a model takes: one record's features, or those of one row of a person."""
        return (self.inputs,) if self.by_person else self.feature_shape

    @property
    def by_person(self) -> bool:
        """Whether a record is a person with several rows."""
        return self.schema is not None and self.schema.person is not None

    @property
    def test_is_private(self) -> bool:
        """Whether the test records are some of the clients' own, held back by a schema, and not public."""
        return self.schema is not None

    @property
    def inputs(self) -> int:
        """How many numbers a model gets for one record, or for one row of a person."""
        return self.features.shape[-1] - 2 if self.by_person else self.features[0].numel()

    @property
    def target_scale(self) -> float:
        """One unit of the targets, in the target's own unit: errors of regressions are multiplied with it."""
        return 1.0 if self.schema is None or self.schema.target.classed else self.schema.target.half

    @cached_property
    def offsets(self) -> Tensor:
        """(clients + 1,) int64: client i holds the records offsets[i] to offsets[i + 1] - 1."""
        return torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(self.sizes, 0)])

    def records_of(self, clients: Tensor) -> Tensor:
        """Flat indices of all records of the clients at these positions, in the order given."""
        clients = clients.to("cpu", torch.int64)
        if clients.numel() and not 0 <= int(clients.min()) <= int(clients.max()) < self.clients:
            low, high = int(clients.min()), int(clients.max())
            raise RequestError(f"clients must be positions 0 to {self.clients - 1}, not {low} to {high}")
        sizes = self.sizes[clients]
        ends = torch.cumsum(sizes, 0)
        total = int(ends[-1]) if clients.numel() else 0
        # Each index is a running count plus a per-client offset to where that client's records are stored.
        jumps = self.offsets[clients] - (ends - sizes)
        return torch.arange(total) + torch.repeat_interleave(jumps, sizes, output_size=total)

    def take(self, rows: Tensor, counts: Tensor) -> Batch:
        """The records at these flat indices, as a batch whose c-th client has `counts[c]` of them."""
        rows = rows.to(self.features.device)
        # index_select is twice as fast as indexing.
        return Batch(self.features.index_select(0, rows), self.targets.index_select(0, rows), counts)

    def batch(self, clients: Tensor | None = None) -> Batch:
        """All records of the clients at these positions, by default of all; neighbours are not copied."""
        if clients is None:
            return Batch(self.features, self.targets, self.sizes)
        clients = clients.to("cpu", torch.int64)
        if len(clients) and bool((clients.diff() == 1).all()) and 0 <= clients[0] <= clients[-1] < self.clients:
            # Neighbours' records lie together: no copy, if that keeps the bits of later products.
            own = slice(int(self.offsets[clients[0]]), int(self.offsets[clients[-1] + 1]))
            return Batch(_aligned(self.features[own]), self.targets[own], self.sizes[clients])
        return self.take(self.records_of(clients), self.sizes[clients])

    def client(self, position: int) -> Federation:
        """A federation of this one client, with the same id and test set. Its records are not copied."""
        if not 0 <= position < self.clients:
            raise RequestError(f"client must be a position 0 to {self.clients - 1}, not {position!r}")
        start, end = self.offsets[position : position + 2].tolist()
        return dataclasses.replace(
            self,
            features=self.features[start:end],
            targets=self.targets[start:end],
            sizes=self.sizes[position : position + 1],
            ids=self.ids[position : position + 1],
            names=None if self.names is None else (self.names[position],),
            weights=None if self.weights is None else self.weights[position : position + 1],
            held_back=None if self.held_back is None else self.held_back[position : position + 1],
        )

    def part(self, clients: Tensor) -> Federation:
        """A federation of the clients at these positions, which compute the same bits in it as in `batch`."""
        own, positions = self.batch(clients), clients.tolist()
        return dataclasses.replace(
            self,
            features=own.features,
            targets=own.targets,
            sizes=own.counts,
            ids=self.ids[clients],
            names=None if self.names is None else tuple(self.names[position] for position in positions),
            weights=None if self.weights is None else self.weights[clients],
            held_back=None if self.held_back is None else self.held_back[clients],
        )

    def to(self, device: str | torch.device) -> Federation:
        """The same federation with its records (not its sizes and ids) on that device."""
        return dataclasses.replace(
            self,
            features=self.features.to(device),
            targets=self.targets.to(device),
            test_features=None if self.test_features is None else self.test_features.to(device),
            test_targets=None if self.test_targets is None else self.test_targets.to(device),
        )

    def mapped(self, features: FeatureMap) -> Federation:
        """The same federation with features that are a fixed function of each record (`tacit.data.features`)."""
        if self.by_person:
            raise RequestError("features of persons with several rows cannot be mapped: leave the map out")
        return dataclasses.replace(
            self,
            features=features(self.features),
            test_features=None if self.test_features is None else features(self.test_features),
            features_by=features if self.features_by is None else self.features_by.then(features),
            feature_norm=features.norm,
            peeks=tuple(dict.fromkeys((*self.peeks, *features.public))),
        )

    def weighted(self, weights: Sequence[float] | str) -> Federation:
        """The same federation with the objective F = sum_i p_i F_i (ISRL-DP, Lowy & Razaviyayn 2023, appendix H).

        p_i is proportional to `weights`: one positive number per client, or "records" for p_i = n_i / n. With
        "records", every message is scaled by all clients' record counts, so this is recorded in `peeks`.

        >>> both = Federation.from_clients([([[0.0], [1.0], [2.0]], [0, 1, 1]), ([[2.0]], [1])])
        >>> both.weighted("records").weights.tolist()
        [1.5, 0.5]
        """
        if isinstance(weights, str):
            if weights not in ("records", "equal"):
                raise RequestError(
                    f"weights must be 'records', 'equal' or a number for each client, not {weights!r}"
                )
            given = self.sizes.double() if weights == "records" else None
        else:
            given = torch.tensor([float(weight) for weight in weights], dtype=torch.float64)
        looks = (RECORD_COUNTS,) if isinstance(weights, str) and weights == "records" else ()
        peeks = (*(peek for peek in self.peeks if peek != RECORD_COUNTS), *looks)
        if given is None:
            return dataclasses.replace(self, weights=None, peeks=peeks)
        if len(given) != self.clients or not bool((torch.isfinite(given) & (given > 0)).all()):
            raise RequestError(
                f"weights must be one positive number for each of {self.clients} clients, not {weights!r}"
            )
        return dataclasses.replace(self, weights=given / given.mean(), peeks=peeks)

    def test_batch(self) -> Batch:
        """The whole test set, as the batch of one client."""
        if self.test_features is None or self.test_targets is None:
            raise DataError(f"the data set {self.name!r} has no test set: give test=(features, targets)")
        return Batch(self.test_features, self.test_targets, torch.tensor([self.test_features.shape[0]]))

    def describe(self) -> str:
        """A one-line summary: the numbers of clients, records, features and classes."""
        low, high = int(self.sizes.min()), int(self.sizes.max())
        each = f"{low:,} each" if low == high else f"{low:,} to {high:,} each"
        thing, shape, rows = "record", " x ".join(map(str, self.feature_shape)), ""
        if self.by_person:
            thing, shape = "person", str(self.inputs)
            rows = f" of up to {_plural(self.feature_shape[0], 'row')} each"
        task = "regression" if self.classes is None else f"{self.classes} classes"
        test = "" if self.test_features is None else f"; {self.test_features.shape[0]:,} test {thing}s"
        return (
            f"{self.name}: {_plural(self.clients, 'client')}, {_plural(self.records, thing)} ({each}), "
            f"{shape} feature{'' if shape == '1' else 's'}{rows}, {task}{test}"
        )


def _plural(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _aligned(records: Tensor) -> Tensor:
    """The same records, copied if their memory is not aligned as PyTorch would align it.

    Matrix products round differently when memory is aligned differently. Records that share memory with a numpy
    array, a file or another federation would therefore not give the same bits in every process.
    """
    return records if records.data_ptr() % _ALIGNMENT_BYTES == 0 else records.clone()
