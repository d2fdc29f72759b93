"""The records of data sets that users of other libraries have: PyTorch's and Hugging Face's."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from tacit.data.encode import Vector, to_numpy
from tacit.errors import DataError, unknown_name


def check_one_for_each(datasets: Any) -> None:
    """Refuses a dictionary, and a single data set, whose items would count as clients."""
    if isinstance(datasets, dict):
        raise DataError(
            "clients must be a list with one data set or loader for each client, not a dictionary: write "
            "list(clients.values()); names=list(clients) is an argument of tacit.Federation.from_datasets"
        )
    arrays = np.ndarray | torch.Tensor
    pair = isinstance(datasets, tuple) and any(isinstance(one, arrays) for one in datasets)
    if pair or isinstance(datasets, DataLoader | Dataset | arrays) or hasattr(datasets, "column_names"):
        raise DataError(
            "clients must be a list with one data set or loader for each client, not a single "
            f"{'pair' if pair else type(datasets).__name__}: for one client write [data]"
        )


def items_of(dataset: Any, owner: str, inputs: str | None, target: str) -> tuple[Vector, Any]:
    """Features and targets of one client; the targets as they were given."""
    if isinstance(dataset, tuple) and len(dataset) == 2:
        return to_numpy(dataset[0], f"{owner}: features"), dataset[1]
    if isinstance(dataset, DataLoader):
        return _loaded(dataset, owner, inputs, target)
    if hasattr(dataset, "column_names") and not isinstance(dataset, Dataset):
        return _columns(dataset, owner, inputs, target)
    if (
        isinstance(dataset, IterableDataset)
        or not isinstance(dataset, Sized)
        or not hasattr(dataset, "__getitem__")
    ):
        raise DataError(f"{owner}: data sets must be map-style, with a length, not {type(dataset).__name__}")
    if len(dataset) == 0:
        raise DataError(f"{owner} has no records; every client needs at least one: leave it out")
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return items_of(tuple(dataset.tensors), owner, inputs, target)
    return _stacked((dataset[place] for place in range(len(dataset))), owner, inputs, target)


def _loaded(loader: DataLoader[Any], owner: str, inputs: str | None, target: str) -> tuple[Vector, Vector]:
    """The records of a loader: those of its data set in order, or all of its batches if it makes them itself."""
    sampled = type(loader.sampler) not in (torch.utils.data.SequentialSampler, torch.utils.data.RandomSampler)
    if loader.collate_fn is default_collate and not sampled and not isinstance(loader.dataset, IterableDataset):
        return items_of(loader.dataset, owner, inputs, target)
    if loader.drop_last:
        raise DataError(f"{owner}: a loader with drop_last=True leaves records out: set drop_last=False")
    batches = [_pair(batch, owner, inputs, target) for batch in loader]
    if not batches:
        raise DataError(f"{owner} has no records; every client needs at least one: leave it out")
    try:
        rows = [torch.as_tensor(features) for features, _ in batches]
        labels = [torch.as_tensor(some) for _, some in batches]
        return torch.cat(rows).numpy(), torch.cat(labels).numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{owner}: batches must be tensors of one shape: {error}") from error


def _stacked(items: Iterable[Any], owner: str, inputs: str | None, target: str) -> tuple[Vector, list[Any]]:
    pairs = [_pair(item, owner, inputs, target) for item in items]
    try:
        rows = torch.stack([torch.as_tensor(features) for features, _ in pairs]).numpy()
        return rows, [label for _, label in pairs]
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{owner}: need (tensor, label) pairs of one shape; turn images into tensors first ({error})"
        ) from error


def _pair(item: Any, owner: str, inputs: str | None, target: str) -> tuple[Any, Any]:
    """Features and label of an item, which is a pair or a dictionary."""
    if isinstance(item, dict):
        return item[_inputs(list(item), owner, inputs, target)], item[target]
    try:
        features, label = item
    except (TypeError, ValueError) as error:
        raise DataError(f"{owner}: items must be (features, label) pairs or dictionaries: {error}") from error
    return features, label


def _columns(dataset: Any, owner: str, inputs: str | None, target: str) -> tuple[Vector, Vector]:
    """The columns of a `datasets.Dataset`."""
    name = _inputs(list(dataset.column_names), owner, inputs, target)
    if len(dataset) == 0:
        raise DataError(f"{owner} has no records; every client needs at least one: leave it out")
    rows = to_numpy(list(dataset[name]), f"{owner}: column {name!r}")
    if rows.dtype.kind not in "fiub":
        raise DataError(
            f"{owner}: column {name!r} holds {type(dataset[0][name]).__name__}, not numbers: compute features "
            "first (dataset.map), or name another column with inputs="
        )
    return rows if rows.ndim > 1 else rows[:, None], to_numpy(
        list(dataset[target]), f"{owner}: column {target!r}"
    )


def _inputs(names: list[str], owner: str, inputs: str | None, target: str) -> str:
    if target not in names:
        raise unknown_name(f"column of {owner} (target=)", target, names)
    if inputs is None:
        others = [name for name in names if name != target]
        if len(others) != 1:
            raise DataError(f"{owner} has the columns {names}: say which holds the features, inputs=...")
        return others[0]
    if inputs not in names:
        raise unknown_name(f"column of {owner} (inputs=)", inputs, names)
    return inputs


def declared_classes(dataset: Any, target: str) -> int | None:
    """The number of classes that a Hugging Face data set declares for its target, if it does."""
    declared = getattr(dataset, "features", None)
    if declared is None or not hasattr(dataset, "column_names") or target not in declared:
        return None
    return getattr(declared[target], "num_classes", None)
