"""scikit-learn's own checks. No check is expected to fail: `poor_score` skips only what asks private noise on a
handful of records for accuracy, and the same estimators without noise are asked for that as well."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from tacit.sklearn import FederatedEstimator, FederatedLogisticRegression, FederatedRidge
from tacit.sklearn.federated import Federated

FEW = {"rounds": 2, "evaluate_every": 2}
QUIET = {
    "algorithm.sampling": "full",
    "rounds": 12,
    "evaluate_every": 12,
    "algorithm.clip_norm": 10.0,
    "algorithm.step": 0.2,
}

Check = Callable[[Federated], None]


@parametrize_with_checks(
    [
        FederatedLogisticRegression(rounds=2),
        FederatedRidge(rounds=2),
        FederatedEstimator(settings=FEW),
        FederatedEstimator("regression", settings=FEW),
        FederatedLogisticRegression(privacy="none", rounds=12),
        FederatedRidge(privacy="none", rounds=12),
        FederatedEstimator(algorithm="accelerated-mb-sgd", privacy="none", settings=QUIET),
        FederatedEstimator("regression", algorithm="accelerated-mb-sgd", privacy="none", settings=QUIET),
    ]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learns_checks_pass(estimator: Federated, check: Check) -> None:
    check(estimator)


ODD_DATA = {
    "check_classifiers_one_label",
    "check_classifiers_one_label_sample_weights",
    "check_classifiers_train",
    "check_fit2d_1feature",
    "check_fit2d_1sample",
    "check_regressors_train",
}
"""What a run of full length could fail where a short one does not."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        (estimator, check)
        for default in (FederatedLogisticRegression(), FederatedRidge())  # train as FederatedEstimator() does
        for estimator, check in estimator_checks_generator(default)
        if check.func.__name__ in ODD_DATA and not check.keywords
    ],
)
def test_scikit_learns_checks_pass_with_every_default(estimator: Federated, check: Check) -> None:
    check(estimator)


def test_only_private_estimators_ask_to_be_let_off_accuracy() -> None:
    assert get_tags(FederatedLogisticRegression()).classifier_tags.poor_score
    assert not get_tags(FederatedLogisticRegression(privacy="none")).classifier_tags.poor_score
    assert get_tags(FederatedRidge()).regressor_tags.poor_score
    assert not get_tags(FederatedRidge(privacy="none")).regressor_tags.poor_score
    assert get_tags(FederatedEstimator()).classifier_tags.poor_score
    assert get_tags(FederatedEstimator("regression")).regressor_tags.poor_score
    assert not get_tags(FederatedEstimator(privacy="none")).classifier_tags.poor_score
