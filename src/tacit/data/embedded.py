"""The small data sets that come with scikit-learn and need no download."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from tacit.data.raw import Raw
from tacit.errors import DataError


def read_digits() -> Raw:
    """8 x 8 images of handwritten digits, with 17 shades of grey."""
    # The file itself, because importing scikit-learn takes longer than training on it.
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise DataError("the digits come with scikit-learn, which is not installed: pip install scikit-learn")
    table = np.loadtxt(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return Raw(table[:, :-1], table[:, -1].astype(np.int64), divisor=16.0)


def read_breast_cancer() -> Raw:
    """Measures of cell nuclei; the tumour is malignant (0) or benign (1)."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    return Raw(bunch.data, bunch.target.astype(np.int64), standardised=tuple(range(30)))


def read_diabetes() -> Raw:
    """Age, sex, body mass and blood measures; the target is the progress of the disease after a year."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)
    columns = {name: bunch.data[:, i] for i, name in enumerate(bunch.feature_names)}
    return Raw(bunch.data, bunch.target, columns=columns, standardised=tuple(range(10)))
