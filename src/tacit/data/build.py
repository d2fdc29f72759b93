"""The constructors of `Federation`: from arrays, from clients, from a table, from PyTorch data sets."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tacit.data.datasets_given import check_one_for_each, declared_classes, items_of
from tacit.data.encode import (
    Arrays,
    Grouping,
    Task,
    Vector,
    encode_features,
    encode_targets,
    group_records,
    target_values,
    to_numpy,
)
from tacit.data.schema import Schema
from tacit.data.schema.records import TableSource, federate, schema_for
from tacit.errors import DataError
from tacit.federation import Federation
from tacit.privacy.promises.terms import CLASS_LABELS

if TYPE_CHECKING:
    import pandas as pd


def from_arrays(
    features: Arrays,
    targets: Arrays,
    clients: Sequence[Hashable] | Sequence[Arrays] | Arrays,
    *,
    test: tuple[Arrays, Arrays] | None = None,
    **options: Any,
) -> Federation:
    """Implements `Federation.from_arrays`."""
    features = to_numpy(features, "features")
    records = features.shape[0] if features.ndim else 0
    return _assemble(features, targets, group_records(clients, records), test=test, **options)


def from_clients(
    clients: Sequence[tuple[Arrays, Arrays]],
    *,
    test: tuple[Arrays, Arrays] | None = None,
    names: Sequence[str] | None = None,
    **options: Any,
) -> Federation:
    """Implements `Federation.from_clients`."""
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
    sizes = np.array([len(part) for part in features], dtype=np.int64)
    everything = Grouping(np.arange(sizes.sum()), sizes, None if names is None else tuple(called))
    return _assemble(np.concatenate(features), np.concatenate(targets), everything, test=test, **options)


def from_frame(
    frame: pd.DataFrame,
    schema: Schema | Path | str | None = None,
    *,
    target: str | None = None,
    client: str | None = None,
    test: pd.DataFrame | None = None,
    public_schema: bool = False,
    name: str = "custom",
) -> Federation:
    """Implements `Federation.from_frame`."""
    source = TableSource(frame, "the table")
    said = schema_for(source, schema, target=target, client=client, public_schema=public_schema)
    return federate([source], said, test=None if test is None else TableSource(test, "the test table"), name=name)


def from_datasets(
    datasets: Sequence[Any],
    *,
    test: Any = None,
    inputs: str | None = None,
    target: str = "label",
    classes: int | Sequence[object] | None = None,
    **options: Any,
) -> Federation:
    """Implements `Federation.from_datasets`."""
    check_one_for_each(datasets)
    clients = [items_of(one, f"client {place}", inputs, target) for place, one in enumerate(datasets)]
    kept = None if test is None else items_of(test, "the test set", inputs, target)
    if classes is None and datasets:
        classes = declared_classes(datasets[0], target)
    return from_clients(clients, test=kept, classes=classes, **options)


def _assemble(
    features: Vector,
    targets: Arrays,
    grouping: Grouping,
    *,
    test: tuple[Arrays, Arrays] | None,
    classes: int | Sequence[object] | None = None,
    task: Task | None = None,
    dtype: torch.dtype = torch.float32,
    name: str = "custom",
) -> Federation:
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
        peeks=(CLASS_LABELS,) if classes is None and labels.classes is not None else (),
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
