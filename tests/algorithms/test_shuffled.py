"""Algorithms behind a shuffler: what they send, what that is worth, and what they refuse."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tacit
from tacit.algorithms.calibrate import calibrate
from tacit.algorithms.isrl_dp import accelerated_mb_sgd, noisy_mb_sgd
from tacit.algorithms.shuffled import settled, shuffled_accelerated, shuffled_mb_sgd
from tacit.algorithms.shuffler import Shuffler
from tacit.client.cohort import Cohort
from tacit.client.coin_gradient import CoinGradient
from tacit.client.estimators import Svrg
from tacit.client.sampling import Full, OnePass, Poisson, Sampling, WithoutReplacement, WithReplacement
from tacit.engine.account import account_run
from tacit.engine.execute import execute
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import MessageError, RequestError
from tacit.federation import Federation
from tacit.models import logistic_regression
from tacit.noise.additive import LatticeGaussian
from tacit.noise.randomness import Randomness
from tacit.privacy import Adversary, Target, epsilon, events
from tacit.privacy.coins import CoinNoise
from tacit.server.accelerated import Stage
from tacit.server.participation import Attendance, FixedNumber, RandomNumber
from tacit.server.projection import Everywhere
from tacit.shuffle.coin_bits import CoinBits

SMALL = Recipe(
    data="breast-cancer",
    algorithm="shuffled-mb-sgd",
    clients=30,
    epsilon=2.0,
    rounds=4,
    algorithm_settings={"step": 0.1},
)
MODEL = logistic_regression(features=4, intercept=False)


def federation(clients: int = 40, records: int = 6, *, sizes: list[int] | None = None) -> Federation:
    generator = np.random.default_rng(0)
    sizes = sizes or [records] * clients
    x = generator.standard_normal((sum(sizes), 4)).astype(np.float32)
    y = (x[:, 0] + generator.standard_normal(len(x)) > 0).astype(np.int64)
    return Federation.from_arrays(x, y, clients=np.repeat(np.arange(len(sizes)), sizes))


def gaussian_messages(sampling: Sampling, shuffler: Shuffler) -> tacit.Algorithm:
    return shuffled_mb_sgd(
        MODEL, bound=tacit.ClipNorm(1.0), sampling=sampling, step=0.1, projection=Everywhere(), shuffler=shuffler
    )


def bits(sampling: Sampling, shuffler: Shuffler, rounds: int = 3) -> tacit.Algorithm:
    return shuffled_accelerated(
        MODEL, bound=tacit.ClipNorm(1.0), sampling=sampling, stages=(Stage(rounds, 2.0),), strong_convexity=0.0,
        projection=Everywhere(), shuffler=shuffler,
    )  # fmt: skip


def test_the_noise_is_what_the_shuffled_event_needs() -> None:
    data, target = federation(400, 1), Target(1.0, 1e-5)
    made = calibrate(
        gaussian_messages(Full(), Shuffler(400, 1)),
        data,
        releases=5,
        privacy=target,
        attended=Attendance(5, 5),
    )
    assert made.guarantee is not None
    noise = float(made.noise_multipliers[0])
    run = events.repeated(events.shuffled(400, 1, 1, noise), 5)
    assert made.guarantee.epsilon == epsilon(run, 1e-5) <= 1.0
    assert made.guarantee.adversary is Adversary.SHUFFLER
    assert [one.adversary for one in made.beside] == [Adversary.SERVER]
    assert made.beside[0].epsilon == epsilon(events.repeated(events.gaussian(noise), 5), 1e-5) > 3
    alone = noisy_mb_sgd(MODEL, bound=tacit.ClipNorm(1.0), sampling=Full(), step=0.1, projection=Everywhere())
    local = calibrate(alone, data, releases=5, privacy=target)
    assert float(made.noise_multipliers[0]) < float(local.noise_multipliers[0]) / 3


def test_all_clients_have_the_noise_of_the_smallest() -> None:
    sizes = [5] * 20 + [9] * 20
    data = federation(sizes=sizes)
    made = calibrate(
        gaussian_messages(WithoutReplacement(1), Shuffler(40, 5)), data, releases=2, privacy=Target(2.0, 1e-5)
    )
    assert len(made.noise_multipliers.unique()) == 1
    assert made.guarantee is not None
    once = events.shuffled(40, 5, 1, float(made.noise_multipliers[0]))
    assert set(made.guarantee.epsilons) == {epsilon(events.repeated(once, 2), 1e-5)}


def test_lattice_noise_is_charged_for_everybody() -> None:
    plain = gaussian_messages(OnePass(2), Shuffler(40, 6))
    exact = replace(plain, work=plain.work.with_noise(LatticeGaussian()))
    ideal, real = (a.trust.event(a.work, 40, 6, 5.0, 3) for a in (plain, exact))
    assert ideal == events.once(events.shuffled(40, 2, 2, 5.0), 3)
    assert epsilon(ideal, 1e-5) < epsilon(real, 1e-5) < 1.01 * epsilon(ideal, 1e-5)
    slip = real.events[1]
    assert slip == exact.work.noise.charged(ideal, 4, 3 * 40).events[1]


@pytest.mark.parametrize(("sampling", "batch", "charged"), [(OnePass(2), 2, 1), (Full(), 6, 3)])
def test_as_few_coins_as_the_protocol_needs(sampling: Sampling, batch: int, charged: int) -> None:
    algorithm = bits(sampling, Shuffler(40, 6))
    made = calibrate(algorithm, federation(), releases=3, privacy=Target(2.0, 1e-5))
    ready = settled(algorithm, float(made.noise_multipliers[0]))
    assert isinstance(ready.work, CoinGradient)
    assert made.guarantee is not None

    def spent(coins: int, clients: int) -> float:
        return CoinNoise(4, clients * coins, ready.work.levels / batch, charged).epsilon(1e-5)

    assert made.guarantee.epsilon == spent(ready.work.coins, 40) <= 2.0
    assert spent(ready.work.coins - 2, 40) > 2.0
    exposed = algorithm.trust.exposures(ready.work, 40, 6, float(made.noise_multipliers[0]), Attendance(3, 3))
    assert epsilon(exposed[0].event, 1e-5) == spent(ready.work.coins, 1)


def test_sums_of_bits_are_unbiased_with_the_variance_of_the_coins() -> None:
    data, repeats = federation(12), 400
    algorithm = bits(Full(), Shuffler(12, 6), repeats)
    multiplier = 2.0
    ready = settled(algorithm, multiplier)
    assert isinstance(ready.work, CoinGradient)
    point = torch.tensor([0.4, -0.2, 0.1, 0.0])
    noisy, silent = torch.full((12,), multiplier, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    cohorts = [Cohort(data, torch.arange(12), t, Randomness(3)) for t in range(repeats)]
    true = ready.work.run(point, cohorts[0], {}, silent)[0].double().sum(0)
    found = torch.stack([ready.work.run(point, one, {}, noisy)[0].double().sum(0) for one in cohorts])
    # (2L/g)^2 (N b/4 + sum_i f_i (1 - f_i)), f_i the fractional part of g (x_i + L)/(2L)
    levels, rows = ready.work.levels, ready.work.run(point, cohorts[0], {}, silent)[0].double()
    parts = (rows + 1) * levels / 2 % 1
    variances = (2 / levels) ** 2 * (12 * ready.work.coins / 4 + (parts * (1 - parts)).sum(0))
    standardised = (found - true) / variances.sqrt()
    assert float(standardised.mean().abs()) < 4 / math.sqrt(4 * repeats)
    assert float((standardised**2).mean()) == pytest.approx(1.0, rel=0.15)
    # One client alone draws what it draws among all.
    alone = Cohort(data, torch.tensor([5]), 7, Randomness(3))
    assert torch.equal(ready.work.run(point, alone, {}, noisy[:1])[0][0], ready.work.run(
        point, cohorts[7], {}, noisy)[0][5])  # fmt: skip


def test_without_noise_it_is_the_accelerated_algorithm() -> None:
    ridge = logistic_regression(features=4, intercept=False, ridge=0.1)
    parts = {
        "bound": tacit.ClipNorm(1.0),
        "sampling": Full(),
        "stages": (Stage(5, 2.0),),
        "strong_convexity": 0.1,
    }
    ours = shuffled_accelerated(ridge, **parts, shuffler=Shuffler(40, 6))  # type: ignore[arg-type]
    theirs = accelerated_mb_sgd(ridge, **parts)  # type: ignore[arg-type]
    runs = [tacit.simulate(tacit.plan(a, federation(), rounds=5, privacy="none")) for a in (ours, theirs)]
    assert torch.allclose(runs[0].parameters, runs[1].parameters, atol=1e-6)
    assert float(runs[0].parameters.norm()) > 0.1


def test_bits_on_the_wire_are_counted_and_read_back() -> None:
    data = federation(3)
    ready = settled(bits(OnePass(2), Shuffler(3, 6)), 3.0)
    assert isinstance(ready.work, CoinGradient)
    compressor = ready.uplink.compressor
    noise = torch.full((3,), 3.0, dtype=torch.float64)
    rows, _ = ready.work.run(torch.zeros(4), Cohort(data, torch.arange(3), 0, Randomness(1)), {}, noise)
    packets = compressor.compress(rows, [np.random.default_rng(0)] * 3)
    messages = packets.encode()
    assert {8 * len(message) for message in messages} == {packets.bits}
    # Every bit travels alone, with the number of its coordinate: 2 bits for 4 of them.
    alone = 4 * (ready.work.levels + ready.work.coins) * 3
    assert 0 <= packets.bits - alone < 8 * 7
    assert compressor.message_bytes(4) == len(messages[0])
    assert torch.allclose(compressor.decode(messages, 4).dense(), rows, atol=1e-6)
    assert "coin-bits" in compressor.spec()
    with pytest.raises(RequestError, match="ones each"):
        compressor.compress(rows + 0.01, [np.random.default_rng(0)] * 3)
    other = CoinBits(ready.work.levels, ready.work.coins + 1, 1.0)
    with pytest.raises(MessageError):
        other.decode(messages, 4)
    with pytest.raises(RequestError, match="too long for single bits"):
        compressor.message_bytes(2**15 + 1)


def test_an_envelope_with_a_wrong_coordinate_is_refused() -> None:
    compressor = CoinBits(levels=2, coins=2, clip_norm=1.0)
    body = np.zeros((1, compressor.payload_bytes(2)), dtype=np.uint8)
    with pytest.raises(MessageError, match="exactly 4 messages"):
        compressor.decode(compressor.format(2).seal(body), 2)


def test_the_number_of_coins_must_be_agreed_on() -> None:
    algorithm, data = bits(Full(), Shuffler(12, 6)), federation(12)
    planned = tacit.plan(algorithm, data, rounds=3, privacy=Target(2.0, 1e-5))
    assert planned.algorithm.work.coins > 0  # type: ignore[attr-defined]
    cohort = Cohort(data, torch.arange(12), 0, Randomness(0))
    point, multipliers = torch.zeros(algorithm.work.model.dim), planned.calibration.noise_multipliers
    with pytest.raises(RequestError, match="agree"):
        algorithm.work.run(point, cohort, {}, multipliers)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clients": 1}, "nobody to hide among"),
        ({"cohort": 1}, "nobody to hide among"),
        ({"cohort": "3-5"}, "as many clients in every round"),
        ({"weights": "records"}, "weights would tell"),
        ({"algorithm.sampling": "poisson"}, "no proof behind a shuffler"),
        ({"algorithm.sampling": "with-replacement"}, "no proof behind a shuffler"),
        ({"epsilon": [1.0] * 29 + [2.0]}, "one epsilon and delta for all"),
        ({"epsilon": 20.0}, r"above ln\(2/delta\) = 12.2"),
        ({"algorithm": "shuffled-accelerated", "epsilon": 15.1}, r"above 15 \(Lemma G.1\)"),
        (
            {"client_epsilon": 8.0},
            "client_epsilon is for algorithms that protect",
        ),
        ({"algorithm.compressor": "natural"}, "takes no compressor"),
    ],
)
def test_what_would_tell_messages_apart_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        make_plan(SMALL.with_settings(change))


def test_a_trust_that_does_not_fit_the_run_is_refused() -> None:
    data, target = federation(sizes=[5] * 20 + [9] * 20), Target(2.0, 1e-5)

    def refused(algorithm: tacit.Algorithm, said: str) -> None:
        with pytest.raises(RequestError, match=said):
            calibrate(algorithm, data, releases=1, privacy=target)

    refused(gaussian_messages(Full(), Shuffler(40, 5)), "batches of 5 to 9")
    refused(gaussian_messages(WithoutReplacement(1), Shuffler(40, 9)), "fewer than the 9")
    refused(gaussian_messages(WithoutReplacement(1), Shuffler(30, 5)), "mixes 30 messages")
    refused(gaussian_messages(Poisson(1), Shuffler(40, 5)), "no proof")
    refused(gaussian_messages(WithReplacement(1), Shuffler(40, 5)), "no proof")
    some = gaussian_messages(WithoutReplacement(1), Shuffler(30, 5))
    assert calibrate(replace(some, participation=FixedNumber(30)), data, releases=1, privacy=target).guarantee
    refused(replace(some, participation=RandomNumber(30, 30)), "as many clients")
    memory = replace(some.work, estimator=Svrg(WithoutReplacement(1), 0.5))  # type: ignore[type-var]
    refused(replace(some, work=memory, participation=FixedNumber(30)), "only minibatch gradients")
    targets = [target] * 39 + [Target(3.0, 1e-5)]
    with pytest.raises(RequestError, match="one epsilon and delta for all clients"):
        tacit.simulate(
            tacit.plan(gaussian_messages(WithoutReplacement(1), Shuffler(40, 5)), data, rounds=1, privacy=targets)
        )


@pytest.mark.parametrize("algorithm", ["shuffled-mb-sgd", "shuffled-accelerated"])
def test_summary_ledger_and_account_agree(algorithm: str, tmp_path: Path) -> None:
    summary = execute(replace(SMALL, algorithm=algorithm), tmp_path)
    assert summary["adversary"] == "shuffler"
    assert summary["epsilon"] <= 2.0
    against = {row["adversary"]: row["epsilon"] for row in summary["protection"][:2]}
    honest, colluding = against
    assert honest == "the server behind the shuffler"
    assert colluding.startswith("the server and all other parties")
    found = account_run(tmp_path)
    assert found.finished
    assert found.differences == ()
    assert found.guarantee is not None
    assert found.guarantee.epsilon == pytest.approx(summary["epsilon"], rel=1e-9)
    header = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[0])
    kinds = {group["events"][-1][1].get("event", {}).get("kind") for group in header["groups"]}
    assert kinds == {"shuffled" if algorithm == "shuffled-mb-sgd" else "coin-sum"}
    if algorithm == "shuffled-accelerated":
        plan = make_plan(replace(SMALL, algorithm=algorithm))
        per_round = 8 * plan.algorithm.uplink.compressor.message_bytes(plan.algorithm.work.model.dim)
        assert summary["uplink_bits_per_client"] == 4 * per_round
        assert summary["noise"] == "coins"


def test_the_same_bits_in_chunks_and_again() -> None:
    plan = make_plan(replace(SMALL, algorithm="shuffled-accelerated"))
    runs = [tacit.simulate(plan, memory_limit_bytes=limit).parameters for limit in (1, 2**30, 2**30)]
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[1], runs[2])


def test_open_choices_are_made_so_that_messages_look_alike() -> None:
    data = {"algorithm": "shuffled-accelerated", "rounds": None, "algorithm.sampling": None}
    chosen = make_plan(SMALL.with_settings(data)).recipe.algorithm_settings
    assert (chosen["sampling"], chosen["batch"]) == ("one-pass", 1.0)
    tenth = make_plan(SMALL).recipe.algorithm_settings
    assert tenth["sampling"] == "without-replacement"
    assert tenth["batch"] == float(int(tenth["batch"])) >= 1


@pytest.mark.parametrize("algorithm", ["shuffled-mb-sgd", "shuffled-accelerated"])
def test_a_killed_run_goes_on_bit_for_bit(algorithm: str, tmp_path: Path) -> None:
    plan = make_plan(replace(SMALL, algorithm=algorithm))

    def run(out: Path, stop: int | None = None) -> torch.Tensor:
        def progress(rounds: int, row: object) -> None:
            if rounds == stop:
                raise KeyboardInterrupt

        return tacit.simulate(plan, out=out, checkpoint_every=1, progress=progress).parameters

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", stop=2)
    assert torch.equal(run(tmp_path / "killed"), run(tmp_path / "whole"))


def test_coins_from_the_operating_system_cannot_be_repeated() -> None:
    plan = make_plan(replace(SMALL, algorithm="shuffled-accelerated", noise="lattice"))
    assert plan.algorithm.work.noise.name == "coins"
    assert plan.algorithm.work.noise.secret
    runs = [tacit.simulate(plan).parameters for _ in range(2)]
    assert not torch.equal(runs[0], runs[1])


def test_an_epsilon_that_takes_more_coins_than_can_be_sent_is_refused() -> None:
    """At once: neither the accountant nor a client tries."""
    small = replace(SMALL, algorithm="shuffled-accelerated", clients=6, rounds=2).with_algorithm_settings(
        step=None
    )
    assert isinstance(make_plan(replace(small, epsilon=0.01)).algorithm.work, CoinGradient)
    for epsilon_wanted in (1e-4, 1e-6):
        with pytest.raises(RequestError, match="too small for so few clients"):
            make_plan(replace(small, epsilon=epsilon_wanted))
