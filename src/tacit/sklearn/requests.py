"""Converts scikit-learn's arguments to tacit's: who holds which record, which promise, which randomness."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.utils import check_random_state

from tacit.data.encode import as_labels
from tacit.data.one_kind import refuse_gaps
from tacit.data.schema import Schema
from tacit.data.schema.records import Learn, TableSource
from tacit.data.schema.records import federate as federate_tables
from tacit.errors import DataError, RequestError, positive
from tacit.federation import Federation
from tacit.privacy.promises.terms import CLASS_LABELS

AnyArray = npt.NDArray[Any]

ONE_SILO = "all records"
"""The name of the only client if no clients are given."""

LARGEST_DELTA = 1e-5

CLIENT = "client of the record"
"""The name of the client column, if clients are given beside a table."""


def group(clients: Any, records: int) -> tuple[AnyArray, AnyArray]:
    """The sorted labels of the clients, and the position of every record's client among them."""
    if clients is None:
        return np.array([ONE_SILO]), np.zeros(records, dtype=np.int64)
    labels = as_labels(clients, "clients")
    if labels.shape != (records,):
        raise DataError(f"clients must be {records} labels, one for each record, not of shape {labels.shape}")
    refuse_gaps(labels, "client")
    try:
        found, positions = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise DataError(f"clients must be labels of one sortable kind: {error}") from error
    return found, positions


def federate(
    X: AnyArray, y: AnyArray, labels: AnyArray, positions: AnyArray, *, classes: int | None
) -> Federation:
    """The records of every client; `y` holds class numbers if there are `classes`."""
    federation = Federation.from_arrays(
        X, y, positions, classes=classes, task="regression" if classes is None else "classification"
    )
    peeks = () if classes is None else (CLASS_LABELS,)
    return dataclasses.replace(federation, names=tuple(map(str, labels)), peeks=peeks)


def described(schema: Schema | Path | str) -> Schema:
    """The schema, read if it is a path; what it took from records must be confirmed."""
    described = schema if isinstance(schema, Schema) else Schema.read(schema)
    described.check_confirmed(public_schema=False)
    return described


def federate_table(X: Any, y: Any, clients: Any, schema: Schema, learn: Learn) -> Federation:
    """The records of a frame that its schema describes; nothing is held back. `learn` finds open ranges."""
    if not isinstance(X, pd.DataFrame):
        raise DataError("with a schema, X must be a pandas frame with the columns that it describes")
    frame = X.assign(**{schema.target.column: y})
    schema = dataclasses.replace(schema, test_share=0.0)
    if clients is not None:
        labels, positions = group(clients, len(X))
        frame = frame.assign(**{CLIENT: labels[positions]})
        schema = dataclasses.replace(schema, client=CLIENT)
    alone = ONE_SILO if schema.client is None else None
    return federate_tables([TableSource(frame, "X", alone)], schema, learn=learn)


def classes_as(names: Sequence[str], y: Any) -> AnyArray:
    """The classes of a schema, as numbers if `y` holds numbers; their type does not depend on a single record."""
    if not any(isinstance(one, str) for one in pd.unique(pd.Series(np.asarray(y, dtype=object)).dropna())):
        for kind in (np.int64, np.float64):
            with contextlib.suppress(ValueError):
                return np.array(names).astype(kind)
    return np.array(names)


def budgets(epsilon: float | Mapping[Any, float] | None, labels: AnyArray) -> float | list[float]:
    """One epsilon for all clients, or one per client; a mapping may name clients that hold no records."""
    if epsilon is None:
        raise RequestError("epsilon must be a number above 0, not None; to turn privacy off, set privacy='none'")
    if not isinstance(epsilon, Mapping):
        return float(positive("epsilon", epsilon))
    missing = [label for label in labels.tolist() if label not in epsilon]
    if missing:
        raise RequestError(f"epsilon has no value for clients {missing}: name every client, or give one number")
    return [float(positive(f"epsilon[{label!r}]", epsilon[label])) for label in labels.tolist()]


def default_delta(delta: float | None, sizes: Sequence[int]) -> float:
    """The requested delta; by default 1e-5, or 1/n^2 of the largest client if that is smaller.

    `sizes` are public numbers of what is protected: of each client's records, or of the clients.
    """
    return min(LARGEST_DELTA, 1 / max(sizes) ** 2) if delta is None else delta


def seed_and_noise(random_state: int | np.random.RandomState | None, private: bool) -> tuple[int, str]:
    """The seed and the kind of noise: from a seed if one is given, else from the operating system's entropy."""
    if random_state is None:
        return secrets.randbits(64), "lattice" if private else "gaussian"
    if not isinstance(random_state, np.random.RandomState) and isinstance(random_state, numbers.Integral):
        return int(random_state), "gaussian"
    return int(check_random_state(random_state).randint(2**31)), "gaussian"
