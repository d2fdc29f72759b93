"""How a `Federation` is made: from arrays, from clients, from a table, from PyTorch data sets.

`tacit.data`, which encodes the records, is imported inside the constructors, because it builds on `Federation`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tacit.errors import DataError, RequestError, count
from tacit.privacy.promises.terms import CLASS_LABELS

if TYPE_CHECKING:
    import pandas as pd

    from tacit.data.encode import Arrays, Grouping, Task, Vector
    from tacit.data.schema import Schema
    from tacit.federation import Federation


class FederationConstructors:
    """The constructors of `Federation`."""

    @classmethod
    def from_arrays(
        cls,
        features: Arrays,
        targets: Arrays,
        clients: Sequence[Hashable] | Sequence[Arrays] | Arrays,
        *,
        test: tuple[Arrays, Arrays] | None = None,
        classes: int | Sequence[object] | None = None,
        task: Task | None = None,
        dtype: torch.dtype = torch.float32,
        name: str = "custom",
    ) -> Federation:
        """A federation from numpy arrays, tensors or lists.

        `clients` assigns records to clients: one label per record (all of one sortable type; the sorted labels
        become the clients' names), or one array of record indices per client. Whole-number, bool and text
        targets mean classification and floating ones regression, unless `task` says otherwise. Labels -1/+1
        become 0/1; text labels are numbered in sorted order, or in the order of `classes` if that lists them.

        >>> from tacit import Federation
        >>> sick = Federation.from_arrays([[0.0], [1.0], [2.0]], ["yes", "no", "no"], ["b", "a", "b"])
        >>> sick.names, sick.targets.tolist(), sick.class_names
        (('a', 'b'), [0, 1, 0], ('no', 'yes'))
        """
        from tacit.data.encode import group_records, to_numpy

        rows = to_numpy(features, "features")
        grouping = group_records(clients, rows.shape[0] if rows.ndim else 0)
        return _assemble(rows, targets, grouping, test=test, classes=classes, task=task, dtype=dtype, name=name)

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[tuple[Arrays, Arrays]],
        *,
        test: tuple[Arrays, Arrays] | None = None,
        names: Sequence[str] | None = None,
        classes: int | Sequence[object] | None = None,
        task: Task | None = None,
        dtype: torch.dtype = torch.float32,
        name: str = "custom",
    ) -> Federation:
        """A federation from one (features, targets) pair per client; `names` are the clients'.

        Everything else is as in `from_arrays`.
        """
        from tacit.data.encode import Grouping, target_values, to_numpy
        from tacit.data.one_kind import check_one_kind

        if not clients:
            raise DataError("a federation needs at least one client, and the list of clients is empty")
        called = list(names) if names is not None else [str(position) for position in range(len(clients))]
        if len(called) != len(clients):
            raise DataError(f"names must have {len(clients)} entries, one per client, not {len(called)}")
        features, targets = [], []
        for client, (records, labels) in zip(called, clients, strict=True):
            features.append(to_numpy(records, f"client {client}: features"))
            targets.append(target_values(labels, f"client {client}: targets"))
            _check_client(client, features[-1], targets[-1], features[0].shape[1:])
        given = [labels for _, labels in clients]
        check_one_kind("the clients' targets", *given, numbers_alike=task is not None or classes is not None)
        sizes = np.array([len(part) for part in features], dtype=np.int64)
        everything = Grouping(np.arange(sizes.sum()), sizes, None if names is None else tuple(called))
        return _assemble(
            np.concatenate(features),
            np.concatenate(targets),
            everything,
            test=test,
            classes=classes,
            task=task,
            dtype=dtype,
            name=name,
        )

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        schema: Schema | Path | str | None = None,
        *,
        target: str | None = None,
        client: str | None = None,
        test: pd.DataFrame | None = None,
        clients: int | None = None,
        public_schema: bool = False,
        name: str = "custom",
    ) -> Federation:
        """A federation from a table and its schema, which says everything about how records are prepared.

        Args:
            frame: the table, with a column that names the client of every row.
            schema: the public description of the table, or the path of a schema.toml.
            target: without a schema, the column to predict.
            client: without a schema, the column that names the client.
            test: a table of test records, instead of the share that the schema holds back.
            clients: deal the rows to so many clients, for a trial, if no column names them.
            public_schema: accept as public what the schema (or, without one, a draft of it) took from the
                records; it is recorded in `peeks` by name.
            name: the data set's name.
        """
        from tacit.data.schema.records import TableSource, federate, schema_for

        source = TableSource(frame, "the table")
        remedy = (
            "Draft one with Path('schema.toml').write_text(tacit.draft_schema(frame).to_toml()), edit it, and "
            "give it as schema='schema.toml'; or accept all of this by name with public_schema=True"
        )
        described = schema_for(
            source, schema, target=target, client=client, public_schema=public_schema, remedy=remedy
        )
        if clients is not None and described.client is not None:
            raise RequestError(
                f"clients = {clients}, but column {described.client!r} names the clients; leave it out"
            )
        dealt = None if clients is None else count("clients", clients)
        kept = None if test is None else TableSource(test, "the test table")
        return federate([source], described, test=kept, clients=dealt, name=name)

    @classmethod
    def from_datasets(
        cls,
        datasets: Sequence[Any],
        *,
        test: Any = None,
        inputs: str | None = None,
        target: str = "label",
        names: Sequence[str] | None = None,
        classes: int | Sequence[object] | None = None,
        task: Task | None = None,
        dtype: torch.dtype = torch.float32,
        name: str = "custom",
    ) -> Federation:
        """A federation from one data set per client.

        Args:
            datasets: map-style PyTorch data sets, `DataLoader`s, Hugging Face `datasets.Dataset`s, or (features,
                targets) pairs.
            test: test records in the same form.
            inputs: for items that are dictionaries, and for Hugging Face: the column of features. By default the
                only column that is not the target.
            target: likewise, the column to predict.
            names: the clients' names.
            classes: the classes, or how many there are; see `from_arrays`.
            task: "classification" or "regression", if the targets do not show it.
            dtype: the type of the features.
            name: the data set's name.
        """
        from tacit.data.datasets_given import check_one_for_each, declared_classes, items_of

        check_one_for_each(datasets)
        clients = [items_of(one, f"client {place}", inputs, target) for place, one in enumerate(datasets)]
        kept = None if test is None else items_of(test, "the test set", inputs, target)
        if classes is None and datasets:
            classes = declared_classes(datasets[0], target)
        return cls.from_clients(
            clients, test=kept, names=names, classes=classes, task=task, dtype=dtype, name=name
        )


def _assemble(
    features: Vector,
    targets: Arrays,
    grouping: Grouping,
    *,
    test: tuple[Arrays, Arrays] | None,
    classes: int | Sequence[object] | None,
    task: Task | None,
    dtype: torch.dtype,
    name: str,
) -> Federation:
    from tacit.data.encode import encode_features, encode_targets
    from tacit.federation import Federation

    inputs = encode_features(features, dtype)
    labels = encode_targets(targets, () if test is None else test[1], task=task, classes=classes, dtype=dtype)
    if len(labels.train) != len(inputs):
        raise DataError(f"{len(inputs)} records but {len(labels.train)} targets: give one target per record")
    return Federation(
        features=torch.from_numpy(inputs[grouping.rows]),
        targets=torch.from_numpy(labels.train[grouping.rows]),
        sizes=torch.from_numpy(grouping.sizes.astype(np.int64)),
        ids=torch.arange(len(grouping.sizes)),
        test_features=None if test is None else torch.tensor(encode_features(test[0], dtype, "test features")),
        test_targets=None if test is None else torch.tensor(labels.test),
        classes=labels.classes,
        names=grouping.names,
        name=name,
        class_names=labels.class_names,
        peeks=(CLASS_LABELS,) if labels.peeked else (),
    )


def _check_client(client: str, features: Vector, targets: Vector, shape: tuple[int, ...]) -> None:
    if features.ndim == 0:
        raise DataError(f"client {client}: features must have one row per record, but they are a single number")
    if features.size == 0:
        raise DataError(f"client {client} has no records; every client needs at least one: leave it out")
    if features.shape[1:] != shape:
        raise DataError(f"client {client}: records have shape {features.shape[1:]}, those of the first {shape}")
    if targets.shape != features.shape[:1]:
        raise DataError(
            f"client {client}: {len(features)} records but targets of shape {targets.shape}: give one target per "
            "record"
        )
