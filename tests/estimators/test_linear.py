"""The linear estimators: they find scikit-learn's minimum without noise, and keep their promise with it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from tacit.errors import DataError, RequestError
from tacit.privacy import Guarantee
from tacit.sklearn import FederatedEstimator, FederatedLogisticRegression, FederatedRidge
from tacit.sklearn.requests import default_delta

Array = np.ndarray[Any, Any]


def blobs(records: int = 300, classes: int = 2, features: int = 4, seed: int = 0) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, records)
    centres = generator.uniform(-1, 1, (classes, features))
    return np.clip(centres[y] + generator.normal(0, 0.4, (records, features)), -1, 1), y


def line(records: int = 300, seed: int = 0) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    X = generator.uniform(-1, 1, (records, 3))
    return X, X @ np.array([0.5, -0.3, 0.1]) + 0.2 + generator.normal(0, 0.05, records)


def with_ones(X: Array) -> Array:
    return np.hstack([X, np.ones((len(X), 1))])


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("sizes", ["equal", "unequal"])
def test_without_noise_it_finds_the_minimum_of_logistic_regression(classes: int, sizes: str) -> None:
    X, y = blobs(classes=classes)
    clients = np.arange(300) % 3 if sizes == "equal" else np.repeat([0, 1, 2], [20, 80, 200])
    alpha = 0.05
    ours = FederatedLogisticRegression(privacy="none", alpha=alpha, rounds=200).fit(X, y, clients=clients)
    # Ours penalises the intercept too, as scikit-learn does with a column of ones.
    theirs = LogisticRegression(C=1 / (alpha * len(y)), fit_intercept=False, tol=1e-8).fit(with_ones(X), y)
    together = np.hstack([ours.coef_, ours.intercept_[:, None]])
    assert np.allclose(together, theirs.coef_, atol=2e-3)
    assert np.allclose(ours.predict_proba(X), theirs.predict_proba(with_ones(X)), atol=2e-3)
    assert np.allclose(ours.decision_function(X), theirs.decision_function(with_ones(X)), atol=5e-3)
    assert ours.guarantee_ is None


def test_without_noise_it_finds_the_minimum_of_ridge_regression() -> None:
    X, y = line()
    ours = FederatedRidge(privacy="none", alpha=0.1, rounds=200).fit(X, y, clients=np.arange(300) % 7)
    theirs = Ridge(alpha=0.1 * len(y), fit_intercept=False).fit(with_ones(X), y)
    assert np.allclose([*ours.coef_, ours.intercept_], theirs.coef_, atol=2e-3)
    assert ours.score(X, y) == pytest.approx(theirs.score(with_ones(X), y), abs=2e-3)


def test_equal_weights_give_a_small_client_more_say() -> None:
    X, y = line()
    clients = np.repeat([0, 1], [20, 280])
    apart = np.where(clients == 0, y + 1, y)
    pooled = FederatedRidge(privacy="none").fit(X, apart, clients=clients)
    equal = FederatedRidge(privacy="none", weights="equal").fit(X, apart, clients=clients)
    assert equal.intercept_ > pooled.intercept_ + 0.3


def test_without_intercept() -> None:
    X, y = line()
    assert FederatedRidge(fit_intercept=False, rounds=2, random_state=0).fit(X, y).intercept_ == 0
    X, y = blobs(classes=3)
    model = FederatedLogisticRegression(fit_intercept=False, rounds=2, random_state=0).fit(X, y)
    assert model.coef_.shape == (3, 4)
    assert not model.intercept_.any()


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_the_promise_is_at_most_what_was_asked(epsilon: float) -> None:
    X, y = blobs()
    model = FederatedLogisticRegression(epsilon, random_state=0, rounds=20).fit(X, y, clients=np.arange(300) % 3)
    assert isinstance(model.guarantee_, Guarantee)
    assert 0.97 * epsilon < model.guarantee_.epsilon <= epsilon
    assert model.guarantee_.delta == 1e-5
    assert "which class labels occur" in model.guarantee_.public
    assert model.n_iter_ == model.history_["round"].iloc[-1]
    assert model.history_["epsilon"].iloc[-1] == pytest.approx(model.guarantee_.epsilon)


def test_delta_shrinks_with_the_largest_client() -> None:
    assert default_delta(None, [10, 100]) == 1e-5
    assert default_delta(None, [10, 1000]) == 1e-6
    assert default_delta(1e-3, [10, 1000]) == 1e-3


def test_less_epsilon_means_more_noise() -> None:
    X, y = blobs()
    stds = [
        float(FederatedRidge(e, rounds=2, random_state=0).fit(X, y).run_.calibration.noise_stds[0])
        for e in (0.5, 1.0, 8.0)
    ]
    assert stds[0] > stds[1] > stds[2] > 0


def test_every_client_can_have_a_budget_of_its_own() -> None:
    X, y = blobs()
    clients = np.repeat(["east", "north", "west"], [50, 100, 150])
    asked = {"north": 0.5, "east": 2.0, "west": 8.0, "closed": 1.0}
    model = FederatedLogisticRegression(asked, random_state=0, rounds=10).fit(X, y, clients=clients)
    assert model.clients_.tolist() == ["east", "north", "west"]
    assert model.run_.federation.names == ("east", "north", "west")
    for client, kept in zip(model.clients_, model.guarantee_.epsilons, strict=True):
        assert 0.97 * asked[client] < kept <= asked[client]
    with pytest.raises(RequestError, match=r"epsilon has no value for clients \['west'\]"):
        FederatedLogisticRegression({"north": 1.0, "east": 1.0}).fit(X, y, clients=clients)


def test_numbers_name_clients_too() -> None:
    X, y = line()
    model = FederatedRidge({3: 1.0, 7: 2.0}, random_state=0, rounds=5).fit(X, y, clients=np.repeat([7, 3], 150))
    assert model.clients_.tolist() == [3, 7]
    assert model.guarantee_.epsilons[0] <= 1.0 < model.guarantee_.epsilons[1] <= 2.0


def test_without_clients_there_is_one_silo() -> None:
    X, y = line()
    model = FederatedRidge(random_state=0, rounds=5).fit(X, y)
    assert model.run_.federation.clients == 1
    assert model.clients_.tolist() == ["all records"]


def test_the_same_number_gives_the_same_model_and_none_fresh_noise_of_the_operating_system() -> None:
    X, y = blobs()

    def fitted(random_state: Any) -> FederatedLogisticRegression:
        return FederatedLogisticRegression(random_state=random_state, rounds=5).fit(X, y)

    fit = [fitted(3), fitted(3)]
    assert np.array_equal(fit[0].coef_, fit[1].coef_)
    state = [fitted(np.random.RandomState(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(state[0].coef_, state[1].coef_)
    assert not np.array_equal(state[0].coef_, state[2].coef_)
    fresh = [fitted(None), fitted(None)]
    assert not np.array_equal(fresh[0].coef_, fresh[1].coef_)
    assert fresh[0].run_.algorithm.work.noise.name == "lattice"
    assert fresh[0].guarantee_.epsilon <= 1.0
    assert fit[0].run_.algorithm.work.noise.name == "gaussian"


def test_with_a_promise_it_is_what_tacit_run_would_train() -> None:
    X, y = blobs()
    clients = np.arange(300) % 3
    ours = FederatedLogisticRegression(2, alpha=1e-3, random_state=0, rounds=20).fit(X, y, clients=clients).run_
    settings = {"model.ridge": 1e-3, "model.intercept": True, "rounds": 20}
    same = FederatedEstimator(epsilon=2, settings=settings, random_state=0).fit(X, y, clients=clients).run_
    assert ours.algorithm == same.algorithm
    assert (ours.parameters == same.parameters).all()


def test_no_record_decides_the_step() -> None:
    X, y = line()
    runs = [FederatedRidge(random_state=0, rounds=5).fit(factor * X, y).run_ for factor in (1, 100)]
    assert runs[0].algorithm == runs[1].algorithm
    assert (runs[0].calibration.noise_stds == runs[1].calibration.noise_stds).all()


def test_frames_words_and_series() -> None:
    X, y = blobs()
    frame = pd.DataFrame(X, columns=["age", "weight", "height", "dose"])
    words = pd.Series(np.where(y == 1, "well", "ill"))
    clients = pd.Series(np.where(np.arange(300) % 2 == 0, "a", "b"))
    model = FederatedLogisticRegression(8, random_state=0).fit(frame, words, clients=clients)
    assert model.feature_names_in_.tolist() == ["age", "weight", "height", "dose"]
    assert model.n_features_in_ == 4
    assert model.classes_.tolist() == ["ill", "well"]
    assert set(model.predict(frame)) <= {"ill", "well"}
    assert model.score(frame, words) > 0.8
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"age": "years"}))


def test_a_pickle_holds_no_records() -> None:
    X, y = blobs()
    model = FederatedLogisticRegression(random_state=0, rounds=5).fit(X, y)
    back = pickle.loads(pickle.dumps(model))
    assert np.array_equal(back.predict(X), model.predict(X))
    assert back.guarantee_ == model.guarantee_
    assert not hasattr(back, "run_")
    assert not hasattr(back, "history_")
    assert hasattr(model, "run_")


def test_grid_search_and_pipeline_route_the_clients() -> None:
    X, y = blobs()
    clients = np.arange(300) % 3
    with config_context(enable_metadata_routing=True):
        model = FederatedLogisticRegression(8, random_state=0, rounds=10, feature_norm=1.0)
        pipeline = make_pipeline(Normalizer(), model.set_fit_request(clients=True))
        search = GridSearchCV(pipeline, {"federatedlogisticregression__clip_norm": [0.3, 1.0]}, cv=2)
        search.fit(X, y, clients=clients)
    best = search.best_estimator_[-1]
    assert best.clients_.tolist() == [0, 1, 2]
    assert best.guarantee_.epsilon <= 8
    assert search.best_score_ > 0.6


def test_targets_are_scaled_by_what_is_public_about_them() -> None:
    X, y = line(records=2000)
    scaled = TransformedTargetRegressor(
        FederatedRidge(4, random_state=0), func=lambda t: t / 1000, inverse_func=lambda t: t * 1000
    )
    assert scaled.fit(X, 1000 * y, clients=np.arange(2000) % 4).score(X, 1000 * y) > 0.8


def test_parameters_can_be_read_set_and_cloned() -> None:
    model = FederatedRidge(2.0, alpha=0.1, weights="equal")
    again = clone(model.set_params(rounds=7))
    assert again.get_params() == model.get_params()
    assert again.get_params()["rounds"] == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": None}, "to turn privacy off, set privacy='none'"),
        ({"epsilon": 0}, "epsilon must be a finite number above 0"),
        ({"epsilon": "much"}, "epsilon must be a finite number above 0"),
        ({"epsilon": {"all records": -1}}, r"epsilon\['all records'\] must be a finite number above 0"),
        ({"delta": 1.5}, "delta"),
        ({"privacy": "None"}, "unknown privacy 'None'; did you mean 'none'"),
        ({"privacy": "client"}, "unknown privacy 'client'"),
        ({"alpha": -1.0}, "ridge must be a finite number above 0"),
        ({"clip_norm": 0.0}, "clip_norm must be a finite number above 0"),
        ({"feature_norm": -1.0}, "feature_norm must be a finite number above 0"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"weights": "size"}, "weights must be"),
        ({"weights": "size", "privacy": "none", "epsilon": None}, "weights must be"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    X, y = line(30)
    with pytest.raises(RequestError, match=message):
        FederatedRidge(**settings).fit(X, y)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([1, 2], "clients must be 30 labels, one for each record"),
        ([["a"]] * 30, "clients must be 30 labels"),
        ([None, *["a"] * 29], "the client of record 0 is missing"),
        ([*["a"] * 29, 3.0], "decimal numbers and words are mixed"),
        (np.array([*["a"] * 29, 3], dtype=object), "whole numbers and words are mixed"),
        (np.array([{"a": 1}] * 30, dtype=object), "of one sortable kind"),
    ],
)
def test_clients_must_be_labels(clients: Any, message: str) -> None:
    X, y = line(30)
    with pytest.raises(DataError, match=message):
        FederatedRidge().fit(X, y, clients=clients)


def test_sparse_records_one_class_and_weights_of_samples_are_refused() -> None:
    X, y = blobs(30)
    with pytest.raises(TypeError, match="dense data is required"):
        FederatedLogisticRegression().fit(csr_array(X), y)
    with pytest.raises(DataError, match="at least two classes"):
        FederatedLogisticRegression().fit(X, np.zeros(30))
    with pytest.raises(TypeError, match="sample_weight"):
        FederatedLogisticRegression().fit(X, y, sample_weight=np.ones(30))
    with pytest.raises(ValueError, match="Unknown label type"):
        FederatedLogisticRegression().fit(X, X[:, 0])
