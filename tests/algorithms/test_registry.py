"""The named algorithms are the compositions that the paper says."""

from __future__ import annotations

import itertools

import pytest

import tacit
from tacit.algorithms.registry import ALGORITHMS, algorithm_entry, build_algorithm
from tacit.algorithms.shuffled import WithPenalty
from tacit.algorithms.shuffler import Shuffler
from tacit.algorithms.trust import Aggregator, Nobody
from tacit.client.binomial_gradient import BinomialGradient
from tacit.client.bounded_update import BoundedUpdate
from tacit.client.bounds import ClipNorm, Normalise, Unbounded
from tacit.client.coin_gradient import CoinGradient
from tacit.client.estimators import Minibatch, Saga, Svrg
from tacit.client.local_steps import NoisyLocalSteps
from tacit.client.sampling import Full, Poisson
from tacit.client.sparse_steps import SparseLocalSteps
from tacit.client.work import PrivateGradient
from tacit.compress import Direct, Identity, RandK, Shifted
from tacit.compress.grid import WholeSteps
from tacit.errors import RequestError
from tacit.models import logistic_regression
from tacit.noise.randomness import Randomness
from tacit.schedules import Exponential
from tacit.server.accelerated import Accelerated, Stage
from tacit.server.adaptive import Adaptive
from tacit.server.participation import PoissonClients
from tacit.server.projection import Ball
from tacit.server.update import Averaged, Descent, parse_output

SETTINGS = {
    "bound": tacit.ClipNorm(1.0),
    "sampling": Poisson(0.1),
    "compressor": RandK(fraction=0.2),
    "step": 0.1,
    "snapshot_probability": 0.1,
    "projection": Ball(2.0),
    "growth": 1.1,
    "stages": (Stage(3, 2.0),),
    "strong_convexity": 0.1,
    "local_steps": 4,
    "local_step": 0.2,
    "clip_norm": 3.0,
    "schedule": Exponential(0.99),
    "momentum": 0.8,
    "output": parse_output("average", 3, Randomness(0)),
    "trust": Aggregator(2.0),
    "shuffler": Shuffler(4, 20),
    "participation": PoissonClients(2.0),
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


@pytest.mark.parametrize(
    ("name", "server"),
    [
        ("noisy-mb-sgd", Averaged(Descent(0.1, Ball(2.0)), 1.1)),
        ("accelerated-mb-sgd", Accelerated((Stage(3, 2.0),), 0.1, Ball(2.0))),
        ("noisy-local-sgd", Descent(1.0)),
        ("mb-sgd", Averaged(Descent(0.1, Ball(2.0)), 1.1)),
        ("accelerated", Accelerated((Stage(3, 2.0),), 0.1, Ball(2.0))),
        ("local-sgd", Descent(1.0)),
    ],
)
def test_isrl_compositions(name: str, server: object) -> None:
    algorithm = build_algorithm(name, logistic_regression(features=5), SETTINGS)
    assert algorithm.name == name
    assert algorithm.server == server
    assert algorithm.uplink == Direct(Identity())
    assert isinstance(algorithm.work, NoisyLocalSteps if "local" in name else PrivateGradient)
    assert algorithm.work.sampling == Poisson(0.1)
    assert algorithm.work.bound == (ClipNorm(1.0) if algorithm_entry(name).private else Unbounded())


@pytest.mark.parametrize(
    ("name", "bound"),
    [("fedavg", Unbounded()), ("dp-fedavg", ClipNorm(3.0)), ("dp-normfedavg", Normalise(3.0))],
)
def test_fedavg_compositions(name: str, bound: object) -> None:
    algorithm = build_algorithm(name, logistic_regression(features=5), SETTINGS)
    work = algorithm.work
    assert isinstance(work, BoundedUpdate)
    assert (work.bound, work.steps, work.step_size, work.schedule) == (bound, 4, 0.2, Exponential(0.99))
    assert algorithm.server == Averaged(Descent(0.1, schedule=Exponential(0.99), momentum=0.8))
    assert algorithm.uplink == Direct(Identity())
    assert algorithm.trust == (Aggregator(2.0) if algorithm_entry(name).private else Nobody())


@pytest.mark.parametrize(
    ("name", "uplink", "server"),
    [
        ("fed-spa", Direct(RandK(fraction=0.2)), Adaptive(0.1, schedule=Exponential(0.99))),
        ("dp-fed", Direct(Identity()), Descent(0.1)),
        ("cpsgd", Direct(WholeSteps(16)), Descent(0.1, schedule=Exponential(0.99))),
    ],
)
def test_fed_spa_compositions(name: str, uplink: object, server: object) -> None:
    algorithm = build_algorithm(name, logistic_regression(features=5), SETTINGS)
    assert (algorithm.name, algorithm.uplink, algorithm.server) == (name, uplink, server)
    assert isinstance(algorithm.work, BinomialGradient if name == "cpsgd" else SparseLocalSteps)
    assert algorithm.trust == Nobody()


@pytest.mark.parametrize(
    ("name", "work"), [("shuffled-mb-sgd", PrivateGradient), ("shuffled-accelerated", CoinGradient)]
)
def test_shuffled_compositions(name: str, work: type) -> None:
    model = logistic_regression(features=5)
    algorithm = build_algorithm(name, model, SETTINGS)
    assert algorithm.name == name
    assert isinstance(algorithm.work, work)
    assert algorithm.work.sampling == Poisson(0.1)
    assert algorithm.trust == Shuffler(4, 20)
    accelerated = WithPenalty(Accelerated((Stage(3, 2.0),), 0.1, Ball(2.0)), model)
    assert algorithm.server == (accelerated if work is CoinGradient else Averaged(Descent(0.1, Ball(2.0)), 1.1))


def test_every_registered_name_is_tested_above() -> None:
    tests = (
        test_compositions,
        test_isrl_compositions,
        test_shuffled_compositions,
        test_fedavg_compositions,
        test_fed_spa_compositions,
    )
    cases = [test.pytestmark[0].args[1] for test in tests]  # type: ignore[attr-defined]
    assert {case[0] for case in itertools.chain(*cases)} == set(ALGORITHMS)


def test_unknown_names_list_the_close_ones() -> None:
    with pytest.raises(RequestError, match=r"unknown algorithm 'soteria-sgd'; did you mean 'soteriafl-sgd'"):
        algorithm_entry("soteria-sgd")
