"""Fed-SPA, DP-Fed and cpSGD as whole runs: their promises counted again, their messages opened."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting import pld

import tacit
from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import attendance, calibrate, releases
from tacit.algorithms.fed_spa import cpsgd, dp_fed, fed_spa
from tacit.client.binomial_gradient import BinomialGradient
from tacit.client.bounds import Bound, ClipEachCoordinate, ClipNorm, Normalise
from tacit.client.cohort import Cohort
from tacit.client.local_steps import NoisyLocalSteps
from tacit.client.sampling import Full, Poisson, Sampling
from tacit.compress import Direct, Identity, RandK, parse_compressor
from tacit.compress.grid import WholeSteps
from tacit.compress.rotation import RotatedBack
from tacit.engine.plan import make_plan, plan
from tacit.engine.recipe import Recipe
from tacit.engine.round import client_round, client_start
from tacit.engine.simulate import simulate
from tacit.errors import DataError, RequestError
from tacit.federation import Federation
from tacit.models import least_squares, softmax_regression
from tacit.noise.binomial import kappa
from tacit.noise.randomness import Randomness
from tacit.privacy import Adversary, Target, Unit
from tacit.schedules import Constant, InverseSqrt
from tacit.server.adaptive import Adaptive
from tacit.server.participation import FixedNumber
from tacit.server.self_tuned import SelfTuned
from tacit.server.update import Descent

MODEL = softmax_regression(features=8, classes=3)
TARGET = Target(epsilon=3.0, delta=1e-4)


@pytest.fixture(scope="module")
def federation() -> Federation:
    """Six clients, one of them with a single record, whose classes a linear model can tell apart."""
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(3, 8, generator=generator)
    clients = []
    for size in (60, 60, 60, 60, 60, 1):
        targets = torch.randint(3, (size,), generator=generator)
        clients.append((centres[targets] + torch.randn(size, 8, generator=generator), targets))
    return Federation.from_clients(clients, classes=3)


def _fed_spa(bound: Bound, compressor: str, **settings: Any) -> Algorithm:
    parts = {
        "sampling": Poisson(0.2),
        "local_steps": 5,
        "local_step": 0.1,
        "step": 0.05,
        "schedule": InverseSqrt(),
    }
    return fed_spa(MODEL, bound=bound, compressor=parse_compressor(compressor), **{**parts, **settings})


ALGORITHMS = [
    _fed_spa(ClipEachCoordinate(0.2), "rand-k:0.3"),
    _fed_spa(ClipNorm(1.0), "rand-k:1"),
    _fed_spa(ClipNorm(1.0), "rand-k:1.0"),
    _fed_spa(ClipNorm(1.0), "rand-k:0.3+qsgd:64"),
    dp_fed(
        MODEL,
        bound=ClipNorm(1.0),
        sampling=Poisson(0.2),
        local_steps=5,
        local_step=0.1,
        step=1.0,
        schedule=InverseSqrt(),
    ),
    cpsgd(MODEL, bound=ClipNorm(1.0), sampling=Poisson(0.2), bits=12, step=0.5, schedule=Constant()),
    cpsgd(MODEL, bound=ClipNorm(1.0), sampling=Poisson(0.2), bits=12, rotate=True, step=0.5, schedule=Constant()),
]
IDS = ["each coordinate", "k = 1", "k = d", "quantised", "dp-fed", "cpsgd", "cpsgd, rotated"]


def test_compositions() -> None:
    spa, fed, coins = ALGORITHMS[0], ALGORITHMS[4], ALGORITHMS[5]
    assert isinstance(spa.work, NoisyLocalSteps)
    assert spa.uplink == Direct(RandK(fraction=0.3))
    assert spa.server == Adaptive(0.05, 0.9, 0.99, 1e-3, InverseSqrt())
    assert spa.work.schedule == InverseSqrt()
    assert isinstance(fed.work, NoisyLocalSteps)
    assert fed.work.bounded == MODEL.dim
    assert (fed.uplink, fed.server) == (Direct(Identity()), Descent(1.0)), "FedAvg has no global step to shrink"
    assert isinstance(coins.work, BinomialGradient)
    assert (coins.uplink, coins.work.noise.bits) == (Direct(WholeSteps(12)), 12)


def test_without_a_step_the_server_tunes_itself() -> None:
    """The adaptive server has no rule for its step, so its other settings are refused rather than ignored."""
    assert _fed_spa(ClipNorm(1.0), "rand-k:0.3", step=None).server == SelfTuned()
    with pytest.raises(RequestError, match="needs a `step`"):
        _fed_spa(ClipNorm(1.0), "rand-k:0.3", step=None, kappa=0.1)


def test_bounds_shrink_with_the_share_of_coordinates() -> None:
    assert ClipNorm(2.0).on_share(0.25) == ClipNorm(1.0)
    assert Normalise(2.0).on_share(0.25) == Normalise(1.0)
    assert ClipEachCoordinate(2.0).on_share(0.25) == ClipEachCoordinate(2.0)
    limit = ClipEachCoordinate(1 / math.sqrt(MODEL.dim))
    for compressor in ("rand-k:1", "rand-k:0.3", "rand-k:1.0"):
        each, norm = (_fed_spa(bound, compressor).work for bound in (limit, ClipNorm(1.0)))
        sizes, z = torch.tensor([60]), torch.tensor([1.5])
        torch.testing.assert_close(each.noise_stds(sizes, z), norm.noise_stds(sizes, z))
    with pytest.raises(RequestError, match="must be rand-k"):
        _fed_spa(ClipNorm(1.0), "natural")


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=IDS)
def test_epsilon_counted_again(algorithm: Algorithm, federation: Federation) -> None:
    """By Google's accountant, from the standard deviation that is really added and the reach that is attained."""
    rounds = 4
    calibration = calibrate(algorithm, federation, releases=rounds, privacy=TARGET)
    guarantee = calibration.guarantee
    assert guarantee is not None
    assert guarantee.epsilon <= TARGET.epsilon
    assert (guarantee.unit, guarantee.adversary) == (Unit.RECORD, Adversary.SERVER)
    work = algorithm.work
    if isinstance(work, NoisyLocalSteps):
        steps, reach = work.steps, work.bound.norm(work.bounded)
        z = float(calibration.noise_stds[0]) * 0.2 * 60 / reach
    else:
        # The coins of the grid on which they fall, as a Gaussian: one record moves the mean by bound / b.
        assert isinstance(work, BinomialGradient)
        steps = 1
        (grid,) = work.grids(federation.sizes[:1], calibration.noise_multipliers[:1])
        assert grid.noise_std == float(calibration.noise_stds[0])
        z = 1 / (kappa(grid.coins) * (1.0 / (0.2 * 60)) / grid.spacing)
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    sampled = dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(z))
    accountant.compose(sampled, rounds * steps)
    again = accountant.get_epsilon(TARGET.delta)
    assert again <= TARGET.epsilon * 1.001
    if isinstance(work, NoisyLocalSteps):
        assert again >= 0.98 * TARGET.epsilon, "and no more noise than is needed"


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=IDS)
def test_messages_are_as_long_as_the_history_says(algorithm: Algorithm, federation: Federation) -> None:
    run = simulate(plan(algorithm, federation, rounds=2, privacy=TARGET))
    cohort = Cohort(federation, torch.arange(6), 0, Randomness(0))
    point = MODEL.init(Randomness(0).generator(tacit.noise.randomness.Purpose.INIT))
    state = client_start(algorithm, point, federation)
    packets, _ = client_round(algorithm, {"point": point}, cohort, state, run.calibration.noise_multipliers)
    messages = packets.encode()
    compressor = algorithm.uplink.compressor
    assert run.last.uplink_bits_total == 2 * sum(8 * len(message) for message in messages)
    assert torch.equal(compressor.decode(messages, MODEL.dim).dense(), packets.dense())
    if isinstance(algorithm.work, NoisyLocalSteps):
        kept = algorithm.work.bounded
        assert int((packets.dense() != 0).sum(1).max()) <= kept
        if compressor.spec().startswith("rand-k") and "+" not in compressor.spec():
            assert len(messages[0]) == 6 + 8 + 4 * kept, "a seed and k values"
    else:
        assert len(messages[0]) == 6 + 2 + math.ceil(12 * MODEL.dim / 8), "twelve bits a coordinate"


def test_the_message_is_the_whole_way_of_the_client(federation: Federation) -> None:
    """What the server reads is x - x_i of line 11, with the factor d/k and nothing lost to compression."""
    algorithm = _fed_spa(ClipEachCoordinate(0.2), "rand-k:5")
    cohort = Cohort(federation, torch.arange(6), 0, Randomness(0))
    multipliers = torch.ones(6, dtype=torch.float64)
    point = torch.zeros(MODEL.dim)
    state = client_start(algorithm, point, federation)
    rows, _ = algorithm.work.run(point, cohort, {}, multipliers)
    packets, _ = client_round(algorithm, {"point": point}, cohort, state, multipliers)
    torch.testing.assert_close(packets.dense(), rows * MODEL.dim / 5)
    assert (packets.dense() != 0).sum(1).tolist() == [5] * 6


def test_choosing_clients_earns_nothing(federation: Federation) -> None:
    """A client pays for the rounds of the busiest one, as if the server had known them all along."""
    algorithm = replace(_fed_spa(ClipNorm(1.0), "rand-k:0.3"), participation=FixedNumber(2))
    attended = attendance(algorithm, federation.clients, 12, Randomness(0))
    times = releases(algorithm, attended)
    assert 4 <= times < 12
    run = simulate(plan(algorithm, federation, rounds=12, privacy=TARGET))
    assert run.guarantee is not None
    again = calibrate(algorithm, federation, releases=times, privacy=TARGET)
    assert torch.equal(run.calibration.noise_multipliers, again.noise_multipliers)
    everyone = calibrate(_fed_spa(ClipNorm(1.0), "rand-k:0.3"), federation, releases=times, privacy=TARGET)
    assert torch.equal(everyone.noise_multipliers, again.noise_multipliers)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=IDS)
def test_without_privacy_they_learn(algorithm: Algorithm, federation: Federation) -> None:
    run = simulate(plan(algorithm, federation, rounds=25, privacy="none"))
    assert run.last.train_loss < 0.85 * math.log(3)


def test_sparse_and_private_it_still_learns(federation: Federation) -> None:
    run = simulate(plan(_fed_spa(ClipNorm(2.0), "rand-k:0.3"), federation, rounds=40, privacy=Target(20.0, 1e-3)))
    assert run.last.train_loss < 0.9 * math.log(3)


def test_a_client_whose_data_are_not_numbers_is_named() -> None:
    rows = torch.ones(4, 8)
    rows[2, 3] = math.nan
    with pytest.raises(DataError, match="client 1"):
        Federation.from_clients([(torch.ones(4, 8), torch.zeros(4)), (rows, torch.zeros(4))], task="regression")


def test_recipes() -> None:
    """The choices of appendix A.1 where a recipe leaves them open, and refusal of what does not belong."""
    recipe = Recipe(
        algorithm="fed-spa",
        data="digits",
        clients=5,
        rounds=2,
        cohort=2,
        algorithm_settings={"bound": "clip-each-coordinate"},
    )
    planned = make_plan(recipe)
    chosen = planned.recipe
    assert chosen is not None
    paper = {"beta_1": 0.9, "beta_2": 0.99, "kappa": 1e-3}
    assert chosen.algorithm_settings.items() >= paper.items()
    assert planned.algorithm.participation == FixedNumber(2)
    assert chosen.privacy == "record"
    assert make_plan(Recipe.from_toml(chosen.to_toml())).recipe == chosen
    coins = make_plan(Recipe(algorithm="cpsgd", data="digits", clients=5, rounds=2))
    assert coins.recipe.algorithm_settings.items() >= {"bits": 16, "rotate": False}.items()
    turned = make_plan(
        Recipe(algorithm="cpsgd", data="digits", clients=5, rounds=2, algorithm_settings={"rotate": True})
    )
    assert isinstance(turned.algorithm.uplink, RotatedBack)
    assert make_plan(Recipe.from_toml(turned.recipe.to_toml())).recipe == turned.recipe
    with pytest.raises(RequestError, match="rotate must be true or false"):
        make_plan(Recipe(algorithm="cpsgd", clients=5, rounds=2, algorithm_settings={"rotate": 1}))
    for algorithm, setting in (
        ("dp-fed", {"kappa": 0.1}),
        ("fed-spa", {"bits": 8}),
        ("cpsgd", {"local_steps": 2}),
    ):
        with pytest.raises(RequestError, match="takes no"):
            make_plan(Recipe(algorithm=algorithm, data="digits", rounds=2, algorithm_settings=setting))


@pytest.mark.parametrize("asked", [30.0, 36.0, 100.0])
def test_cpsgd_keeps_any_epsilon_however_large(asked: float) -> None:
    """Its noise is cut at its far ends, so it may keep less than was asked for, and needs no other request."""
    plan = make_plan(
        Recipe(
            algorithm="cpsgd", data="digits", clients=5, rounds=5, epsilon=asked, algorithm_settings={"step": 0.1}
        )
    )
    made = calibrate(plan.algorithm, plan.federation, releases=5, privacy=plan.privacy)
    assert made.guarantee is not None
    assert 20 < made.guarantee.epsilon <= asked


def test_cpsgd_needs_rows_that_stay_on_their_grid(federation: Federation) -> None:
    settings: dict[str, Any] = {"bound": ClipNorm(1.0), "sampling": Full(), "step": 0.5, "schedule": Constant()}
    with pytest.raises(RequestError, match="penalty"):
        cpsgd(softmax_regression(features=8, classes=3, ridge=0.1), **settings)
    for privacy in (TARGET, "none"):
        with pytest.raises(RequestError, match="off their grid: leave them out"):
            plan(cpsgd(MODEL, **settings), federation.weighted("records"), rounds=1, privacy=privacy)  # type: ignore[arg-type]


def test_a_rotation_saves_cpsgd_noise_that_few_bits_force_on_it() -> None:
    """Levels that need not reach as far as the bound are fine enough for the noise that was asked for."""
    wide = softmax_regression(features=7280, classes=3)
    sizes, multipliers = torch.tensor([1000]), torch.tensor([1.0])
    shared: dict[str, Any] = {"bound": ClipNorm(1.0), "sampling": Full(), "step": 1.0, "schedule": Constant()}
    works = [cpsgd(wide, bits=12, rotate=rotate, **shared).work for rotate in (False, True)]
    stds = [float(work.noise_stds(sizes, multipliers)) for work in works]
    assert stds[0] > 5 / 1000
    assert 1 / 1000 <= stds[1] < 1.4 / 1000


def test_a_rotated_run_learns_the_same(federation: Federation) -> None:
    """Without noise: up to rounding to 16 bits, turning there and back changes nothing."""
    runs = [
        simulate(
            plan(
                cpsgd(MODEL, bound=ClipNorm(1.0), sampling=Full(), rotate=rotate, step=0.5, schedule=Constant()),
                federation,
                rounds=5,
                privacy="none",
            )
        )
        for rotate in (False, True)
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, atol=2e-3, rtol=0)
    assert float(runs[0].parameters.norm()) > 0.5


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("sampling", [Full(), Poisson(1)], ids=["full", "one record"])
def test_cpsgd_clips_no_mean(bits: int, sampling: Sampling) -> None:
    """However little noise the records need: a step that should reach 1 does, on average."""
    records = 10_000
    same = torch.ones(2 * records, 1)
    clients = torch.arange(2 * records) % 2
    federation = Federation.from_arrays(same, same[:, 0], clients, task="regression")
    model = least_squares(features=1, intercept=False)
    algorithm = cpsgd(model, bound=ClipNorm(1.0), sampling=sampling, bits=bits, step=1.0, schedule=Constant())
    found = calibrate(algorithm, federation, releases=1, privacy=Target(8.0, 1e-5))
    assert found.guarantee is not None
    assert found.guarantee.epsilon <= 8.0
    assert isinstance(algorithm.work, BinomialGradient)
    grids = algorithm.work.grids(federation.sizes, found.noise_multipliers)
    ideal = found.noise_multipliers / sampling.batch_sizes(federation.sizes)
    largest = 1.0 if isinstance(sampling, Full) else 5.0
    for grid, std in zip(grids, ideal.tolist(), strict=True):
        assert grid.levels * grid.spacing >= largest
        assert kappa(grid.coins) * std <= grid.spacing
    if isinstance(sampling, Full):
        run = simulate(plan(algorithm, federation, rounds=1, privacy=Target(8.0, 1e-5)))
        assert float(run.parameters[0]) == pytest.approx(1.0, abs=5 * float(found.noise_stds[0]))


def test_the_summary_names_the_bound_of_the_kept_coordinates(federation: Federation) -> None:
    """What the noise is a multiple of: c sqrt(k), not c sqrt(d)."""
    run = simulate(plan(_fed_spa(ClipEachCoordinate(0.2), "rand-k:3"), federation, rounds=1, privacy=TARGET))
    said = run.summary()
    assert said["clip_norm"] == pytest.approx(0.2 * math.sqrt(3))
    assert isinstance(run.algorithm.work, NoisyLocalSteps)
    smallest = run.algorithm.work.sampling.batch_sizes(torch.tensor([1]))
    per_step = said["noise_multiplier"] * said["clip_norm"] / float(smallest)
    assert said["noise_std"] == pytest.approx(per_step)
