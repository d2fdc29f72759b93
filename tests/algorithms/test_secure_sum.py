"""Trust in sums: what is promised, what an opened sum carries, what is refused, and the proof by enumeration."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import tacit
from tacit.algorithms.secure_sum import SecureSum, secured
from tacit.client.cohort import Cohort
from tacit.compress import Direct, Natural, RandK, SharedCoordinates, Shifted
from tacit.compress.shared import Summands
from tacit.engine.account import account_run
from tacit.engine.execute import execute
from tacit.engine.plan import encoding_of
from tacit.engine.pooled import with_pooled_noise
from tacit.engine.round import client_round, client_start, shared_coordinates
from tacit.engine.simulation import Simulation
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.noise.additive import LatticeGaussian
from tacit.noise.lattice import TAIL_MASS
from tacit.noise.randomness import Randomness
from tacit.privacy import Adversary, Target, calibrate_noise
from tacit.server.participation import FixedNumber, PoissonClients
from tacit.sums.arithmetic import STEP_EXPONENT

TARGET = Target(1.0, 1e-5)


def federation(*sizes: int, features: int = 3) -> Federation:
    rng = np.random.default_rng(0)
    return Federation.from_clients(
        [(rng.normal(size=(n, features)).astype(np.float32), rng.integers(0, 2, n)) for n in sizes], classes=2
    )


def algorithm(records: Federation, trust: SecureSum | None = None, **settings: Any) -> tacit.Algorithm:
    model = tacit.build_model("logistic", records)
    settings = {"sampling": tacit.Poisson(0.5), "compressor": RandK(count=2), "step": 0.5} | settings
    return secured(tacit.soteriafl_sgd(model, **settings), trust or SecureSum.of(records.clients))


def test_the_honest_shares_of_any_sum_are_the_noise_that_every_client_needs() -> None:
    """Sizes, weights and budgets differ: recomputed client by client, for the worst sum that can be opened."""
    sizes, trust = (20, 50, 50, 80, 200), SecureSum(5, 4, 1)
    records = replace(federation(*sizes), weights=torch.tensor([0.5, 0.5, 1.0, 1.0, 2.0]))
    targets = [Target(e, 1e-5) for e in (2.0, 1.0, 1.0, 4.0, 1.0)]
    plan = tacit.plan(algorithm(records, trust), records, rounds=7, privacy=targets)
    assert records.weights is not None
    shares = plan.calibration.noise_stds * records.weights
    assert torch.allclose(shares, shares[0].expand(5))
    honest = math.sqrt(trust.honest) * float(shares[0])
    needs, work = [], plan.algorithm.work
    for size, weight, target in zip(sizes, records.weights.tolist(), targets, strict=True):
        multiplier = calibrate_noise(
            partial(work.event, size, rounds=7), epsilon=target.epsilon, delta=target.delta
        )
        needs.append(weight * float(work.noise_stds(torch.tensor([size]), torch.tensor([multiplier]))[0]))
    assert honest == pytest.approx(max(needs), rel=1e-3)
    assert plan.guarantee is not None
    kept = plan.guarantee.epsilons
    assert all(e <= target.epsilon for e, target in zip(kept, targets, strict=True))
    strictest = int(np.argmax(needs))
    assert kept[strictest] == pytest.approx(targets[strictest].epsilon, rel=1e-2)
    assert min(kept) < 0.5 * min(target.epsilon for target in targets), "others get more than they need"


def test_two_numbers_are_shown_and_the_second_is_a_share_alone() -> None:
    records = federation(*[40] * 10)
    plan = tacit.plan(algorithm(records), records, rounds=5, privacy=TARGET)
    (alone,) = plan.calibration.beside
    assert (alone.adversary, plan.guarantee and plan.guarantee.adversary) == (
        Adversary.SERVER,
        Adversary.SECURE_SUM,
    )
    own = float(plan.calibration.noise_multipliers[0]) / math.sqrt(6)
    assert alone.epsilon == tacit.privacy.epsilon(plan.algorithm.work.event(40, own, 5), 1e-5)
    lines = tacit.simulate(plan).protection()
    told = {line.adversary: line.epsilon for line in lines if line.protected == "one record"}
    assert told["a server that opens only sums"] == pytest.approx(1.0, rel=1e-2)
    assert told["the server and all other parties"] == told["all other clients together"] == alone.epsilon
    assert "2 of the other clients help it" in lines[0].sentence


@pytest.mark.parametrize("compressor", [RandK(count=2), tacit.Identity()])
def test_noise_drawn_at_once_has_the_law_of_shares(compressor: Any) -> None:
    """The simulator draws the noise of a sum; a deployment adds it up from shares. Both are measured here."""
    records = federation(*[30] * 6)
    plan = tacit.plan(algorithm(records, compressor=compressor), records, rounds=400, privacy=TARGET)
    expected = math.sqrt(6) * float(plan.calibration.noise_stds[0])
    simulation = Simulation(plan, Randomness(1), 2**30)
    at_once, shares = [], []
    for t in range(400):
        zero = torch.zeros(plan.algorithm.work.model.dim)
        at = None if compressor == tacit.Identity() else torch.tensor([0, 3])
        at_once.append(with_pooled_noise(zero, expected, at, t, simulation.randomness)[[0, 3]])
    trust = plan.algorithm.trust
    state = client_start(plan.algorithm, torch.zeros(4), records)
    for t in range(400):
        cohort = Cohort(records, torch.arange(6), t, Randomness(2))
        sums = []
        for multipliers in (trust.share(plan.calibration.noise_multipliers, 6), torch.zeros(6).double()):
            packets, state = client_round(plan.algorithm, {"point": torch.zeros(4)}, cohort, state, multipliers)
            sums.append(packets.values.sum(0)[:2])  # type: ignore[attr-defined]  # of summands
        shares.append(sums[0] - sums[1])
    for drawn in (at_once, shares):
        assert stats.kstest(torch.cat(drawn).numpy() / expected, "norm").pvalue > 1e-3
    assert simulation._pooled_std(
        torch.arange(6), trust.share(plan.calibration.noise_multipliers, 6)
    ) == pytest.approx(expected)


@pytest.mark.parametrize("compressor", [RandK(count=2), tacit.Identity()])
@pytest.mark.parametrize("make", [tacit.soteriafl_sgd, tacit.soteriafl_svrg])
def test_a_run_of_real_shares_rounds_and_adds_as_silos_do(compressor: Any, make: Any) -> None:
    """Integers of all clients, added modulo 2^k, decode to the sum of their vectors and their own noise."""
    records = replace(federation(30, 30, 60, 60), weights=torch.tensor([0.5, 1.0, 1.0, 1.5]))
    model = tacit.build_model("logistic", records, {"ridge": 0.5})
    made = secured(make(model, sampling=tacit.Poisson(0.5), compressor=compressor, step=0.5), SecureSum(4, 3, 1))
    plan = tacit.plan(made, records, rounds=5, privacy=TARGET)
    real = Simulation(plan, Randomness(4), memory_limit_bytes=1)
    state = real.start()
    for t in range(5):
        point = torch.linspace(-3, 3, 4)
        at = shared_coordinates(plan.algorithm, 4, t, real.randomness)
        total, _ = real._encoded_sum({"point": point}, torch.arange(4), real.start().clients, t, at)
        cohort = Cohort(records, torch.arange(4), t, Randomness(4))
        shares = plan.algorithm.trust.share(plan.calibration.noise_multipliers, 4)
        quiet, _ = client_round(plan.algorithm, {"point": point}, cohort, real.start().clients, 0 * shares)
        noise = (total - quiet.sum())[slice(None) if at is None else at]
        std = 2 * float(plan.calibration.noise_stds[0] * 0.5)
        assert 0.01 * std < float(noise.abs().max()) < 6 * std
        if at is not None:
            assert float(total.abs().sum()) == pytest.approx(float(total[at].abs().sum()))
    assert math.isfinite(float(real.advance(state, torch.arange(4)).server.update["point"].sum()))


def test_a_shift_at_the_server_is_soteriafl_with_a_shift_for_every_client() -> None:
    """Clients that share their coordinates: only the mean of their shifts matters."""
    generator, dim, clients = torch.Generator().manual_seed(0), 20, 4
    uplink = SharedCoordinates.like(Shifted(RandK(count=5), 0.3))
    shifts, mean_shift = torch.zeros(clients, dim), torch.zeros(dim)
    state = uplink.server_init(dim)
    for t in range(10):
        rows = torch.randn(clients, dim, generator=generator)
        at = uplink.coordinates(dim, t, np.random.default_rng)
        assert at is not None
        packets = Summands(rows[:, at], at, dim, 0)
        direction, state = uplink.receive(packets.sum(), state, cohort=clients, clients=clients, at=at)
        sent = torch.zeros(clients, dim)
        sent[:, at] = (rows - shifts)[:, at] * dim / 5
        assert torch.allclose(direction, mean_shift + sent.mean(0), atol=1e-5)
        shifts += 0.3 * sent
        mean_shift = shifts.mean(0)


def test_a_pass_sends_every_coordinate_and_no_pass_has_the_order_of_another() -> None:
    uplink = SharedCoordinates(RandK(count=3))
    rounds = [uplink.coordinates(10, t, np.random.default_rng) for t in range(8)]
    passes = [rounds[:4], rounds[4:]]
    for one in passes:
        assert torch.cat([at for at in one if at is not None]).unique().tolist() == list(range(10))
    assert not all(torch.equal(a, b) for a, b in zip(*passes, strict=True) if a is not None and b is not None)


def test_what_has_no_proof_is_refused_with_the_reason() -> None:
    records = federation(*[40] * 5)
    model = tacit.build_model("logistic", records)
    plan = partial(tacit.plan, federation=records, rounds=3, privacy=TARGET)
    with pytest.raises(RequestError, match="the noise of one local step goes through the next gradient"):
        plan(secured(tacit.noisy_local_sgd(model, step=0.1), SecureSum.of(5)))
    with pytest.raises(RequestError, match="not a message of the sum: with trust = 'sum' use rand-k"):
        algorithm(records, compressor=Natural())
    with pytest.raises(RequestError, match="relies on a shuffler"):
        secured(tacit.shuffled_mb_sgd(model), SecureSum.of(5))
    with pytest.raises(RequestError, match="remembers single messages"):
        secured(tacit.ef21_sgdm(model), SecureSum.of(5))
    with pytest.raises(RequestError, match="all clients must send the same coordinates"):
        plan(replace(algorithm(records), uplink=Direct(RandK(count=2))))
    with pytest.raises(RequestError, match="needs as many in every round"):
        plan(replace(algorithm(records), participation=PoissonClients(3.0)))
    with pytest.raises(RequestError, match="needs as many in every round"):
        plan(replace(algorithm(records), participation=FixedNumber(4)))
    asked = tacit.Recipe(algorithm="dp-fedavg", data="digits", clients=5, epsilon=4.0, rounds=3, trust="sum")
    with pytest.raises(RequestError, match="adversary = 'server' asks for epsilon against a server that sees"):
        tacit.make_plan(asked.with_algorithm_settings(adversary="server"))


@pytest.mark.parametrize(
    ("numbers", "match"),
    [
        ((10, 11, 0), "quorum = 11 is more than the 10 clients"),
        ((10, 5, 4), "leaves 1 honest clients"),
        ((10, 5, 0), "must be above half of clients"),
        ((1, None, None), "needs at least 2 clients"),
        ((10, 8, -1), "colluding"),
    ],
)
def test_numbers_that_hide_nobody_are_refused(numbers: tuple[Any, ...], match: str) -> None:
    with pytest.raises(RequestError, match=match):
        SecureSum.of(*numbers)


@pytest.mark.parametrize("clients", range(2, 60))
def test_defaults_are_possible_for_every_number_of_clients(clients: int) -> None:
    trust = SecureSum.of(clients)
    assert trust.honest >= 2
    assert clients - trust.quorum == clients // 5
    assert 2 * trust.threshold > clients + trust.colluding, "two groups of that size share an honest client"


def test_every_share_of_real_noise_is_charged() -> None:
    records = federation(*[40] * 5)
    made = algorithm(records, SecureSum.of(5))
    real = replace(made, work=made.work.with_noise(LatticeGaussian()))
    event = real.trust.event(real.work, 5, 40, 50.0, 10)
    alone = real.work.event(40, 50.0, 10)
    assert tacit.privacy.epsilon(event, 1e-5) > tacit.privacy.epsilon(alone, 1e-5)
    assert 2.0**STEP_EXPONENT >= 5, "the proof's least share, in steps"
    assert 4 * 10_000 * math.exp(-((5 * math.pi) ** 2)) < TAIL_MASS, "one share more pays for rounding"


def test_a_recipe_a_ledger_and_the_accountant_agree(tmp_path: Path) -> None:
    recipe = tacit.Recipe(
        algorithm="soteriafl-gd",
        data="digits",
        clients=10,
        epsilon=2.0,
        trust="sum",
        quorum=9,
        colluding=1,
        rounds=4,
    )
    summary = execute(recipe, tmp_path / "run")
    assert (summary["adversary"], summary["epsilon"]) == ("secure-sum", pytest.approx(2.0, rel=1e-2))
    told = account_run(tmp_path / "run")
    assert not told.differences
    assert told.guarantee is not None
    assert told.guarantee.epsilon == summary["epsilon"]
    assert told.guarantee.colluding == 1
    assert tacit.Recipe.read(tmp_path / "run" / "recipe.toml").trust == "sum"
    with pytest.raises(RequestError, match="settings of trust = 'sum'"):
        tacit.Recipe(quorum=3)


def _privacy_loss(first: np.ndarray, second: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


def _rounded(center: float, std: float, reach: int) -> np.ndarray:
    """The law of nearest(center + N(0, std^2)) on -reach ... reach."""
    edges = np.arange(-reach, reach + 2) - 0.5
    return np.diff(stats.norm.cdf(edges, center, std))


@pytest.mark.parametrize("std", [1.0, 2.0, 5.0, 10.0])
@pytest.mark.parametrize("silos", [2, 3, 5])
def test_sums_of_rounded_shares_lose_no_more_than_their_gaussian(silos: int, std: float) -> None:
    """The proof, by enumeration: exact hockey-stick divergences of integer sums, at any fraction of a step."""
    rng, reach = np.random.default_rng(silos), int(12 * std) + 4
    whole = math.sqrt(silos) * std
    for move, fractions in itertools.product((0.4, 1.7, 5.3), rng.random((3, silos))):
        laws = [_rounded(c, std, reach) for c in fractions]
        first = partial(np.convolve, mode="full")
        others = laws[1]
        for law in laws[2:]:
            others = first(others, law)
        here, there = first(others, laws[0]), first(others, _rounded(fractions[0] + move, std, reach))
        for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
            mu = move / whole
            ideal = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
                -mu / 2 - epsilon / mu
            )
            assert _privacy_loss(there, here, epsilon) <= ideal * (1 + 1e-6) + 1e-12
            assert _privacy_loss(here, there, epsilon) <= ideal * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize("std", [0.25, 0.35, 0.5])
@pytest.mark.parametrize("silos", [2, 3])
def test_given_the_sum_fractions_are_uniform_up_to_the_bound(silos: int, std: float) -> None:
    """The step of the proof that needs the noise: fractional parts of all but one term, given the sum of all."""
    grid = (np.arange(64) + 0.5) / 64
    total, centers = 0.3, np.linspace(0.1, 0.7, silos)
    wide = np.arange(-12, 13)
    points = np.stack(np.meshgrid(*[grid] * (silos - 1), indexing="ij"), -1).reshape(-1, silos - 1)
    density = np.zeros(len(points))
    for lifts in itertools.product(wide, repeat=silos - 1):
        terms = points + np.array(lifts)
        last = total - terms.sum(1)
        density += np.exp(-((np.column_stack([terms, last]) - centers) ** 2).sum(1) / (2 * std**2))
    density /= density.mean()
    assert np.abs(density - 1).max() <= (1 + 2.01 * math.exp(-((math.pi * std) ** 2))) ** silos - 1 + 1e-9


def test_clients_of_very_different_sizes_fit_into_few_bits() -> None:
    """A large client's weight is not multiplied by the long vectors of a client with one record."""
    sizes = (1, 1, 2, 30, 20_000)
    by_records = torch.tensor([len(sizes) * size / sum(sizes) for size in sizes])
    records = replace(federation(*sizes), weights=by_records)
    made = algorithm(records, sampling=tacit.Poisson(0.01), compressor=tacit.Identity())
    plan = tacit.plan(made, records, rounds=5, privacy=Target(4.0, 1e-5))
    assert encoding_of(plan).ring.bits <= 18
    real = Simulation(plan, Randomness(4), memory_limit_bytes=1)
    point, everyone = torch.linspace(-3, 3, 4), torch.arange(5)
    std = math.sqrt(5) * float((plan.calibration.noise_stds * by_records).max())
    for t in range(5):
        total, _ = real._encoded_sum({"point": point}, everyone, real.start().clients, t, None)
        cohort = Cohort(records, everyone, t, Randomness(4))
        silent = torch.zeros(5, dtype=torch.float64)
        quiet, _ = client_round(plan.algorithm, {"point": point}, cohort, real.start().clients, silent)
        assert float((total - quiet.sum()).abs().max()) < 10 * std, "no coordinate has wrapped around"
