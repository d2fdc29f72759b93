"""The named algorithms are the compositions that the paper says."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Literal

import pytest

import tacit
from tacit.algorithms.registry import ALGORITHMS, AlgorithmEntry, algorithm_entry, build_algorithm
from tacit.algorithms.settings import About, checked_settings, read_parts, settings_of, usual_settings
from tacit.algorithms.shuffled import WithPenalty
from tacit.algorithms.shuffler import Shuffler
from tacit.algorithms.trust import Aggregator, Nobody
from tacit.client.binomial_gradient import BinomialGradient
from tacit.client.bounded_update import BoundedUpdate
from tacit.client.bounds import ClipNorm, Normalise, Unbounded
from tacit.client.coin_gradient import CoinGradient
from tacit.client.controlled_steps import ControlledSteps
from tacit.client.estimators import Minibatch, Saga, Svrg
from tacit.client.local_steps import NoisyLocalSteps
from tacit.client.private_gradient import PrivateGradient
from tacit.client.sampling import Full, Poisson
from tacit.compress import ControlVariates, Direct, ErrorFeedback, Identity, RandK, Shifted
from tacit.compress.grid import WholeSteps
from tacit.errors import RequestError
from tacit.models import logistic_regression
from tacit.models.model import Model
from tacit.planning.shape import records_of_shape
from tacit.schedules import Exponential
from tacit.server.accelerated import Accelerated, Stage
from tacit.server.adaptive import Adaptive
from tacit.server.participation import Everyone, PoissonClients
from tacit.server.projection import Ball
from tacit.server.update import Averaged, Descent

SETTINGS = {
    "clip_norm": 3.0,
    "sampling": "poisson",
    "batch": 0.1,
    "compressor": "rand-k:0.2",
    "step": 0.1,
    "snapshot_probability": 0.1,
    "projection": "ball:2",
    "stages": [[3, 2.0]],
    "strong_convexity": 0.1,
    "local_steps": 4,
    "local_step": 0.2,
    "schedule": "exponential:0.99",
    "momentum": 0.8,
    "output": "average",
}
MODEL = logistic_regression(features=5)


def build(name: str) -> tacit.Algorithm:
    """The algorithm, of those of the settings that it takes."""
    coins = ALGORITHMS[name].client_coins
    shape = records_of_shape(clients=4, records=20, features=5, classes=2)
    about = About(shape, rounds=3, participation=PoissonClients(2.0) if coins else Everyone())
    own = {key: value for key, value in SETTINGS.items() if key in ALGORITHMS[name].settings}
    return build_algorithm(name, MODEL, own, about)


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
    algorithm = build(name)
    assert algorithm.name == name
    assert isinstance(algorithm.work, PrivateGradient)
    assert algorithm.work.estimator == estimator
    assert algorithm.uplink == uplink


@pytest.mark.parametrize(
    ("name", "server"),
    [
        ("noisy-mb-sgd", Averaged(Descent(0.1, Ball(2.0)), 1 / (1 - 0.1 * 0.1))),
        ("accelerated-mb-sgd", Accelerated((Stage(3, 2.0),), 0.1, Ball(2.0))),
        ("noisy-local-sgd", Descent(1.0)),
        ("mb-sgd", Averaged(Descent(0.1, Ball(2.0)), 1 / (1 - 0.1 * 0.1))),
        ("accelerated", Accelerated((Stage(3, 2.0),), 0.1, Ball(2.0))),
        ("local-sgd", Descent(1.0)),
    ],
)
def test_isrl_compositions(name: str, server: object) -> None:
    algorithm = build(name)
    assert algorithm.name == name
    assert algorithm.server == server
    assert algorithm.uplink == Direct(Identity())
    assert isinstance(algorithm.work, NoisyLocalSteps if "local" in name else PrivateGradient)
    assert algorithm.work.sampling == Poisson(0.1)
    assert algorithm.work.bound == (ClipNorm(3.0) if algorithm_entry(name).private else Unbounded())


@pytest.mark.parametrize(
    ("name", "bound"),
    [("fedavg", Unbounded()), ("dp-fedavg", ClipNorm(3.0)), ("dp-normfedavg", Normalise(3.0))],
)
def test_fedavg_compositions(name: str, bound: object) -> None:
    algorithm = build(name)
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
    algorithm = build(name)
    assert (algorithm.name, algorithm.uplink, algorithm.server) == (name, uplink, server)
    assert isinstance(algorithm.work, BinomialGradient if name == "cpsgd" else NoisyLocalSteps)
    assert algorithm.trust == Nobody()


@pytest.mark.parametrize(
    ("name", "work"), [("shuffled-mb-sgd", PrivateGradient), ("shuffled-accelerated", CoinGradient)]
)
def test_shuffled_compositions(name: str, work: type) -> None:
    algorithm = build(name)
    assert algorithm.name == name
    assert isinstance(algorithm.work, work)
    assert algorithm.work.sampling == Poisson(0.1)
    assert algorithm.trust == Shuffler(4, 20)
    accelerated = WithPenalty(Accelerated((Stage(3, 2.0),), 0.1, Ball(2.0)), MODEL)
    assert algorithm.server == (
        accelerated if work is CoinGradient else Averaged(Descent(0.1, Ball(2.0)), 1 / (1 - 0.1 * 0.1))
    )


@pytest.mark.parametrize(
    ("name", "work", "uplink", "server"),
    [
        (
            "dp-scaffold",
            ControlledSteps(MODEL, Poisson(0.1), ClipNorm(3.0), 4, 0.2, schedule=Exponential(0.99)),
            ControlVariates(RandK(fraction=0.2)),
            Descent(0.1 * 0.2 * 4, schedule=Exponential(0.99)),
        ),
        (
            "ef21-sgdm",
            PrivateGradient(MODEL, Minibatch(Poisson(0.1)), ClipNorm(3.0)),
            ErrorFeedback(RandK(fraction=0.2), momentum=0.8),
            Descent(0.1, schedule=Exponential(0.99)),
        ),
    ],
)
def test_compositions_with_memory(name: str, work: object, uplink: object, server: object) -> None:
    algorithm = build(name)
    assert (algorithm.work, algorithm.uplink, algorithm.server) == (work, uplink, server)
    assert (algorithm.name, algorithm.trust) == (name, Nobody())


def test_every_registered_name_is_tested_above() -> None:
    tests = (
        test_compositions,
        test_isrl_compositions,
        test_shuffled_compositions,
        test_fedavg_compositions,
        test_fed_spa_compositions,
        test_compositions_with_memory,
    )
    cases = [test.pytestmark[0].args[1] for test in tests]  # type: ignore[attr-defined]
    assert {case[0] for case in itertools.chain(*cases)} == set(ALGORITHMS)


def test_a_setting_that_nobody_takes_is_refused_with_those_that_are_taken() -> None:
    shape = records_of_shape(clients=4, records=20, features=5, classes=2)
    with pytest.raises(
        RequestError, match=r"'ldp-sgd' takes no kappa; it takes batch, bound, clip_norm, sampling, step"
    ):
        build_algorithm("ldp-sgd", MODEL, {"kappa": 1.0}, About(shape, 3))
    with pytest.raises(RequestError, match="step must be a number, not 'long'"):
        build_algorithm("ldp-sgd", MODEL, {"step": "long"}, About(shape, 3))

    def own(model: Model, *, strength: float) -> tacit.Algorithm:
        return build("ldp-sgd")

    with pytest.raises(RequestError, match="'own' needs strength: set algorithm"):
        read_parts("own", own, {}, About(shape, 3))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_defaults_of_a_signature_survive_being_written_as_settings(name: str) -> None:
    """What a resolved recipe says of them makes the same parts as saying nothing."""
    coins = ALGORITHMS[name].client_coins
    shape = records_of_shape(clients=4, records=20, features=5, classes=2)
    about = About(shape, rounds=3, participation=PoissonClients(2.0) if coins else Everyone())
    open_one = {"snapshot_probability": 0.5} if "snapshot_probability" in ALGORITHMS[name].settings else {}
    written = usual_settings(ALGORITHMS[name].make)
    assert build_algorithm(name, MODEL, {**written, **open_one}, about) == build_algorithm(
        name, MODEL, open_one, about
    )


def test_a_new_setting_is_written_once_in_the_signature() -> None:
    def shy_sgd(model: Model, *, shyness: int = 3, mood: Literal["good", "bad"] = "good") -> tacit.Algorithm:
        return replace(build("ldp-sgd"), name=f"shy-{shyness}-{mood}")

    entry = AlgorithmEntry(shy_sgd, "nobody", "a test")
    assert entry.settings == {"shyness", "mood"}
    assert usual_settings(shy_sgd) == {"shyness": 3, "mood": "good"}
    with pytest.raises(RequestError, match="mood must be 'good' or 'bad', not 'grim'"):
        checked_settings("shy-sgd", shy_sgd, {"mood": "grim"})

    def odd_sgd(model: Model, *, oddity: Model) -> tacit.Algorithm:
        raise NotImplementedError

    with pytest.raises(TypeError, match="no kind in tacit/algorithms/settings"):
        settings_of(odd_sgd)


def test_unknown_names_list_the_close_ones() -> None:
    with pytest.raises(RequestError, match=r"unknown algorithm 'soteria-sgd'; did you mean 'soteriafl-sgd'"):
        algorithm_entry("soteria-sgd")


@pytest.mark.parametrize("compressor", ["rand-k:7", "rand-k:7+natural"])
def test_no_message_keeps_more_coordinates_than_it_has(compressor: str) -> None:
    about = About(records_of_shape(clients=4, records=20, features=5, classes=2), rounds=3)
    build_algorithm("cdp-sgd", MODEL, {"compressor": compressor.replace("7", "6")}, about)
    with pytest.raises(RequestError, match="keeps 7 coordinates of a message, which has 6"):
        build_algorithm("cdp-sgd", MODEL, {"compressor": compressor}, about)
