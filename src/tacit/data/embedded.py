"""The small data sets that come with scikit-learn and need no download."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

from tacit.data.raw import Raw


def read_digits() -> Raw:
    """8 x 8 images of handwritten digits, with 17 shades of grey."""
    bunch = load_digits()
    return Raw(bunch.data, bunch.target.astype(np.int64), divisor=16.0)


def read_breast_cancer() -> Raw:
    """Measures of cell nuclei; the tumour is malignant (0) or benign (1)."""
    bunch = load_breast_cancer()
    return Raw(bunch.data, bunch.target.astype(np.int64), standardised=tuple(range(30)))


def read_diabetes() -> Raw:
    """Age, sex, body mass and blood measures; the target is the progress of the disease after a year."""
    bunch = load_diabetes(scaled=False)
    columns = {name: bunch.data[:, i] for i, name in enumerate(bunch.feature_names)}
    return Raw(bunch.data, bunch.target, columns=columns, standardised=tuple(range(10)))
