"""Runs as published: the epsilon is the accountant's, and asking for it gives the paper's noise back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.isrl_dp import noisy_local_sgd, noisy_mb_sgd
from tacit.client.bounds import ClipNorm
from tacit.client.sampling import Full, Sampling, WithReplacement, build_sampling
from tacit.engine.plan import plan
from tacit.errors import RequestError
from tacit.experiments.simulated import (
    SimulatedRun,
    as_published,
    last,
    promised,
    simulated,
    taken_as_public,
    watched,
)
from tacit.federation import Federation
from tacit.models.linear import logistic_regression
from tacit.privacy import Target, epsilon
from tacit.privacy.events import poisson, repeated
from tacit.server.participation import FixedNumber
from tacit.server.projection import Everywhere


@pytest.fixture
def federation() -> Federation:
    generator = torch.Generator().manual_seed(0)
    parts = [(torch.randn(n, 3, generator=generator), torch.arange(n) % 2) for n in (40, 40, 60)]
    return Federation.from_clients(parts, classes=2)


def algorithm(sampling: Sampling, step: float = 0.1) -> Algorithm:
    model = logistic_regression(features=3)
    return noisy_mb_sgd(model, bound=ClipNorm(1.0), sampling=sampling, step=step, projection=Everywhere())


@pytest.mark.parametrize("sampling", [build_sampling("poisson", 10), WithReplacement(10), Full()])
def test_asking_for_the_real_epsilon_gives_the_noise_back(federation: Federation, sampling: Sampling) -> None:
    parts = algorithm(sampling)
    privacy = as_published(
        parts,
        federation,
        rounds=5,
        seed=0,
        noise_multiplier=lambda size: 80 / size,
        delta=lambda size: size**-2.0,
    )
    found = simulated(SimulatedRun(plan(parts, federation, rounds=5, privacy=privacy), 5))
    assert found["noise_multiplier"] == pytest.approx(2.0, rel=1e-3)
    assert found["noise_multiplier"] >= 2.0
    assert found["epsilon"] <= max(target.epsilon for target in privacy)
    assert [target.delta for target in privacy] == [40**-2, 40**-2, 60**-2]


def test_the_epsilon_is_the_accountants(federation: Federation) -> None:
    parts = algorithm(build_sampling("poisson", 0.25))
    privacy = as_published(
        parts, federation, rounds=7, seed=0, noise_multiplier=lambda _: 1.5, delta=lambda _: 1e-4
    )
    assert {target.epsilon for target in privacy} == {epsilon(repeated(poisson(0.25, 1.5), 7), 1e-4)}


def test_only_rounds_of_participation_are_charged(federation: Federation) -> None:
    def worth(parts: Algorithm) -> float:
        return as_published(
            parts, federation, rounds=6, seed=0, noise_multiplier=lambda _: 3.0, delta=lambda _: 1e-4
        )[0].epsilon

    everyone = algorithm(Full())
    assert worth(replace(everyone, participation=FixedNumber(1))) < worth(everyone)


def test_local_steps_are_charged_one_by_one(federation: Federation) -> None:
    def worth(steps: int, rounds: int) -> float:
        model = logistic_regression(features=3)
        parts = noisy_local_sgd(model, bound=ClipNorm(1.0), sampling=Full(), local_steps=steps, step=0.1)
        return as_published(
            parts, federation, rounds=rounds, seed=0, noise_multiplier=lambda _: 5.0, delta=lambda _: 1e-4
        )[0].epsilon

    assert worth(4, 3) == worth(1, 12)
    assert worth(4, 3) > worth(1, 3)


def test_noise_that_is_worth_nothing_is_refused(federation: Federation) -> None:
    with pytest.raises(RequestError):
        as_published(
            algorithm(Full()), federation, rounds=5, seed=0, noise_multiplier=lambda _: 0.0, delta=lambda _: 1e-4
        )


def test_a_run_that_diverges_is_a_result(federation: Federation) -> None:
    privacy = promised(1.0, federation, lambda _: 1e-4)
    assert privacy == (Target(1.0, 1e-4),) * 3
    planned = plan(algorithm(Full(), step=3e38), federation, rounds=40, privacy=privacy)
    found = simulated(SimulatedRun(planned, 40, {"batch": 3}))
    assert "finite" in found["error"]
    assert found["batch"] == 3
    assert last(found, "train_loss") == float("inf")


def test_a_watched_run_looks_only_at_the_point(federation: Federation) -> None:
    job = SimulatedRun(plan(algorithm(Full()), federation, rounds=10, privacy=Target(1.0, 1e-4)), 4)
    assert watched(job, len)["history"] == {"round": [0, 4, 8, 10], "seen": [4] * 4}


def test_a_hopeless_run_is_stopped_and_no_other(federation: Federation) -> None:
    job = SimulatedRun(plan(algorithm(Full()), federation, rounds=9, privacy=Target(1.0, 1e-4)), 2)
    whole = simulated(job)
    utility = whole["history"]["grad_norm_sq_mean"][-1]
    assert job.evaluations == len(whole["history"]["round"]) == 6
    same = simulated(replace(job, hopeless_above=utility))
    assert same["history"] == whole["history"], "as good as the best so far"
    worse = simulated(replace(job, hopeless_above=0.99 * utility))
    assert "stopped after round" in worse["error"]
    first = whole["history"]["grad_norm_sq"][0]
    assert "stopped after round 0" in simulated(replace(job, hopeless_above=0.99 * first / 6))["error"]


def test_what_is_taken_as_public_is_told(federation: Federation) -> None:
    looked = replace(federation, peeks=("the mean of every column",))
    found = simulated(SimulatedRun(plan(algorithm(Full()), looked, rounds=1, privacy=Target(1.0, 1e-4)), 1))
    assert "the mean of every column" in taken_as_public([[found], [found]])["taken as public"]
    assert taken_as_public([[{"error": "it diverged"}]]) == {}
