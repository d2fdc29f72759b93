"""The LIBSVM text format, `label index:value ...`, as dense arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tacit.data.encode import Vector
from tacit.errors import DataError

_MAX_DENSE_VALUES = 2**29


def read_svmlight(paths: Sequence[Path], features: int | None = None) -> list[tuple[Vector, Vector]]:
    """(features, targets) of each file, all with the same number of columns; integer targets are labels.

    Indices count from 1. (If the smallest one decided that, a single record could move the features of all.)
    Without `features`, the largest index in the files is the number of columns. Sparse files become dense, so
    files that would not fit (more than 2**29 values) are refused.
    """
    from sklearn.datasets import load_svmlight_files

    try:
        loaded = load_svmlight_files(
            [str(path) for path in paths], n_features=features, dtype=np.float32, zero_based=False
        )
    except (OSError, ValueError, OverflowError) as error:
        names = ", ".join(map(str, paths))
        if "index 0" in str(error):
            raise DataError(
                f"{names}: index 0, but indices in LIBSVM format count from 1: write the file again, in "
                "scikit-learn with dump_svmlight_file(..., zero_based=False)"
            ) from error
        raise DataError(f"{names}: not in LIBSVM format, or damaged ({error})") from error
    labels = all(np.array_equal(targets, np.round(targets)) for targets in loaded[1::2])
    pairs = []
    for path, matrix, targets in zip(paths, loaded[::2], loaded[1::2], strict=True):
        records, columns = matrix.shape
        if records * columns > _MAX_DENSE_VALUES:
            raise DataError(
                f"{path}: {records:,} records of {columns:,} features are too many for dense arrays; "
                "keep fewer features, or hash them"
            )
        pairs.append((matrix.toarray(), targets.astype(np.int64) if labels else targets))
    return pairs
