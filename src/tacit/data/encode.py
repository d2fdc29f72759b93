"""Converts arrays, tensors, lists, labels and words to what a federation holds.

The only thing learnt from the values is which labels occur.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.data.one_kind import check_one_kind, gaps_among
from tacit.errors import DataError, count, unknown_name

Arrays: TypeAlias = npt.ArrayLike | Tensor
"""Anything that numpy can read as an array, or a tensor."""
Task: TypeAlias = Literal["classification", "regression"]
Vector: TypeAlias = npt.NDArray[Any]


_WORDS = "OUST"
"""Types of arrays whose labels are numbered in sorted order."""

MOST_LABELS = 1000
"""At this value and above, whole numbers are not taken for labels of classes unless the caller says so."""


def to_numpy(values: Arrays, what: str) -> Vector:
    """The values as a numpy array. Refuses lists whose rows differ in length."""
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DataError(f"{what} do not form an array: {error}") from error


def as_labels(values: Arrays, what: str, *, numbers_alike: bool = False) -> Vector:
    """Labels of one kind as an array. Gaps beside words are still gaps in it, and not the word "nan".

    >>> as_labels(["a", float("nan")], "labels")
    array(['a', nan], dtype=object)
    """
    check_one_kind(what, values, numbers_alike=numbers_alike)
    found = to_numpy(values, what)
    if found.dtype.kind == "U" and not isinstance(values, np.ndarray):
        cells = np.asarray(values, dtype=object)
        return cells if gaps_among(cells).any() else found
    return found


def target_values(values: Arrays, what: str) -> Vector:
    """Targets as one number for each record. A column of them, as PyTorch's losses want it, counts as that.

    >>> target_values([[1.0], [2.0]], "targets")
    array([1., 2.])
    """
    found = as_labels(values, what, numbers_alike=True)
    return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


def encode_features(values: Arrays, dtype: torch.dtype, what: str = "features") -> Vector:
    """The features as a float32 or float64 array. Refuses words, because nothing says how to number them."""
    if dtype not in (torch.float32, torch.float64):
        raise DataError(f"dtype must be torch.float32 or torch.float64, not {dtype!r}")
    array = to_numpy(values, what)
    if array.ndim < 2:
        raise DataError(f"{what} must have shape (records, *feature_shape), not {array.shape}")
    if np.iscomplexobj(array):
        raise DataError(f"{what} are complex numbers: give their parts as two columns")
    try:
        # A value that overflows becomes infinite here; the federation refuses it and names its owner.
        with np.errstate(over="ignore"):
            return array.astype(np.float64 if dtype == torch.float64 else np.float32, copy=False)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{what} must be numbers, not {array.dtype}: encode words first, or use from_frame"
        ) from error


@dataclass(frozen=True)
class Targets:
    """Encoded targets of the training and test records (there may be no test records)."""

    train: Vector
    test: Vector
    classes: int | None
    class_names: tuple[str, ...] | None = None
    peeked: bool = False
    """whether what a label means follows from which labels occur"""


def encode_targets(
    train: Arrays,
    test: Arrays,
    *,
    task: Task | None,
    classes: int | Sequence[object] | None,
    dtype: torch.dtype,
) -> Targets:
    """Encodes targets as int64 labels 0 to classes - 1, or as floating-point numbers for regression.

    Training and test targets are encoded together, so a label means the same in both. They are of one kind; where
    nothing else tells a classification from a regression, not even whole numbers and others are mixed.

    >>> encode_targets([-1, 1, 1], [-1], task=None, classes=None, dtype=torch.float32)
    Targets(train=array([0, 1, 1]), test=array([0]), classes=2, class_names=None, peeked=True)
    """
    check_one_kind("targets", train, numbers_alike=task is not None or classes is not None)
    check_one_kind("targets of training and test records", train, test, numbers_alike=True)
    parts = [target_values(train, "targets"), target_values(test, "test targets")]
    if parts[1].size == 0:
        parts[1] = np.empty(0, dtype=parts[0].dtype)
    for part in parts:
        if part.ndim != 1:
            raise DataError(f"targets must be one value per record, not an array of shape {part.shape}")
    values = np.concatenate(parts)
    if task is None:
        task = "regression" if values.dtype.kind == "f" and classes is None else "classification"
    if task == "regression":
        if classes is not None:
            raise DataError(f"a regression has no classes, but classes={classes!r} was given")
        return _regression(values, len(parts[0]), dtype)
    if task != "classification":
        raise unknown_name("task", str(task), ["classification", "regression"])
    labels, number, names = _labels(values, classes)
    # Words are numbered in sorted order, even if the number of classes is given.
    peeked = classes is None or (isinstance(classes, int) and values.dtype.kind in _WORDS)
    return Targets(labels[: len(parts[0])], labels[len(parts[0]) :], number, names, peeked)


def _regression(values: Vector, records: int, dtype: torch.dtype) -> Targets:
    try:
        with np.errstate(over="ignore"):
            numbers = values.astype(np.float64 if dtype == torch.float64 else np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"regression targets must be numbers, not {values.dtype}") from error
    return Targets(numbers[:records], numbers[records:], None)


def _labels(values: Vector, classes: int | Sequence[object] | None) -> tuple[Vector, int, tuple[str, ...] | None]:
    import pandas as pd

    if classes is not None and not isinstance(classes, int):
        return _listed_labels(values, list(classes))
    number = None if classes is None else count("classes", classes)
    if values.dtype.kind in _WORDS:
        codes, found = pd.factorize(values, sort=True)
        if (codes < 0).any():
            raise DataError(f"the target of record {int((codes < 0).argmax())} is missing; leave it out")
        if number is not None and number < len(found):
            raise DataError(f"classes={number}, but the targets hold {len(found)} labels: {list(found)[:10]}")
        names = tuple(str(label) for label in found)
        return codes.astype(np.int64), number or len(found), names if number in (None, len(found)) else None
    with np.errstate(invalid="ignore"):
        labels = values.astype(np.int64)
    if values.dtype.kind == "f" and not np.array_equal(labels, values):
        wrong = values[labels != values][0]
        raise DataError(f"class labels must be whole numbers, not {wrong}; for regression, leave out `classes`")
    if number in (None, 2) and labels.size and set(np.unique(labels)) <= {-1, 1} and labels.min() == -1:
        return (labels + 1) // 2, 2, None
    if number is None and labels.size and labels.max() >= MOST_LABELS:
        raise DataError(
            f"the targets are whole numbers of {MOST_LABELS} and more: say task='regression', or how many "
            "classes there are (classes=...). The largest target must not decide how large the model is"
        )
    if labels.size and labels.min() < 0:
        raise DataError(f"class labels must be 0, 1, 2, ... (or -1 and +1), not {labels.min()}")
    return labels, number or max(2, int(labels.max(initial=0)) + 1), None


def _listed_labels(values: Vector, classes: list[object]) -> tuple[Vector, int, tuple[str, ...]]:
    import pandas as pd

    if len(set(classes)) != len(classes) or not classes:
        raise DataError(f"classes must list every label once, not {classes!r}")
    codes = pd.Index(classes).get_indexer(pd.Index(values))
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        label = values.tolist()[row]
        raise DataError(f"the target of record {row} is {label!r}, which is not among classes={classes!r}")
    return codes.astype(np.int64), len(classes), tuple(str(label) for label in classes)


@dataclass(frozen=True)
class Grouping:
    """Who holds which record: record indices ordered by client, and the size and name of each client."""

    rows: Vector
    sizes: Vector
    names: tuple[str, ...] | None


def group_records(clients: Sequence[Hashable] | Sequence[Arrays] | Arrays, records: int) -> Grouping:
    """Groups records by client, from one label per record or from one array of indices per client.

    >>> group_records(["b", "a", "b"], 3)
    Grouping(rows=array([1, 0, 2]), sizes=array([1, 2]), names=('a', 'b'))
    """
    import pandas as pd

    if isinstance(clients, list | tuple) and clients and isinstance(clients[0], _INDEX_LISTS):
        return _group_by_index([to_numpy(rows, "client indices") for rows in clients], records)
    labels = as_labels(clients, "client labels")  # type: ignore[arg-type]  # any array of labels
    if labels.shape != (records,):
        raise DataError(
            f"clients must be {records} labels, one per record, or a list of index arrays, not an array of "
            f"shape {labels.shape}"
        )
    codes, found = pd.factorize(labels, sort=True)
    if (codes < 0).any():
        raise DataError(f"the client of record {int((codes < 0).argmax())} is missing; every record needs one")
    names = tuple(str(label) for label in found)
    return Grouping(np.argsort(codes, kind="stable"), np.bincount(codes, minlength=len(found)), names)


_INDEX_LISTS = (list, tuple, range, np.ndarray, Tensor)


def _group_by_index(clients: list[Vector], records: int) -> Grouping:
    for client, rows in enumerate(clients):
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise DataError(
                f"client {client}: record indices must be a vector of whole numbers, not {rows.dtype}"
            )
    rows = np.concatenate(clients).astype(np.int64)
    if rows.size and not 0 <= rows.min() <= rows.max() < records:
        raise DataError(f"record indices must be 0 to {records - 1}, not {rows.min()} to {rows.max()}")
    shared = np.flatnonzero(np.bincount(rows, minlength=records) > 1)
    if shared.size:
        raise DataError(f"record {shared[0]} was given more than once: a record belongs to one client")
    return Grouping(rows, np.array([len(part) for part in clients], dtype=np.int64), None)
