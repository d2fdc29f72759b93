"""A table with its schema as the records of clients: whose they are, which are held back, who is one person.

The split goes by a record's place at its client, and by nothing in it: a record that is replaced by another one,
or does not contribute, leaves all others where they were, as both adjacencies require.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit.data.encode import Vector, group_records
from tacit.data.frames import NOTHING, check_columns
from tacit.data.schema.draft import draft_schema
from tacit.data.schema.encode import encode, terms
from tacit.data.schema.schema import Schema
from tacit.data.schema.values import (
    check_typical,
    numbered,
    table_values,
    target_values,
    usable_rows,
    with_gaps,
)  # fmt: skip
from tacit.errors import DataError, RequestError
from tacit.federation import Federation

if TYPE_CHECKING:
    import pandas as pd


Learned = tuple[dict[str, tuple[float, float]], DpEvent | None]
"""Ranges by column, and what every client released for them."""

Learn = Callable[[Federation, Vector, Schema], Learned]
"""Learns the open ranges of a schema from the numbers of the records: (records, open columns), NaN for gaps."""


@dataclass(frozen=True)
class TableSource:
    """A table, and what error messages call it."""

    frame: pd.DataFrame
    where: str
    client: str | None = None
    """the one client that all its rows belong to; None if a column names the clients"""


def schema_for(
    source: TableSource,
    schema: Schema | Path | str | None,
    *,
    target: str | None,
    client: str | None,
    public_schema: bool,
    remedy: str,
) -> Schema:
    """The schema to use: the one that is given and confirmed, or with `public_schema` a draft.

    Without either, the error lists what would have been taken from the records as if it were public, and says how
    to get a schema: `remedy`.
    """
    if schema is not None:
        said = schema if isinstance(schema, Schema) else Schema.read(schema)
        for name, word, known in (("target", target, said.target.column), ("client", client, said.client)):
            if word not in (None, known):
                raise RequestError(f"{name} = {word!r}, but the schema says {known!r}; leave it out")
        said.check_confirmed(public_schema)
        return said
    drafted = draft_schema(source.frame, target=target, client=client).schema
    if not public_schema:
        taken = drafted.unconfirmed_words if drafted.looked_at else "nothing"
        raise RequestError(
            f"{source.where} has no schema. Without one, tacit would take these from the records, as if they "
            f"were public: {taken}. {remedy}"
        )
    return drafted


def federate(
    sources: Sequence[TableSource],
    schema: Schema,
    *,
    test: TableSource | None = None,
    clients: int | None = None,
    name: str = "custom",
    learn: Learn | None = None,
) -> Federation:
    """The records of tables that their schema describes, prepared by it alone.

    If nothing says who holds the rows, they are dealt to `clients` clients by their place, for a trial. Ranges
    that the schema leaves open are learned from the training records by `learn`; the federation then says what
    that released.
    """
    parts = [_Prepared.read(source, schema) for source in sources]
    rows = _Prepared.joined(parts)
    if all(source.client is not None for source in sources):
        sizes, names = [len(part.targets) for part in parts], tuple(str(source.client) for source in sources)
        members = np.split(np.arange(len(rows.targets)), np.cumsum(sizes)[:-1])
    else:
        labels = _dealt(rows, clients) if schema.client is None and clients is not None else rows.clients
        members, names = _clients(labels, sources[0].where)
    share = 0.0 if test is not None else schema.test_share
    train, held_back = _split(members, rows.persons, share, schema.test_seed)
    if schema.open:
        ranges, charged = _learned(rows, train, names, schema, learn)
        made = federate(sources, schema.closed(ranges), test=test, clients=clients, name=name)
        return replace(made, charged=charged, peeks=(*schema.peeks, *schema.units))
    features, targets, counts = _records(rows, train, schema)
    if test is not None:
        extra = _Prepared.read(test, schema)
        test_features, test_targets, _ = _records(extra.measured, [np.arange(len(extra.targets))], schema)
    else:
        test_features, test_targets, _ = _records(rows.measured, [np.concatenate(held_back)], schema)
    return Federation(
        features=features,
        targets=targets,
        sizes=torch.tensor(counts),
        ids=torch.arange(len(counts)),
        test_features=test_features if len(test_features) else None,
        test_targets=test_targets if len(test_features) else None,
        classes=schema.classes,
        names=names,
        name=name,
        class_names=schema.target.classes or None,
        peeks=(*schema.peeks, *schema.units),
        schema=schema,
    )


@dataclass(frozen=True)
class _Prepared:
    """Prepared rows of a table."""

    features: Vector
    targets: Vector
    exact: Vector
    """the targets as they are, also outside of their range, to measure results on"""
    persons: Vector | None
    clients: Vector | None
    open: Vector | None = None
    """the numbers whose ranges are still to be learned, NaN for gaps"""

    @classmethod
    def read(cls, source: TableSource, schema: Schema) -> _Prepared:
        if source.frame.empty:
            raise DataError(f"{source.where} holds no records; leave it out")
        frame = usable_rows(numbered(source.frame), schema, source.where)
        if frame.empty:
            raise DataError(f"{source.where} holds no records with a target, client and person; leave it out")
        open, schema = schema.open, schema.wide if schema.open else schema
        values = table_values(frame, schema, source.where)
        exact = target_values(frame, schema.target, source.where)
        targets = schema.target.cut(exact)
        clients = None if source.client is not None else _labels(frame, schema.client, source.where, "client")
        if schema.tells_units:
            _check_units(frame, schema, values, clients, source.where)
        return cls(
            encode(values, schema),
            targets,
            exact,
            _labels(frame, schema.person, source.where, "person"),
            clients,
            _open_numbers(open, schema, values, targets) if open else None,
        )

    @property
    def measured(self) -> _Prepared:
        """The rows to measure results on: no target counts as the end of its range."""
        return replace(self, targets=self.exact)

    @classmethod
    def joined(cls, parts: Sequence[_Prepared]) -> _Prepared:
        if len(parts) == 1:
            return parts[0]
        columns = (
            [getattr(part, name) for part in parts]
            for name in ("features", "targets", "exact", "persons", "clients", "open")
        )
        return cls(*(None if one[0] is None else np.concatenate(one) for one in columns))  # type: ignore[arg-type]


def _open_numbers(open: tuple[str, ...], schema: Schema, values: Vector, targets: Vector) -> Vector:
    places = {column.name: place for place, column in enumerate(schema.columns)}
    target = schema.target
    columns = [values[:, places[n]] if n in places else target.centre + target.half * targets for n in open]
    return np.stack(columns, axis=1)


def _learned(
    rows: _Prepared, train: Sequence[Vector], names: tuple[str, ...], schema: Schema, learn: Learn | None
) -> Learned:
    """The open ranges. A person's number is the median of their rows."""
    import pandas as pd

    if learn is None:
        raise RequestError(
            f"the range of {', '.join(schema.open)} is open. Learning it privately must be charged to "
            "a promise, as runs, comparisons, estimators and deployments do. Here there is none: give the range"
        )
    assert rows.open is not None, "an open schema has open numbers"
    numbers = [rows.open[part] for part in train]
    if rows.persons is not None:
        people = [_ranks(rows.persons[part]) for part in train]
        each = zip(numbers, people, strict=True)
        numbers = [pd.DataFrame(own).groupby(person).median().to_numpy() for own, person in each]
    sizes = [len(own) for own in numbers]
    blank = torch.zeros(sum(sizes), 1)
    who = Federation(blank, blank[:, 0], torch.tensor(sizes), torch.arange(len(sizes)), names=names)
    return learn(who, np.concatenate(numbers), schema)


def _labels(frame: pd.DataFrame, column: str | None, where: str, what: str) -> Vector | None:
    if column is None:
        return None
    check_columns(frame, [column], where)
    gaps = with_gaps(frame[column], (NOTHING,)).isna().to_numpy()
    if gaps.any():
        row = frame.index[int(gaps.argmax())]
        raise DataError(
            f"{where}: column {column!r} names the {what} of every row, but row {row} has a gap: fill it, or set "
            f'missing = "leave-out" in [{what}] of the schema'
        )
    names = frame[column]
    if names.dtype.kind not in "biufM":
        names = names.map(lambda name: name.strip() if isinstance(name, str) else name)
    labels: Vector = names.to_numpy()
    return labels


def _check_units(frame: pd.DataFrame, schema: Schema, values: Vector, clients: Vector | None, where: str) -> None:
    """Every client's columns, compared with what is typical."""
    import pandas as pd

    if clients is None:
        check_typical(frame, schema, values, where)
        return
    codes, names = pd.factorize(clients)
    for code, name in enumerate(names):
        own = np.flatnonzero(codes == code)
        check_typical(frame.iloc[own], schema, values[own], f"{where}, client {name}")


def _ranks(persons: Vector) -> Vector:
    """The rank of every row's person, by name: records are in this order, and are held back by it.

    The order must not depend on rows. By first rows, one person whose first row is missing would move all others
    up, some of them from training to those that are held back, and the promise to that person would not hold.
    """
    import pandas as pd

    ranks: Vector = pd.factorize(persons, sort=True)[0]
    return ranks


def _dealt(rows: _Prepared, clients: int) -> Vector:
    """A client for every row by its place, the same one for all rows of a person."""
    units = np.arange(len(rows.targets)) if rows.persons is None else _ranks(rows.persons)
    return np.array([f"part {number + 1:0{len(str(clients))}}" for number in range(clients)])[units % clients]


def _clients(labels: Vector | None, where: str) -> tuple[list[Vector], tuple[str, ...]]:
    """The rows of every client, by its name."""
    if labels is None:
        raise RequestError(
            f"it is not known who holds the records of {where}: name the column in [client] of the schema, give "
            "one file per client, joined by commas, or deal the rows to --clients N (clients=N) for a trial"
        )
    grouping = group_records(labels, len(labels))
    assert grouping.names is not None, "labels are names"
    return np.split(grouping.rows, np.cumsum(grouping.sizes)[:-1]), grouping.names


def _split(
    members: Sequence[Vector], persons: Vector | None, share: float, seed: int
) -> tuple[list[Vector], list[Vector]]:
    """Every client's rows for training, and those that are held back: by place, whole persons by their names."""
    train, test = [], []
    for rows in members:
        units = np.arange(len(rows)) if persons is None else _ranks(persons[rows])
        number = int(units.max()) + 1
        held = np.zeros(number, dtype=bool)
        held[np.random.default_rng(seed).permutation(number)[: int(share * number)]] = True
        train.append(rows[~held[units]])
        test.append(rows[held[units]])
    return train, test


def _records(
    rows: _Prepared, members: Sequence[Vector], schema: Schema
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Features and targets of these rows, client after client, and how many records each client has."""
    if rows.persons is None:
        order = np.concatenate(members)
        targets = rows.targets[order] if schema.target.classed else rows.targets[order].astype(np.float32)
        return torch.from_numpy(rows.features[order]), torch.from_numpy(targets), [len(part) for part in members]
    bundles = [
        bundled(rows.features[part], rows.targets[part], rows.persons[part], schema.rows) for part in members
    ]
    features = torch.from_numpy(np.concatenate(bundles))
    targets = features[:, 0, len(terms(schema))]
    return features, targets.long() if schema.target.classed else targets, [len(part) for part in bundles]


def bundled(features: Vector, targets: Vector, persons: Vector, most: int) -> Vector:
    """One record for each person: (persons, most, features + 2) float32, with unused rows of zeros.

    The last two columns are the row's target and its share of the person: 1 over the number of rows in use.
    Of more than `most` rows, that many are used, evenly spread over the file.

    >>> bundled(np.ones((3, 1)), np.array([0, 1, 1]), np.array(["a", "b", "a"]), 2)[0].tolist()
    [[1.0, 0.0, 0.5], [1.0, 1.0, 0.5]]
    """
    codes = _ranks(persons)
    sizes = np.bincount(codes)
    order = np.argsort(codes, kind="stable")
    ranks = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    have = np.repeat(sizes, sizes)
    places = np.where(have <= most, ranks, ranks * most // have)
    used = (ranks == 0) | (have <= most) | (places != (ranks - 1) * most // have)
    kept, owner = order[used], codes[order[used]]
    bundle = np.zeros((len(sizes), most, features.shape[1] + 2), dtype=np.float32)
    bundle[owner, places[used], :-2] = features[kept]
    bundle[owner, places[used], -2] = targets[kept]
    bundle[owner, places[used], -1] = 1 / np.minimum(sizes, most)[owner]
    return bundle
