"""Encodes tables: numeric columns as they are, text and categories one-hot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tacit.data.encode import Vector
from tacit.errors import DataError


def read_csv(path: Path) -> pd.DataFrame:
    """Reads a CSV file with a header line."""
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from error


def check_columns(frame: pd.DataFrame, names: Sequence[str], where: str) -> None:
    """Refuses a table that lacks one of the columns, and lists those that it has."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise DataError(f"{where} has no column {missing[0]!r}; it has {', '.join(map(str, frame.columns))}")


def encode_columns(frames: Sequence[pd.DataFrame], names: Sequence[str]) -> tuple[list[Vector], tuple[str, ...]]:
    """The columns of every table as one float64 array each, and which of them needed a look at the data.

    All tables are encoded the same way: the categories of a column are those of all tables together, or those
    that its categorical dtype declares. A missing value becomes NaN, which the federation refuses, naming its
    owner.

    >>> table = pd.DataFrame({"age": [30, 50], "smoker": ["no", "yes"]})
    >>> encode_columns([table], ["age", "smoker"])[0][0].tolist()
    [[30.0, 1.0, 0.0], [50.0, 0.0, 1.0]]
    """
    blocks: list[list[Vector]] = [[] for _ in frames]
    looked_at = []
    for name in names:
        columns = [frame[name] for frame in frames]
        if all(is_number(column) for column in columns):
            for block, column in zip(blocks, columns, strict=True):
                block.append(column.to_numpy(dtype=np.float64, na_value=np.nan)[:, None])
            continue
        if any(pd.api.types.is_datetime64_any_dtype(c) or pd.api.types.is_timedelta64_dtype(c) for c in columns):
            raise DataError(f"column {name!r} holds times: turn it into a number, or leave it out")
        categories, declared = _categories(columns)
        if not declared:
            looked_at.append(str(name))
        for block, column in zip(blocks, columns, strict=True):
            block.append(_one_hot(column, categories))
    peeks = (f"one-hot categories found in the data: {', '.join(looked_at)}",) if looked_at else ()
    return [np.concatenate(block, axis=1) for block in blocks], peeks


def target_values(columns: Sequence[pd.Series[Any]]) -> tuple[list[Vector], list[object] | None]:
    """The values of the target in every table, and its classes if a categorical dtype declares them."""
    dtype = columns[0].dtype
    declared = list(dtype.categories) if isinstance(dtype, pd.CategoricalDtype) else None
    values = []
    for column in columns:
        if is_number(column) and column.isna().any():
            values.append(column.to_numpy(dtype=np.float64, na_value=np.nan))
        elif is_number(column) or pd.api.types.is_bool_dtype(column):
            values.append(column.to_numpy(dtype=getattr(column.dtype, "numpy_dtype", column.dtype)))
        else:
            values.append(column.to_numpy(dtype=object))
    return values, declared


def is_number(column: pd.Series[Any]) -> bool:
    """Whether a column is used as it is; a bool is a category here, not a number."""
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _categories(columns: Sequence[pd.Series[Any]]) -> tuple[pd.Index[Any], bool]:
    dtype = columns[0].dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return pd.Index(dtype.categories), True
    if all(pd.api.types.is_bool_dtype(column) for column in columns):
        return pd.Index([False, True], dtype=object), True
    found = pd.concat([column.astype(object) for column in columns]).dropna()
    return pd.Index(pd.factorize(found.to_numpy(), sort=True)[1], dtype=object), False


def _one_hot(column: pd.Series[Any], categories: pd.Index[Any]) -> Vector:
    codes = categories.get_indexer(pd.Index(column.astype(object)))
    hot = np.zeros((len(column), len(categories)))
    hot[np.arange(len(column)), codes] = 1.0
    hot[codes < 0] = np.nan
    return hot
