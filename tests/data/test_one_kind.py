"""No label and no client's name decides the type of all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tacit.errors import DataError
from tacit.federation import Federation
from tacit.sklearn import FederatedLogisticRegression

ROWS = np.arange(24.0).reshape(12, 2)
CLIENTS = [1, 2] * 6
MIXED = [
    ([0, 1], "1", "whole numbers and words"),
    ([0, 1], True, "truth values and whole numbers"),
    ([0, 1], 1.0, "decimal numbers and whole numbers"),
    ([False, True], 1, "truth values and whole numbers"),
    ([False, True], "True", "truth values and words"),
    (["0", "1"], 1.0, "decimal numbers and words"),
]
"""Labels, another one, and what both are."""


def beside(labels: list[Any], other: Any) -> list[Any]:
    """Twelve labels, of which one is another."""
    found = labels * 6
    found[5] = other
    return found


def as_objects(values: list[Any]) -> Any:
    return np.array(values, dtype=object)


def as_series(values: list[Any]) -> Any:
    return pd.Series(values, dtype=object)


@pytest.mark.parametrize("given", [list, as_objects, as_series])
@pytest.mark.parametrize(("labels", "other", "said"), MIXED)
def test_labels_and_clients_of_several_kinds_are_refused(
    labels: list[Any], other: Any, said: str, given: Any
) -> None:
    mixed = given(beside(labels, other))
    with pytest.raises(DataError, match=f"{said} are mixed"):
        Federation.from_arrays(ROWS, mixed, CLIENTS)
    with pytest.raises(DataError, match=f"{said} are mixed"):
        Federation.from_arrays(ROWS, [0, 1] * 6, mixed)
    with pytest.raises(DataError, match=f"{said} are mixed"):
        Federation.from_clients([(ROWS, given(labels * 6)), (ROWS, given([other] * 12))])
    estimator = FederatedLogisticRegression(epsilon=8, random_state=0)
    with pytest.raises(DataError, match=f"{said} are mixed"):
        estimator.fit(ROWS, mixed)
    with pytest.raises(DataError, match=f"{said} are mixed"):
        estimator.fit(ROWS, [0, 1] * 6, clients=mixed)
    assert not hasattr(estimator, "run_")


def test_a_gap_beside_words_is_a_gap_and_no_word() -> None:
    gap = beside(["a", "b"], float("nan"))
    for call in (
        lambda: Federation.from_arrays(ROWS, gap, CLIENTS),
        lambda: Federation.from_arrays(ROWS, [0, 1] * 6, gap),
        lambda: FederatedLogisticRegression(random_state=0).fit(ROWS, gap),
        lambda: FederatedLogisticRegression(random_state=0).fit(ROWS, [0, 1] * 6, clients=gap),
    ):
        with pytest.raises(DataError, match="of record 5 is missing"):
            call()


def test_numbers_are_numbers_where_the_task_is_said() -> None:
    mixed = beside([0, 1], 1.0)
    found = Federation.from_arrays(ROWS, mixed, CLIENTS, task="regression").targets
    assert found.tolist() == Federation.from_arrays(ROWS, [0.0, 1.0] * 6, CLIENTS).targets.tolist()
    assert Federation.from_arrays(ROWS, mixed, CLIENTS, classes=2).targets.dtype == torch.int64


@pytest.mark.parametrize(("classes", "public"), [(None, True), (3, True), (("a", "b", "c"), False)])
def test_words_are_numbered_by_which_of_them_occur_unless_they_are_listed(classes: Any, public: bool) -> None:
    """The label of all others follows from whether one record is a "b": a promise must say so."""
    parts = [
        Federation.from_arrays(ROWS, labels, CLIENTS, classes=classes)
        for labels in (["a", "c"] * 6, beside(["a", "c"], "b"))
    ]
    assert all((part.peeks == ("which class labels occur",)) == public for part in parts)
    same = parts[0].targets[0] == parts[1].targets[0] and parts[0].targets[-1] == parts[1].targets[-1]
    assert bool(same) != public
