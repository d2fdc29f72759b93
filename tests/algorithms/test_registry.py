"""The named algorithms are the compositions that the paper says."""

from __future__ import annotations

import pytest

import tacit
from tacit.algorithms.registry import ALGORITHMS, algorithm_entry, build_algorithm
from tacit.client.estimators import Minibatch, Saga, Svrg
from tacit.client.sampling import Full, Poisson
from tacit.client.work import PrivateGradient
from tacit.compress import Direct, Identity, RandK, Shifted
from tacit.errors import RequestError
from tacit.models import logistic_regression

SETTINGS = {
    "bound": tacit.ClipNorm(1.0),
    "sampling": Poisson(0.1),
    "compressor": RandK(fraction=0.2),
    "step": 0.1,
    "snapshot_probability": 0.1,
}


@pytest.mark.parametrize(
    ("name", "estimator", "uplink"),
    [
        ("cdp-sgd", Minibatch(Poisson(0.1)), Direct(RandK(fraction=0.2))),
        ("soteriafl-gd", Minibatch(Full()), Shifted(RandK(fraction=0.2))),
        ("soteriafl-sgd", Minibatch(Poisson(0.1)), Shifted(RandK(fraction=0.2))),
        ("soteriafl-svrg", Svrg(Poisson(0.1), 0.1), Shifted(RandK(fraction=0.2))),
        ("soteriafl-saga", Saga(Poisson(0.1)), Shifted(RandK(fraction=0.2))),
        ("ldp-sgd", Minibatch(Poisson(0.1)), Direct(Identity())),
        ("ldp-svrg", Svrg(Poisson(0.1), 0.1), Direct(Identity())),
    ],
)
def test_compositions(name: str, estimator: object, uplink: object) -> None:
    algorithm = build_algorithm(name, logistic_regression(features=5), SETTINGS)
    assert algorithm.name == name
    assert isinstance(algorithm.work, PrivateGradient)
    assert algorithm.work.estimator == estimator
    assert algorithm.uplink == uplink


def test_every_registered_name_is_tested_above() -> None:
    marks = test_compositions.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in marks[0].args[1]} == set(ALGORITHMS)


def test_unknown_names_list_the_close_ones() -> None:
    with pytest.raises(RequestError, match=r"unknown algorithm 'soteria-sgd'; did you mean 'soteriafl-sgd'"):
        algorithm_entry("soteria-sgd")
