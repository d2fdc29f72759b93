"""Any algorithm and any model by name, as an estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import is_classifier, is_regressor
from sklearn.datasets import load_digits

from tacit.algorithms.registry import ALGORITHMS
from tacit.errors import RequestError
from tacit.sklearn import FederatedEstimator

Array = np.ndarray[Any, Any]


def digits(records: int = 300) -> tuple[Array, Array, Array]:
    X, y = load_digits(return_X_y=True)
    return X[:records] / 16, y[:records], np.arange(records) % 3


@pytest.mark.parametrize("algorithm", ["soteriafl-saga", "soteriafl-gd", "cdp-sgd", "accelerated-mb-sgd"])
def test_algorithms_by_name_keep_their_promise(algorithm: str) -> None:
    assert algorithm in ALGORITHMS
    X, y, clients = digits()
    model = FederatedEstimator(algorithm=algorithm, epsilon=2, settings={"rounds": 5}, random_state=0)
    model.fit(X, y, clients=clients)
    assert model.run_.algorithm.name == algorithm
    assert model.n_iter_ == 5
    assert model.guarantee_.epsilon <= 2


def test_settings_reach_the_recipe_and_the_model() -> None:
    X, y, clients = digits()
    settings = {
        "algorithm.sampling": "without-replacement",
        "algorithm.batch": 10,
        "rounds": 3,
        "algorithm.clip_norm": 0.5,
        "model.intercept": False,
        "weights": "records",
        "evaluate-every": 3,
    }
    run = FederatedEstimator(settings=settings, random_state=0).fit(X, y, clients=clients).run_
    assert run.algorithm.work.sampling.name == "without-replacement"
    assert run.algorithm.work.bound.clip_norm == 0.5
    assert run.algorithm.work.model.dim == 640
    assert run.federation.weights is not None
    assert len(run.history) == 2


def test_the_default_delta_of_a_promise_to_clients_does_not_tell_their_sizes() -> None:
    promises = set()
    for records in (400, 1700):
        X, y, _ = digits(records)
        model = FederatedEstimator(
            algorithm="dp-fedavg",
            privacy="client",
            settings={"rounds": 2, "algorithm.local_steps": 1},
            random_state=0,
        )
        # The last client holds whatever the others do not.
        model.fit(X, y, clients=np.minimum(np.arange(records) // 20, 9))
        promises.add((model.guarantee_.delta, model.guarantee_.sentence()))
    assert len(promises) == 1


def test_a_network_predicts_probabilities() -> None:
    X, y, clients = digits(900)
    settings = {
        "rounds": 100,
        "algorithm.step": 12.0,
        "algorithm.clip_norm": 5.0,
        "algorithm.sampling": "full",
        "model.hidden": 16,
        "evaluate_every": 100,
    }
    model = FederatedEstimator(model="network", privacy="none", settings=settings, random_state=0)
    model.fit(X, y, clients=clients)
    probabilities = model.predict_proba(X)
    assert np.allclose(probabilities.sum(1), 1)
    assert np.array_equal(model.classes_[probabilities.argmax(1)], model.predict(X))
    assert model.score(X, y) > 0.25


def test_a_support_vector_machine_has_no_probabilities() -> None:
    X, y, clients = digits()
    model = FederatedEstimator(model="svm", privacy="none", settings={"rounds": 50}, random_state=0)
    model.fit(X, np.where(y % 2 == 0, "even", "odd"), clients=clients)
    assert not hasattr(model, "predict_proba")
    assert model.score(X, np.where(y % 2 == 0, "even", "odd")) > 0.7


def test_every_client_can_have_a_budget_of_its_own() -> None:
    X, y, clients = digits()
    model = FederatedEstimator(epsilon={0: 0.5, 1: 1.0, 2: 2.0}, settings={"rounds": 3}, random_state=0)
    kept = model.fit(X, y, clients=clients).guarantee_.epsilons
    assert kept[0] <= 0.5 < kept[1] <= 1.0 < kept[2] <= 2.0


def test_the_task_decides_what_it_is() -> None:
    assert is_classifier(FederatedEstimator())
    assert is_regressor(FederatedEstimator("regression"))
    assert not hasattr(FederatedEstimator("regression"), "predict_proba")
    X, y, _ = digits(60)
    model = FederatedEstimator("regression", privacy="none", settings={"rounds": 3}, random_state=0).fit(X, y)
    assert model.run_.algorithm.work.model.metric_name == "rmse"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "ranking"}, "unknown task 'ranking'"),
        ({"model": "least-squares"}, "is for regression"),
        ({"algorithm": "sgd"}, "unknown algorithm 'sgd'"),
        ({"epsilon": None}, "to turn privacy off, set privacy='none'"),
        ({"privacy": "client"}, "protects every record"),
        ({"algorithm": "mb-sgd"}, "promises nothing"),
        ({"settings": {"epsilon": 8.0}}, "settings holds 'epsilon', which is an argument"),
        ({"settings": {"noise": "gaussian"}}, "settings holds 'noise'"),
        ({"settings": {"data.unit_norm": True}}, "settings holds 'data.unit_norm'"),
        ({"settings": {"speed": 8.0}}, "unknown setting 'speed'"),
        ({"settings": {"algorithm.compressor": "identity"}}, "takes no compressor"),
        ({"settings": {"rounds": 0}}, "rounds must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    X, y, clients = digits(60)
    with pytest.raises(RequestError, match=message):
        FederatedEstimator(**arguments).fit(X, y, clients=clients)
