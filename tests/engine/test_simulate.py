"""The simulator: promises kept, seeds obeyed, chunks and kills without a trace."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tacit
from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import attendance, calibrate, releases
from tacit.algorithms.registry import ALGORITHMS, build_algorithm
from tacit.algorithms.settings import About, takes_part
from tacit.algorithms.shuffler import Shuffler
from tacit.client.cohort import Cohort
from tacit.engine.objective import objective
from tacit.engine.plan import make_plan, plan
from tacit.engine.recipe import Recipe
from tacit.engine.round import client_round, client_start, server_round, server_start
from tacit.engine.simulate import simulate
from tacit.engine.simulation import Simulation
from tacit.errors import DataError, DivergedError, RequestError
from tacit.federation import Federation
from tacit.models import nonconvex_logistic_regression, softmax_regression
from tacit.noise.randomness import Purpose, Randomness
from tacit.planning.shape import records_of_shape
from tacit.privacy import Target, epsilon
from tacit.server.participation import Everyone, FixedNumber, PoissonClients

TARGET = Target(epsilon=4.0, delta=1e-5)
PRIVATE = [name for name, e in ALGORITHMS.items() if e.private and not takes_part(e.make, Shuffler)]
"""Those behind a shuffler are in tests/algorithms/test_shuffled.py."""
CENTRAL = [name for name in PRIVATE if ALGORITHMS[name].client_coins]


@pytest.fixture(scope="module")
def federation() -> Federation:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(3, 6, generator=generator)
    clients = []
    for size in (40, 55, 40, 61):
        labels = torch.randint(3, (size,), generator=generator)
        clients.append((centres[labels] + 0.3 * torch.randn(size, 6, generator=generator), labels))
    labels = torch.arange(60) % 3
    test = (centres[labels] + 0.3 * torch.randn(60, 6, generator=generator), labels)
    return Federation.from_clients(clients, test=test, classes=3)


def _algorithm(name: str = "soteriafl-svrg", *, step: float = 0.3, clip_norm: float = 1.0) -> Algorithm:
    settings = {
        "clip_norm": clip_norm,
        "sampling": "poisson",
        "batch": 0.4,
        "compressor": "rand-k:0.5",
        "snapshot_probability": 0.3,
        "step": step,
        "projection": "ball:50",
        "local_steps": 3,
        "schedule": "constant",
    }
    own = {key: value for key, value in settings.items() if key in ALGORITHMS[name].settings}
    shape = records_of_shape(clients=4, records=40, features=6, classes=3)
    about = About(shape, rounds=60, participation=PoissonClients(3.0) if name in CENTRAL else Everyone())
    return build_algorithm(name, softmax_regression(features=6, classes=3), own, about)


@pytest.mark.parametrize("name", PRIVATE)
def test_every_algorithm_learns_without_noise_and_keeps_its_promise_with_it(
    name: str, federation: Federation
) -> None:
    free = simulate(plan(_algorithm(name, clip_norm=10.0), federation, rounds=60, privacy="none"))
    assert free.guarantee is None
    assert free.last.epsilon is None
    assert free.last.test_metric is not None
    assert free.last.test_metric > 0.9
    run = simulate(plan(_algorithm(name), federation, rounds=10, privacy=TARGET))
    assert run.guarantee is not None
    assert run.guarantee.epsilon <= 4.0
    assert run.last.epsilon == pytest.approx(run.guarantee.epsilon)
    assert run.guarantee.epsilon > 0.99 * 4.0
    epsilons = [row.epsilon for row in run.history]
    assert epsilons[0] == 0
    assert epsilons == sorted(epsilons)  # type: ignore[type-var]


@pytest.mark.parametrize("name", PRIVATE)
def test_the_same_seed_gives_the_same_bits_whatever_the_chunks(name: str, federation: Federation) -> None:
    algorithm = _algorithm(name)
    whole = simulate(plan(algorithm, federation, rounds=8, privacy=TARGET, seed=5))
    again = simulate(plan(algorithm, federation, rounds=8, privacy=TARGET, seed=5))
    other = simulate(plan(algorithm, federation, rounds=8, privacy=TARGET, seed=6))
    chunked = simulate(plan(algorithm, federation, rounds=8, privacy=TARGET, seed=5), memory_limit_bytes=1)
    assert torch.equal(whole.parameters, again.parameters)
    assert not torch.equal(whole.parameters, other.parameters)
    torch.testing.assert_close(whole.parameters, chunked.parameters, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["soteriafl-saga", "soteriafl-svrg"])
def test_a_client_alone_sends_what_it_sends_in_the_simulator(name: str, federation: Federation) -> None:
    """The seam of a deployment: `client_round` for one silo, message bytes, `server_round`."""
    algorithm, randomness = _algorithm(name), Randomness(5)
    together = simulate(plan(algorithm, federation, rounds=4, privacy=TARGET, seed=5), memory_limit_bytes=1)
    calibration = calibrate(algorithm, federation, releases=4, privacy=TARGET)
    point = algorithm.work.model.init(randomness.generator(Purpose.INIT))
    silos = [federation.client(i) for i in range(federation.clients)]
    memories = [client_start(algorithm, point, silo) for silo in silos]
    server = server_start(algorithm, point)
    for t in range(4):
        point = algorithm.server.broadcast(server.update, t)["point"]
        messages = []
        for i, silo in enumerate(silos):
            cohort = Cohort(silo, torch.tensor([0]), t, randomness)
            multipliers = calibration.noise_multipliers[i : i + 1]
            packets, memories[i] = client_round(algorithm, {"point": point}, cohort, memories[i], multipliers)
            messages += packets.encode()
        total = torch.zeros_like(point)
        algorithm.uplink.compressor.decode(messages, len(point)).add_sum_to(total)
        server = server_round(algorithm, total, server, round=t, cohort=4, clients=4)
    assert torch.equal(algorithm.server.output(server.update), together.parameters)


@pytest.mark.parametrize("clients", [2, 4])
@pytest.mark.parametrize("name", ["soteriafl-svrg", "soteriafl-saga"])
def test_one_client_at_a_time_starts_as_it_would_alone(name: str, clients: int) -> None:
    """Products of several clients round differently: with no memory to spare, even the start has none of them."""
    settings = {"batch": 20.0, "step": 0.5}
    shape = {"data": "digits", "clients": clients, "model": "softmax", "rounds": 2}
    made = make_plan(Recipe(name, **shape, privacy="none", algorithm_settings=settings))
    start = Simulation(made, Randomness(0), memory_limit_bytes=1).start().clients.work
    point = made.algorithm.work.model.init(Randomness(0).generator(Purpose.INIT))
    silos = [made.federation.client(i) for i in range(clients)]
    silos = [replace(silo, features=silo.features.clone()) for silo in silos]
    alone = [client_start(made.algorithm, point, silo).work for silo in silos]
    assert start.keys() == alone[0].keys()
    for kept, values in start.items():
        assert torch.equal(values, torch.cat([one[kept] for one in alone])), kept


def test_noise_is_really_added_with_the_calibrated_deviation(federation: Federation) -> None:
    algorithm = _algorithm("ldp-sgd")
    calibration = calibrate(algorithm, federation, releases=5, privacy=TARGET)
    point = torch.zeros(algorithm.work.model.dim)
    samples = []
    for t in range(300):
        cohort = Cohort(federation, torch.arange(4), t, Randomness(1))
        noisy, _ = algorithm.work.run(point, cohort, {}, calibration.noise_multipliers)
        clean, _ = algorithm.work.run(point, cohort, {}, torch.zeros(4, dtype=torch.float64))
        samples.append(noisy - clean)
    deviations = torch.stack(samples).double().std(dim=(0, 2))
    count = 300 * algorithm.work.model.dim
    assert bool(((deviations / calibration.noise_stds - 1).abs() < 4.5 / math.sqrt(2 * count)).all())
    correlation = torch.corrcoef(torch.stack(samples).double().permute(1, 0, 2).flatten(1))
    assert float((correlation - torch.eye(4)).abs().max()) < 5 / math.sqrt(count)


def test_noise_follows_from_the_target_alone(federation: Federation) -> None:
    algorithm = _algorithm("soteriafl-sgd")
    loose = calibrate(algorithm, federation, releases=20, privacy=Target(8.0, 1e-5))
    tight = calibrate(algorithm, federation, releases=20, privacy=Target(1.0, 1e-5))
    longer = calibrate(algorithm, federation, releases=80, privacy=Target(8.0, 1e-5))
    assert bool((tight.noise_multipliers > loose.noise_multipliers).all())
    assert bool((longer.noise_multipliers > loose.noise_multipliers).all())
    for group in loose.groups:
        size, multiplier = group.records, group.noise_multiplier
        assert epsilon(algorithm.work.event(size, multiplier, 20), 1e-5) <= 8.0
        assert epsilon(algorithm.work.event(size, 0.99 * multiplier, 20), 1e-5) > 8.0
    with pytest.raises(RequestError, match="privacy must be"):
        calibrate(algorithm, federation, releases=20, privacy=1.0)  # type: ignore[arg-type]


def test_a_penalty_is_neither_clipped_nor_noised(federation: Federation) -> None:
    """With a tiny clip norm the records' part vanishes and the penalty's gradient remains."""
    model = nonconvex_logistic_regression(features=6, strength=5.0)
    algorithm = tacit.ldp_sgd(model, bound=tacit.ClipNorm(1e-9), sampling=tacit.Full(), step=0.1)
    point = torch.linspace(-1, 1, 6)
    cohort = Cohort(federation, torch.arange(4), 0, Randomness(0))
    rows, _ = algorithm.work.run(point, cohort, {}, torch.ones(4, dtype=torch.float64))
    assert model.penalty is not None
    torch.testing.assert_close(rows, model.penalty.gradient(point).expand(4, 6))


def test_the_objective_is_the_mean_over_clients(federation: Federation) -> None:
    model = softmax_regression(features=6, classes=3, ridge=0.1)
    x = torch.randn(model.dim, generator=torch.Generator().manual_seed(2)).requires_grad_()
    losses = [model.losses(x, federation.client(i).batch()).mean() for i in range(4)]
    assert model.penalty is not None
    expected = torch.stack(losses).mean() + model.penalty.value(x)
    expected.backward()
    value, gradient = objective(model, x.detach(), federation)
    assert float(value) == pytest.approx(expected.item(), rel=1e-5)
    assert x.grad is not None
    torch.testing.assert_close(gradient.float(), x.grad, atol=1e-6, rtol=1e-4)


def test_history_counts_what_was_sent_and_computed(federation: Federation) -> None:
    algorithm = _algorithm("soteriafl-sgd")
    run = simulate(plan(algorithm, federation, rounds=6, privacy=TARGET), evaluate_every=2)
    message = algorithm.uplink.compressor.message_bytes(algorithm.work.model.dim)
    assert [row.round for row in run.history] == [0, 2, 4, 6]
    assert run.last.uplink_bits_per_client == 6 * 8 * message
    assert run.last.uplink_bits_total == 4 * run.last.uplink_bits_per_client
    assert run.last.gradient_evaluations == round(6 * 0.4 * 196)
    norms = [row.grad_norm_sq for row in run.history]
    assert run.last.grad_norm_sq_mean == pytest.approx(sum(norms) / 4)


def test_partial_participation_counts_releases_and_keeps_the_mean_shift(federation: Federation) -> None:
    algorithm = replace(_algorithm("soteriafl-svrg"), participation=FixedNumber(2))
    times = releases(algorithm, attendance(algorithm, federation.clients, 12, Randomness(0)))
    assert 6 <= times < 12
    run = simulate(plan(algorithm, federation, rounds=12, privacy=TARGET))
    assert run.guarantee is not None
    assert run.last.epsilon == pytest.approx(run.guarantee.epsilon)
    fewer = calibrate(algorithm, federation, releases=12, privacy=TARGET)
    assert bool((run.calibration.noise_multipliers < fewer.noise_multipliers).all())


def test_one_pass_needs_a_batch_for_every_round_whoever_takes_part(federation: Federation) -> None:
    model = softmax_regression(features=6, classes=3)
    algorithm = tacit.ldp_sgd(model, bound=tacit.ClipNorm(1.0), sampling=tacit.OnePass(10), step=0.1)
    run = simulate(plan(algorithm, federation, rounds=4, privacy=TARGET))
    once = calibrate(algorithm, federation, releases=1, privacy=TARGET)
    assert torch.equal(run.calibration.noise_multipliers, once.noise_multipliers)
    for participation in (algorithm.participation, FixedNumber(1)):
        with pytest.raises(RequestError, match="only 4 disjoint batches"):
            simulate(plan(replace(algorithm, participation=participation), federation, rounds=5, privacy=TARGET))


class _KilledError(Exception):
    pass


def _killer(at: int):  # type: ignore[no-untyped-def]
    def progress(rounds: int, row: object) -> None:
        if rounds == at:
            raise _KilledError

    return progress


@pytest.mark.parametrize("name", ["soteriafl-svrg", "soteriafl-saga", "cdp-sgd"])
def test_a_run_resumed_after_any_round_equals_the_one_that_was_never_stopped(
    name: str, federation: Federation, tmp_path: Path
) -> None:
    planned = plan(_algorithm(name), federation, rounds=7, privacy=TARGET, seed=2)
    whole = simulate(planned, evaluate_every=2, out=tmp_path / "whole", checkpoint_every=1)
    for at in range(8):
        for every in (1, 3):
            out = tmp_path / f"{at}-{every}"
            with pytest.raises(_KilledError):
                simulate(planned, evaluate_every=2, out=out, checkpoint_every=every, progress=_killer(at))
            resumed = simulate(planned, evaluate_every=2, out=out, checkpoint_every=every)
            assert torch.equal(whole.parameters, resumed.parameters)
            for a, b in zip(whole.history, resumed.history, strict=True):
                assert replace(a, seconds=0) == replace(b, seconds=0)
            assert (out / "ledger.jsonl").read_text() == (tmp_path / "whole" / "ledger.jsonl").read_text()


def test_checkpoints_of_another_run_and_corrupted_ones_are_refused(
    federation: Federation, tmp_path: Path
) -> None:
    simulate(plan(_algorithm(), federation, rounds=3, privacy=TARGET), out=tmp_path)
    with pytest.raises(DataError, match="another run"):
        simulate(plan(_algorithm(step=0.2), federation, rounds=3, privacy=TARGET), out=tmp_path)
    (checkpoint,) = (tmp_path / "checkpoints").glob("*.safetensors")
    sound = checkpoint.read_bytes()
    # Cut off, or one bit of a number: both show.
    for damaged in (sound[:100], sound[:-60] + bytes([sound[-60] ^ 1]) + sound[-59:]):
        checkpoint.write_bytes(damaged)
        with pytest.raises(DataError, match="corrupted"):
            simulate(plan(_algorithm(), federation, rounds=3, privacy=TARGET), out=tmp_path)


def test_a_step_that_is_too_large_is_said_so(federation: Federation) -> None:
    with pytest.raises(DivergedError, match="smaller step"):
        simulate(plan(_algorithm(step=1e38), federation, rounds=50, privacy=TARGET))


def test_a_run_is_not_saved_over_another_one(federation: Federation, tmp_path: Path) -> None:
    """The ledger of the first would be lost, and its schema would describe the second one's model."""
    first, second = (
        simulate(plan(_algorithm(), federation, rounds=2, privacy=TARGET, seed=seed)) for seed in (0, 1)
    )
    first.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RequestError, match="holds another run, whose ledger would be lost"):
        second.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    again = simulate(plan(_algorithm(), federation, rounds=2, privacy=TARGET, seed=0))
    assert again.save(tmp_path) == tmp_path, "the same run again, as when a notebook's cell is run twice"


def test_a_saved_run_can_be_read_back(federation: Federation, tmp_path: Path) -> None:
    from tacit.engine.history import History
    from tacit.engine.trained import Trained

    run = simulate(plan(_algorithm(), federation, rounds=5, privacy=TARGET), out=tmp_path)
    run.save(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["epsilon"] == run.guarantee.epsilon  # type: ignore[union-attr]
    assert summary["noise_std"] == pytest.approx(
        summary["noise_multiplier"] * summary["clip_norm"] / (summary["sampling_rate"] * 40)
    )
    model = Trained.load(run.algorithm.work.model, tmp_path / "model.safetensors")
    assert torch.equal(model.parameters, run.parameters)
    assert federation.test_features is not None
    assert model.predict(federation.test_features).shape == (60,)
    assert History.read(tmp_path / "history.csv") == run.history
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DataError):
        Trained.load(run.algorithm.work.model, tmp_path / "model.safetensors")


def test_rounds_must_be_positive(federation: Federation) -> None:
    with pytest.raises(RequestError, match="rounds"):
        simulate(plan(_algorithm(), federation, rounds=0, privacy=TARGET))


def test_lattice_noise_is_charged_comes_from_nowhere_and_lies_on_its_lattice(federation: Federation) -> None:
    from tacit.noise.additive import LatticeGaussian

    seeded = _algorithm("ldp-svrg")
    algorithm = replace(seeded, work=seeded.work.with_noise(LatticeGaussian()))
    one = simulate(plan(algorithm, federation, rounds=6, privacy=TARGET, seed=5))
    two = simulate(plan(algorithm, federation, rounds=6, privacy=TARGET, seed=5))
    assert not torch.equal(one.parameters, two.parameters)
    assert one.guarantee is not None
    assert 0.99 * 4 < one.guarantee.epsilon <= 4
    plain = calibrate(seeded, federation, releases=6, privacy=TARGET)
    ratio = one.calibration.noise_multipliers / plain.noise_multipliers
    assert bool(((ratio > 1) & (ratio < 1.01)).all())
    assert one.summary()["entropy"] == "from the operating system, on a lattice"
    point = torch.zeros(algorithm.work.model.dim)
    cohort = Cohort(federation, torch.arange(4), 0, Randomness(1))
    samples = []
    for _ in range(200):
        state = algorithm.work.init(point, federation)
        noisy, _ = algorithm.work.run(point, cohort, state, one.calibration.noise_multipliers)
        samples.append(noisy)
    deviations = torch.stack(samples).double().std(dim=0).square().mean(1).sqrt()
    draws = 200 * len(point)
    # Drawn from the system: six deviations.
    assert bool(((deviations / one.calibration.noise_stds - 1).abs() < 6 / math.sqrt(2 * draws)).all())


@pytest.mark.parametrize("name", PRIVATE)
def test_every_algorithm_can_be_checkpointed(name: str, federation: Federation, tmp_path: Path) -> None:
    planned = plan(_algorithm(name), federation, rounds=4, privacy=TARGET, seed=2)
    whole = simulate(planned, out=tmp_path / "whole", checkpoint_every=1)
    with pytest.raises(_KilledError):
        simulate(planned, out=tmp_path / "killed", checkpoint_every=1, progress=_killer(2))
    resumed = simulate(planned, out=tmp_path / "killed", checkpoint_every=1)
    assert torch.equal(whole.parameters, resumed.parameters)
    (checkpoint,) = (tmp_path / "whole" / "checkpoints").glob("*.safetensors")
    assert checkpoint.stat().st_mode & 0o077 == 0


def test_noise_that_nobody_can_draw_again_is_released_once(federation: Federation, tmp_path: Path) -> None:
    from tacit.engine.ledger import read_ledger
    from tacit.noise.additive import LatticeGaussian

    seeded = _algorithm("ldp-sgd")
    algorithm = replace(seeded, work=seeded.work.with_noise(LatticeGaussian()))
    with pytest.raises(_KilledError):
        simulate(plan(algorithm, federation, rounds=6, privacy=TARGET), out=tmp_path, progress=_killer(3))
    # All three releases are in the ledger although no checkpoint was due.
    assert len(read_ledger(tmp_path / "ledger.jsonl")[1]) == 3
    with pytest.raises(RequestError, match="cannot be resumed"):
        simulate(plan(algorithm, federation, rounds=6, privacy=TARGET), out=tmp_path)
