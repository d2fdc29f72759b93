"""Labels of other tools: public configurations, what is wrong with them, and agreement with dp-accounting."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from tacit.errors import RequestError
from tacit.privacy.labels import MECHANISMS, LabelVerdict, check_label
from tacit.theory.soteriafl import published_noise_std

ADD_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


def _by_dp_accounting(multiplier: float, rounds: int, delta: float, rate: float = 1.0) -> float:
    accountant = PLDAccountant(ADD_REMOVE)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    return float(accountant.compose(event, rounds).get_epsilon(delta))


def _found(verdict: LabelVerdict) -> str:
    return " ".join(finding.what for finding in verdict.findings)


PUBLIC: dict[str, tuple[dict[str, Any], tuple[float, float], str]] = {
    # Opacus, examples/mnist.py and examples/cifar10.py with their default arguments.
    "opacus mnist": (
        {"mechanism": "Opacus", "noise_multiplier": 1.0, "max_grad_norm": 1.0, "batch_size": 64, "records": 60000,
         "epochs": 10, "delta": 1e-5},
        (0.49, 0.50), "secure_mode",
    ),
    "opacus cifar10": (
        {"mechanism": "Opacus", "noise_multiplier": 1.5, "max_grad_norm": 10.0, "sample_rate": 0.04, "epochs": 90,
         "delta": 1e-5},
        (6.75, 6.78), "secure_mode",
    ),
    # Flower, examples/opacus: the client makes a new PrivacyEngine in every round.
    "flower opacus": (
        {"mechanism": "Opacus", "noise_multiplier": 1.0, "max_grad_norm": 1.0, "batch_size": 32, "records": 20000,
         "epochs": 1, "rounds": 3, "delta": 1e-5, "claimed_epsilon": 0.21},
        (0.33, 0.35), "counts that round alone",
    ),
    # Flower, examples/fl-dp-sa: SecAgg+, 20 of 100 clients with equally many records.
    "flower dp and secagg": (
        {"mechanism": "DifferentialPrivacyClientSideFixedClipping", "noise_multiplier": 0.2, "clipping_norm": 10,
         "num_sampled_clients": 20, "num_clients": 100, "largest_weight": 0.05, "rounds": 3, "delta": 1e-5,
         "secure_aggregation": True},
        (190, 200), "the server opens their exact sum",
    ),
    # The strategy of Flower's tutorial on differential privacy around FedAvg, which weights by num_examples.
    "flower weighted": (
        {"mechanism": "DifferentialPrivacyServerSideFixedClipping", "noise_multiplier": 1.0, "clipping_norm": 1.0,
         "num_sampled_clients": 10, "rounds": 3, "delta": 1e-5},
        (700, 800), "10 times too small",
    ),
    # A public server app: adaptive clipping with five clients.
    "flower adaptive": (
        {"mechanism": "DifferentialPrivacyServerSideAdaptiveClipping", "noise_multiplier": 0.05,
         "num_sampled_clients": 5, "rounds": 3, "delta": 1e-5, "weighted": False},
        (3000, 4000), "clipped to the old norm",
    ),
    # Public client apps with LocalDpMod(1.0, 1.0, 1.0, 1e-5) and LocalDpMod(1.0, 1.0, 8.0, 1e-5).
    "flower local": (
        {"mechanism": "LocalDpMod", "clipping_norm": 1.0, "sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5,
         "rounds": 10},
        (5.9, 6.0), "2 times too small",
    ),
    "flower local, large": (
        {"mechanism": "LocalDpMod", "clipping_norm": 1.0, "sensitivity": 1.0, "epsilon": 8.0, "delta": 1e-5,
         "rounds": 10},
        (98, 99), "proved for epsilon of at most 1",
    ),
    # NVIDIA FLARE's course: SVTPrivacy and PercentilePrivacy with these arguments, a network of 62,006 numbers.
    "flare svt": (
        {"mechanism": "SVTPrivacy", "fraction": 0.1, "epsilon": 0.1, "noise_var": 0.1, "gamma": 1e-5, "tau": 1e-6,
         "parameters": 62006, "rounds": 5},
        (3100, 3110), "pays for choosing entries",
    ),
    "flare percentile": (
        {"mechanism": "PercentilePrivacy", "percentile": 10, "gamma": 0.01, "claimed_epsilon": 1.0},
        (math.inf, math.inf), "adds no noise",
    ),
    # SoteriaFL's code on a9a: the mean of a batch is clipped; the paper's label is 1.
    "soteriafl code": (
        {"mechanism": "gaussian", "clip": 1.0, "clip_of": "batch", "noise_on": "mean", "batch": 10,
         "records": 3256, "sampling": "with-replacement", "rounds": 25, "delta": 1e-3, "claimed_epsilon": 1.0,
         "noise_std": published_noise_std(
             "soteriafl-sgd", gradient_bound=1.0, records=3256, rounds=25, epsilon=1.0, delta=1e-3)},
        (2.0e4, 2.1e4), "The mean of a batch is clipped",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_public_configurations(name: str) -> None:
    configuration, (least, most), finding = PUBLIC[name]
    verdict = check_label(configuration)
    assert least <= verdict.views[0].epsilon <= most
    assert finding in _found(verdict)
    assert verdict.holds is not True


@pytest.mark.parametrize(
    ("name", "rate", "steps"), [("opacus mnist", 1 / 938, 9380), ("opacus cifar10", 0.04, 2250)]
)
def test_without_an_error_dp_accounting_agrees(name: str, rate: float, steps: int) -> None:
    configuration = PUBLIC[name][0]
    theirs = _by_dp_accounting(configuration["noise_multiplier"], steps, 1e-5, rate)
    verdict = check_label({**configuration, "claimed_epsilon": round(theirs + 0.005, 2), "secure_mode": True})
    assert verdict.views[0].epsilon == pytest.approx(theirs, rel=6e-3)
    assert verdict.holds is True
    assert not verdict.findings


def test_equal_weights_and_the_right_sensitivity_make_labels_true() -> None:
    central = {**PUBLIC["flower weighted"][0], "weighted": False}
    seen = [one for one in check_label(central).views if str(one.adjacency) == "add-remove"]
    assert seen[0].epsilon == pytest.approx(_by_dp_accounting(1.0, 3, 1e-5), rel=6e-3)
    local = {**PUBLIC["flower local"][0], "sensitivity": 2.0, "rounds": 1}
    assert check_label(local).holds is True
    assert not check_label(local).findings


def test_fewer_replies_than_the_noise_is_for_cost_more() -> None:
    whole = {**PUBLIC["flower weighted"][0], "weighted": False}
    half = check_label({**whole, "fewest_replies": 5})
    twice = check_label({**whole, "noise_multiplier": 0.5})
    assert half.views[0].epsilon == pytest.approx(twice.views[0].epsilon)
    assert "2 times too small" in _found(half)


def test_a_server_that_adds_the_noise_is_promised_nothing() -> None:
    for name in ("flower weighted", "flower adaptive", "flower dp and secagg"):
        server = check_label(PUBLIC[name][0]).views[-1]
        assert server.against.startswith("the server")
        assert math.isinf(server.epsilon)


def test_the_adaptive_clip_shrinks_as_computed() -> None:
    """As Flower's code does it: every update is clipped, the norm shrinks, and the noise follows the new norm."""
    clip, rate, quantile, stddev, sampled = 1.0, 0.2, 0.5, 2.5, 50
    noisy = np.random.default_rng(0).normal(sampled, stddev, 100_000) / sampled
    after = clip * np.exp(-rate * (noisy - quantile))
    verdict = check_label(
        {"mechanism": "DifferentialPrivacyServerSideAdaptiveClipping", "noise_multiplier": 1.0, "rounds": 1,
         "num_sampled_clients": sampled, "delta": 1e-5, "weighted": False}
    )  # fmt: skip
    assumed = float(_found(verdict).split("which can be ")[1].split()[0])
    assert 0.95 * after.min() < assumed < after.min()
    stated = check_label(
        {"mechanism": "DifferentialPrivacyServerSideFixedClipping", "noise_multiplier": 1.0, "clipping_norm": 1.0,
         "rounds": 1, "num_sampled_clients": sampled, "delta": 1e-5, "weighted": False}
    )  # fmt: skip
    assert verdict.views[0].epsilon > stated.views[0].epsilon


@pytest.mark.parametrize(
    "settings",
    [
        {"mechanism": "ExcludeVars", "exclude_vars": ["fc2"]},
        {**PUBLIC["flower local"][0], "sensitivity": 0},
        {**PUBLIC["flower local"][0], "flwr_version": "1.13.1"},
        {"mechanism": "DifferentialPrivacyServerSideFixedClipping", "noise_multiplier": 0, "clipping_norm": 1,
         "num_sampled_clients": 10, "rounds": 1, "delta": 1e-5, "num_clients": 20},
        {"mechanism": "DifferentialPrivacyClientSideAdaptiveClipping", "noise_multiplier": 0,
         "num_sampled_clients": 10, "rounds": 1, "delta": 1e-5},
        {"mechanism": "Opacus", "noise_multiplier": 1, "max_grad_norm": 1, "sample_rate": 0.1, "epochs": 1,
         "delta": 1e-5, "noise_seed": 7},
        {"mechanism": "gaussian", "noise_std": 100.0, "rounds": 1, "delta": 1e-5},
        {"mechanism": "gaussian", "clip": 1.0, "noise_std": 0.0, "rounds": 1, "delta": 1e-5},
        {"mechanism": "gaussian", "clip": 1.0, "noise_std": 5.0, "rounds": 1, "delta": 1e-5, "noise_seed": 1},
    ],
)  # fmt: skip
def test_configurations_that_protect_nobody(settings: dict[str, Any]) -> None:
    verdict = check_label(settings)
    assert not verdict.private
    assert verdict.findings
    assert all(view["epsilon"] is None for view in verdict.to_dict()["views"])


def test_masks_from_a_seed_leave_single_messages() -> None:
    """DP-NormFedAvg's noise, divided over 600 messages of a sum."""
    shared = {
        "mechanism": "gaussian", "clip": 1.0, "clip_of": "client", "noise_multiplier": 4.0, "noise_shares": 600,
        "sampling": "poisson", "rate": 0.2, "rounds": 100, "delta": 1e-5,
    }  # fmt: skip
    hidden, opened = check_label(shared), check_label({**shared, "mask_seed": 3})
    epsilons = [view.epsilon for view in hidden.views]
    assert epsilons[0] < epsilons[2] < epsilons[3]
    assert [view.epsilon for view in opened.views] == [epsilons[3]]
    assert "seed 3" in _found(opened)


def test_noise_scaled_to_a_sensitivity_that_ignores_the_clip() -> None:
    verdict = check_label(
        {
            "mechanism": "gaussian",
            "clip": 10.0,
            "noise_multiplier": 1.0,
            "sensitivity": 5.0,
            "rounds": 1,
            "delta": 1e-5,
        }
    )
    assert "ignores the clip" in _found(verdict)
    assert verdict.views[1].epsilon == pytest.approx(_by_dp_accounting(0.5, 1, 1e-5), rel=6e-3)


def test_shuffled_batches_get_no_credit_for_sampling() -> None:
    settings = {**PUBLIC["opacus mnist"][0], "poisson_sampling": False}
    assert check_label(settings).views[0].epsilon == pytest.approx(_by_dp_accounting(1.0, 10, 1e-5), rel=6e-3)


def test_the_values_of_sparse_vectors_cost_what_laplace_noise_costs() -> None:
    """The epsilon at a delta is above that of the exact accountant for the values alone, and close to it."""
    settings = {"mechanism": "SVTPrivacy", "parameters": 1000, "rounds": 1, "epsilon": 1e-3, "delta": 1e-5}
    pure, approximate = check_label(settings).views
    accountant = PLDAccountant(ADD_REMOVE)
    values = accountant.compose(dp_accounting.LaplaceDpEvent(10.0), 100).get_epsilon(1e-5)
    assert values < approximate.epsilon < 1.15 * values + 0.1
    assert pure.epsilon == pytest.approx(100 * 0.1 + 1e-3 * 10, rel=1e-2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "mechanism is missing"),
        ({"mechanism": "LocalDPMod"}, "did you mean 'LocalDpMod'"),
        ({"mechanism": "LocalDpMod", "clip_norm": 1}, "did you mean 'clipping_norm'"),
        ({"mechanism": "LocalDpMod", "clipping_norm": 1}, "needs sensitivity, epsilon, delta, rounds"),
        ({**PUBLIC["flower local"][0], "delta": 2.0}, "delta must be"),
        ({**PUBLIC["flower local"][0], "rounds": 0}, "rounds must be"),
        ({**PUBLIC["flower local"][0], "clipping_norm": "one"}, "clipping_norm"),
        ({**PUBLIC["opacus mnist"][0], "sample_rate": 0.1}, "not both"),
        ({**PUBLIC["opacus mnist"][0], "clipping": "adaptive"}, "flat or per_layer"),
        ({**PUBLIC["flower dp and secagg"][0], "num_clients": 5}, "at most num_clients"),
        ({"mechanism": "gaussian", "clip": 1.0, "rounds": 1, "delta": 1e-5}, "noise_std or noise_multiplier"),
    ],
)
def test_a_wrong_configuration_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_label(settings)


def test_every_mechanism_has_a_public_configuration_or_gives_nothing() -> None:
    tried = {configuration["mechanism"] for configuration, _, _ in PUBLIC.values()}
    assert set(MECHANISMS) - tried == {"DifferentialPrivacyClientSideAdaptiveClipping", "ExcludeVars"}
