"""Splits records and prepares features.

`unit_norm` uses every record on its own, so it costs no privacy. `standardise` and `project` learn from the
records: a guarantee for a run on their output must name them, since no accountant charges for them.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.data.encode import Vector
from tacit.errors import RequestError


def split(targets: Vector, test_fraction: float, rng: np.random.Generator) -> tuple[Vector, Vector]:
    """Indices of training and test records: ceil(fraction * records) for the test, stratified by class.

    >>> train, test = split(np.array([0] * 80 + [1] * 20), 0.2, np.random.default_rng(0))
    >>> len(train), len(test), int((test >= 80).sum())
    (80, 20, 4)
    """
    if not 0 <= test_fraction < 1:
        raise RequestError(f"test_fraction must be in [0, 1), not {test_fraction!r}")
    records = len(targets)
    tests = math.ceil(test_fraction * records - 1e-9)
    if tests >= records:
        raise RequestError(f"test_fraction={test_fraction!r} leaves none of {records} records to train on")
    order = rng.permutation(records)
    if targets.dtype.kind != "f":
        order = order[np.argsort(targets[order], kind="stable")]
    # Every (records / tests)-th record in class order: no class is more than one record off its share.
    chosen = np.diff(np.arange(records + 1) * tests // records).astype(bool)
    return np.sort(order[~chosen]), np.sort(order[chosen])


def standardise(train: Vector, test: Vector, columns: tuple[int, ...]) -> tuple[Vector, Vector]:
    """Standardises these columns with the mean and standard deviation of the training records."""
    which = list(columns)
    mean = train[:, which].mean(axis=0, dtype=np.float64)
    std = train[:, which].std(axis=0, dtype=np.float64)
    std[std == 0] = 1.0
    prepared = []
    for features in (train, test):
        features = features.copy()
        features[:, which] = (features[:, which] - mean) / std
        prepared.append(features)
    return prepared[0], prepared[1]


def project(train: Vector, test: Vector, dim: int) -> tuple[Vector, Vector]:
    """The first `dim` principal components of the training records (PCA), centred at their mean.

    ISRL-DP (Lowy & Razaviyayn 2023), Appendix I.1, reduces MNIST to 50 components in this way. The sign of a
    component is chosen so that its largest entry is positive, because libraries return either sign.
    """
    if not 1 <= dim <= train.shape[1]:
        raise RequestError(f"pca must be 1 to {train.shape[1]}, the number of features, not {dim!r}")
    mean = train.mean(axis=0, dtype=np.float64)
    centred = train - mean
    _, vectors = np.linalg.eigh(centred.T @ centred)
    components = vectors[:, ::-1][:, :dim]
    components = components * np.sign(components[np.abs(components).argmax(axis=0), np.arange(dim)])
    return (centred @ components).astype(train.dtype), ((test - mean) @ components).astype(train.dtype)


def unit_norm(features: Vector) -> Vector:
    """Scales every record that is longer down to L2 norm 1.

    >>> unit_norm(np.array([[3.0, 4.0], [0.3, 0.4]])).tolist()
    [[0.6, 0.8], [0.3, 0.4]]
    """
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    scaled: Vector = features / np.maximum(norms, 1.0)
    return scaled
