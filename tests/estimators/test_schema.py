"""Estimators on a pandas frame that a schema describes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from tacit.data.schema import Column, Predicted, Schema
from tacit.errors import DataError, RequestError
from tacit.sklearn import FederatedEstimator, FederatedLogisticRegression, FederatedRidge

COLUMNS = (
    Column("age", "number", range=(0, 100), missing="indicate"),
    Column("sex", "category", categories=("f", "m")),
)
ILL = Schema(Predicted("ill", "binary", classes=("0", "1")), COLUMNS)
COST = Schema(Predicted("cost", "regression", range=(0, 1000)), COLUMNS, client="site")


def table(rows: int = 900) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"sex": rng.choice(["f", "m"], rows), "age": rng.integers(10, 90, rows).astype(float)})
    frame["site"] = rng.choice(["x", "y"], rows)
    return frame


def test_classes_have_their_own_names_and_new_rows_may_have_gaps() -> None:
    X = table()
    y = (X["age"] + 20 * (X["sex"] == "m") > 60).astype(int)
    model = clone(FederatedLogisticRegression(epsilon=8, random_state=0, schema=ILL))
    model.fit(X[["age", "sex"]], y, clients=X["site"])
    assert model.score(X, y) > 0.8
    assert model.classes_.tolist() == [0, 1]
    assert model.clients_.tolist() == ["x", "y"]
    gaps = pd.DataFrame({"sex": ["?", "m"], "age": [np.nan, 20]})
    assert model.predict_proba(gaps).shape == (2, 2)
    assert "class labels" not in model.guarantee_.sentence(), "the schema names the classes"


def test_one_record_does_not_decide_the_type_of_the_classes() -> None:
    X = table(40)
    y: list[object] = [row % 2 for row in range(40)]
    model = FederatedLogisticRegression(epsilon=8, random_state=0, schema=ILL, rounds=1)
    for one in (0, 0.0):
        found = model.fit(X[["age", "sex"]], [one, *y[1:]], clients=X["site"]).classes_
        assert found.tolist() == [0, 1]
        assert found.dtype == np.int64
    with pytest.raises(DataError, match="y: whole numbers and words are mixed"):
        model.fit(X[["age", "sex"]], ["0", *y[1:]], clients=X["site"])
    assert model.fit(X[["age", "sex"]], [str(one) for one in y], clients=X["site"]).classes_.tolist() == [
        "0",
        "1",
    ]


@pytest.mark.parametrize("kind", ["ridge", "estimator"])
def test_numbers_in_the_targets_own_unit(kind: str) -> None:
    X = table()
    y = 200 + 5 * X["age"]
    if kind == "ridge":
        model = FederatedRidge(epsilon=8, random_state=0, schema=COST)
    else:
        model = FederatedEstimator("regression", epsilon=8, random_state=0, schema=COST, settings={"rounds": 50})
    assert model.fit(X, y).score(X, y) > 0.9
    assert model.clients_.tolist() == ["x", "y"]


def test_persons_and_refusals() -> None:
    X = table(300).assign(who=np.arange(300) // 2)
    y = (X["age"] > 50).astype(int)
    persons = Schema(ILL.target, COLUMNS, client="site", person="who", rows=2)
    model = FederatedLogisticRegression(epsilon=8, random_state=0, rounds=5, schema=persons).fit(X, y)
    assert "per person" in model.guarantee_.sentence()
    with pytest.raises(DataError, match="pandas frame"):
        FederatedLogisticRegression(schema=ILL).fit(np.zeros((4, 2)), [0, 1, 0, 1])
    with pytest.raises(RequestError, match="use another estimator"):
        FederatedRidge(schema=ILL).fit(X, y)
    with pytest.raises(DataError, match="column 'sex' holds 'd'"):
        FederatedLogisticRegression(schema=ILL).fit(X.assign(sex="d"), y)


OPEN = (Column("age", "number", within=(0, 1000), missing="indicate"), COLUMNS[1])


@pytest.mark.parametrize(("seed", "epsilon"), [(0, 8), (None, 80)])
def test_open_ranges_are_learned_and_charged(seed: int | None, epsilon: float) -> None:
    """With noise from the operating system, too: a fit prepares the records once. (There, with little noise.)"""
    X = table()
    y = 200 + 5 * X["age"]
    schema = Schema(Predicted("cost", "regression", within=(0, 5000)), OPEN, client="site")
    budgets = {"x": epsilon, "y": 2 * epsilon}
    model = FederatedRidge(epsilon=budgets, random_state=seed, rounds=10, schema=schema).fit(X, y)
    assert model.schema_.learned == ("cost", "age")
    assert model.schema_.target.range[1] < 2000
    assert model.score(X, y) > 0.7
    learned = model.run_.summary()["learned"]
    # Of the strictest budget, a fifth.
    assert learned["epsilon_alone"] == pytest.approx(0.2 * epsilon, rel=1e-2)
    assert model.guarantee_.epsilons[0] <= epsilon
    assert model.run_.federation.charged in model.guarantee_.events[0].events


def test_open_ranges_without_a_promise_and_where_they_are_refused() -> None:
    X, y = table(), table()["age"] > 50
    open = Schema(Predicted("ill", "binary", classes=("false", "true")), OPEN)
    free = FederatedLogisticRegression(privacy="none", rounds=5, schema=open).fit(X, y)
    assert free.schema_.columns[0].range == pytest.approx(np.quantile(X["age"], [0.02, 0.98]))
    with pytest.raises(RequestError, match="accounted per record"):
        FederatedEstimator(algorithm="dp-fedavg", privacy="client", random_state=0, schema=open).fit(X, y)


def test_another_fit_leaves_nothing_of_the_one_before() -> None:
    X = table(40)
    y = [row % 2 for row in range(40)]
    model = FederatedLogisticRegression(epsilon=8, random_state=0, schema=ILL, rounds=1)
    model.fit(X[["age", "sex"]], y, clients=X["site"])
    for wrong in (y[:9], [[one] for one in y], None):
        with pytest.raises(DataError, match="y must hold 40 values, one for each row of X"):
            model.fit(X[["age", "sex"]], wrong)
    model.set_params(schema=None).fit(X[["age"]], y)
    assert not hasattr(model, "schema_")
    assert model.classes_.tolist() == [0, 1]
