"""Data that no default was chosen on, for `benchmarks/defaults.py`: a judge brings data of their own.

wine, diabetes   from scikit-learn, standardised
forest           made up to resemble cover types: 20,000 records, 10 numbers, 44 indicators, 7 unequal classes
rare             made up: two classes, 5% in one of them, 4,000 records, 12 features
tails            made up: 20 features with heavy tails (Student's t, 2 degrees), 3 classes, 4,000 records
sparse           made up: 500 columns of 0 and 1, each one in 3% of 6,000 records, two classes
fifteen          made up: 15 classes around a centre each, 30 features, 6,000 records
outliers         made up: a number with heavy-tailed noise, 10 features, 3,000 records
friedman         made up: Friedman's function of 10 numbers, times 1,000, 2,000 records
costs            made up: 8 indicators of risks that multiply a cost, which has a long tail, 1,500 records
FILE.csv         any table: its last column is the target; texts become indicators, numbers are scaled to [0, 1]
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes, load_wine

from tacit.federation import Federation

Arrays = tuple[NDArray[np.float64], NDArray[np.generic]]


def is_other(name: str) -> bool:
    """Whether the data are made or read here, not by tacit."""
    return name.endswith(".csv") or name in ("wine", "diabetes", "forest") or name in MADE_UP


def target_bound(name: str) -> float | None:
    """A round number that no target of a regression exceeds, as an owner of the data would know it."""
    targets = arrays(name)[1]
    if targets.dtype.kind != "f":
        return None
    most = float(np.abs(targets).max())
    unit = 10 ** math.floor(math.log10(most))
    return math.ceil(most / unit) * unit


def other_records(name: str, clients: int, seed: int) -> Federation:
    """A fifth of the records for tests, the others dealt evenly; both follow from the seed."""
    features, targets = arrays(name)
    order = np.random.default_rng(seed).permutation(len(targets))
    test, train = np.split(order, [len(order) // 5])
    if not name.endswith(".csv") and name not in MADE_UP:
        features = (features - features[train].mean(0)) / np.maximum(features[train].std(0), 1e-9)
    classes = None if targets.dtype.kind == "f" else int(targets.max()) + 1
    inputs = torch.from_numpy(features.astype(np.float32))
    outputs = torch.from_numpy(targets.astype(np.float32 if classes is None else np.int64))
    sizes = torch.tensor([len(part) for part in np.array_split(train, clients)])
    return Federation(
        features=inputs[train],
        targets=outputs[train],
        sizes=sizes,
        ids=torch.arange(clients),
        test_features=inputs[test],
        test_targets=outputs[test],
        classes=classes,
        name=Path(name).stem,
    )


def arrays(name: str) -> Arrays:
    """Features and targets; whole numbers are classes."""
    if name == "wine":
        return load_wine(return_X_y=True)  # type: ignore[no-any-return]
    if name == "diabetes":
        return load_diabetes(return_X_y=True)  # type: ignore[no-any-return]
    if name in MADE_UP:
        return MADE_UP[name](np.random.default_rng(0))
    return _forest() if name == "forest" else _table(Path(name))


def _rare(rng: np.random.Generator) -> Arrays:
    features = rng.normal(size=(4_000, 12))
    scores = 1.5 * features @ rng.normal(size=12) + rng.logistic(size=4_000)
    return features, (scores > np.quantile(scores, 0.95)).astype(np.int64)


def _tails(rng: np.random.Generator) -> Arrays:
    features = rng.standard_t(2, size=(4_000, 20))
    scores = np.clip(features, -3, 3) @ rng.normal(size=(20, 3)) + rng.gumbel(size=(4_000, 3))
    return features, scores.argmax(1)


def _sparse(rng: np.random.Generator) -> Arrays:
    features = (rng.random((6_000, 500)) < 0.03).astype(float)
    scores = features @ rng.normal(size=500) + 0.5 * rng.logistic(size=6_000)
    return features, (scores > np.median(scores)).astype(np.int64)


def _fifteen(rng: np.random.Generator) -> Arrays:
    targets = rng.integers(15, size=6_000)
    return rng.normal(size=(15, 30))[targets] + 1.5 * rng.normal(size=(6_000, 30)), targets


def _outliers(rng: np.random.Generator) -> Arrays:
    features = rng.normal(size=(3_000, 10))
    return features, 10 * features @ rng.normal(size=10) + 20 * rng.standard_t(3, size=3_000)


def _friedman(rng: np.random.Generator) -> Arrays:
    x = rng.random((2_000, 10))
    means = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, 1_000 * (means + rng.normal(size=2_000))


def _costs(rng: np.random.Generator) -> Arrays:
    risks = (rng.random((1_500, 8)) < rng.uniform(0.1, 0.5, size=8)).astype(float)
    return risks, np.exp(7 + risks @ rng.uniform(0, 0.8, size=8) + 0.5 * rng.normal(size=1_500))


MADE_UP = {
    "rare": _rare,
    "tails": _tails,
    "sparse": _sparse,
    "fifteen": _fifteen,
    "outliers": _outliers,
    "friedman": _friedman,
    "costs": _costs,
}
"""Shapes that a judge may bring, as they are."""


def _forest(records: int = 20_000) -> Arrays:
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(records, 6))
    numbers = np.tanh(hidden @ rng.normal(size=(6, 10))) + 0.5 * rng.normal(size=(records, 10))
    kinds = [
        np.eye(size)[(hidden @ rng.normal(size=(6, size)) + rng.gumbel(size=(records, size))).argmax(1)]
        for size in (4, 40)
    ]
    scores = np.concatenate([hidden, hidden**2], axis=1) @ rng.normal(size=(12, 7)) + np.linspace(4, -4, 7)
    return np.concatenate([numbers, *kinds], axis=1), (scores + rng.gumbel(size=scores.shape)).argmax(1)


def _table(path: Path) -> Arrays:
    frame = pd.read_csv(path)
    target, inputs = frame.iloc[:, -1], pd.get_dummies(frame.iloc[:, :-1], dtype=float)
    scaled = (inputs - inputs.min()) / (inputs.max() - inputs.min()).replace(0, 1)
    numbers = target.dtype.kind in "if" and target.nunique() > 20
    values = target.to_numpy(float) if numbers else pd.factorize(target, sort=True)[0]
    return scaled.to_numpy(), values
