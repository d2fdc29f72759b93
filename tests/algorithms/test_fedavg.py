"""Client-level privacy: what the sum is worth, what a message alone is worth, and how noise is shared."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import pld

import tacit
from tacit.algorithms.calibrate import attendance, calibrate
from tacit.algorithms.trust import Aggregator
from tacit.compress import Direct, Shifted
from tacit.engine.account import account_recipe, account_run
from tacit.engine.execute import execute
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.simulation import Simulation
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.noise.randomness import Randomness
from tacit.privacy import Adversary, Target, Unit
from tacit.server.participation import PoissonClients

RECIPE = Recipe(
    algorithm="dp-normfedavg",
    data="digits",
    clients=50,
    model="softmax",
    rounds=6,
    cohort=10,
    epsilon=4.0,
    delta=1e-5,
    data_settings={"unit_norm": True},
    algorithm_settings={"step": 0.5, "local_steps": 3, "clip_norm": 2.0},
)


def _reference(rate: float, noise_multiplier: float, rounds: int, adjacency: str) -> float:
    """The central guarantee by dp_accounting's own PLD."""
    relation = {
        "replace-one": dp_accounting.NeighboringRelation.REPLACE_ONE,
        "add-remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    }[adjacency]
    gaussian: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(noise_multiplier)
    event = gaussian if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)
    return float(pld.PLDAccountant(relation, 1e-3).compose(event, rounds).get_epsilon(1e-5))


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("cohort", [10, 50])
def test_the_central_guarantee_is_that_of_sampled_clients(adjacency: str, cohort: int) -> None:
    plan = make_plan(replace(RECIPE, adjacency=adjacency, cohort=cohort))
    run = tacit.simulate(plan)
    assert run.guarantee is not None
    assert run.guarantee.unit is Unit.CLIENT
    assert run.guarantee.adversary is Adversary.SUM
    z = float(run.calibration.noise_multipliers[0])
    assert run.guarantee.epsilon <= 4.0
    assert _reference(cohort / 50, z, 6, adjacency) == pytest.approx(run.guarantee.epsilon, rel=2e-3)


def test_beside_it_stands_what_is_left_if_more_is_seen() -> None:
    plan = make_plan(RECIPE)
    run = tacit.simulate(plan)
    known, alone = run.calibration.beside
    assert (known.adversary, alone.adversary) == (Adversary.COHORT, Adversary.SERVER)
    assert run.guarantee is not None
    assert run.guarantee.epsilon < known.epsilon < alone.epsilon
    told = {row["adversary"]: row["epsilon"] for row in run.summary()["protection"]}
    # The others know their own shares of the noise, and take them off the sum.
    assert "another client" not in told
    assert told["all other clients together"] == alone.epsilon
    assert told["someone who sees sums and who took part"] == known.epsilon
    assert told["the server and all other parties"] == alone.epsilon


@pytest.mark.parametrize("expected", [0.5, 3.0, 8.0])
def test_the_noise_of_a_round_is_the_same_whoever_takes_part(expected: float) -> None:
    """Shares and top-up, for cohorts from nobody to everybody: the deviation of the sum is z bounds."""
    federation = Federation.from_clients([([[0.0] * 400], [0])] * 8, classes=2)
    algorithm = tacit.dp_normfedavg(
        tacit.build_model("logistic", federation, {"intercept": False}),
        clip_norm=3.0,
        local_steps=1,
        local_step=0.1,
        step=1.0,
        trust=Aggregator(expected),
    )
    algorithm = replace(algorithm, participation=PoissonClients(expected))
    planned = tacit.plan(algorithm, federation, rounds=9, privacy=Target(4.0, 1e-5), seed=1)
    simulation = Simulation(planned, planned.randomness(), 2**30)
    z = float(planned.calibration.noise_multipliers[0])
    for present in (0, 1, 3, 8):
        state = replace(simulation.start(), round=present)
        after = simulation.advance(state, torch.arange(present))
        # Zero features, zero updates: the step is noise alone, over the fixed number of expected clients.
        moved = after.server.update["point"].double() * expected
        assert float(moved.std()) == pytest.approx(3.0 * z, rel=4.5 / math.sqrt(2 * 400))
        assert after.releases.tolist() == [1] * 8


def test_the_others_together_are_left_with_the_clients_own_noise() -> None:
    """Without the other nineteen messages a twentieth of the noise's variance is left."""
    plan = make_plan(replace(RECIPE, clients=20, cohort=20, rounds=1, epsilon=1.0))
    run = tacit.simulate(plan)
    z = float(run.calibration.noise_multipliers[0])
    told = {row["adversary"]: row["epsilon"] for row in run.summary()["protection"]}
    assert told["all other clients together"] == pytest.approx(
        _reference(1, z / math.sqrt(20), 1, "replace-one"), rel=2e-3
    )


@pytest.mark.parametrize("uplink", ["natural", "rand-k:1", "shifted"])
def test_sums_of_compressed_messages_and_of_record_level_works_are_refused(uplink: str) -> None:
    plan = make_plan(RECIPE)
    compressor = tacit.parse_compressor("identity" if uplink == "shifted" else uplink)
    sent = Shifted(compressor) if uplink == "shifted" else Direct(compressor)
    with pytest.raises(RequestError, match="uncompressed updates of whole clients"):
        tacit.simulate(
            tacit.plan(replace(plan.algorithm, uplink=sent), plan.federation, rounds=1, privacy=Target(1.0, 1e-5))
        )
    work = make_plan(replace(RECIPE, cohort=None).for_algorithm("noisy-local-sgd")).algorithm.work
    with pytest.raises(RequestError, match="bounded, uncompressed updates of whole clients"):
        tacit.simulate(
            tacit.plan(replace(plan.algorithm, work=work), plan.federation, rounds=1, privacy=Target(1.0, 1e-5))
        )


def test_the_files_of_a_run_do_not_tell_who_came() -> None:
    plan = make_plan(RECIPE.with_algorithm_settings(public_sizes=True))
    run = tacit.simulate(plan, evaluate_every=1)
    bits = [row.uplink_bits_total for row in run.history]
    steps = [b - a for a, b in itertools.pairwise(bits)]
    assert len(set(steps)) == 1
    assert steps[0] == 10 * 8 * plan.algorithm.uplink.compressor.message_bytes(plan.algorithm.work.model.dim)
    seen = [row.gradient_evaluations or 0 for row in run.history]
    assert len({b - a for a, b in itertools.pairwise(seen)}) <= 2  # equal but for rounding


def test_noise_that_does_not_keep_the_target_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(RECIPE)
    monkeypatch.setattr("tacit.algorithms.calibrate.calibrate_noise", lambda *args, **kwargs: 0.5)
    with pytest.raises(RequestError, match="refusing to run with it"):
        calibrate(plan.algorithm, plan.federation, releases=6, privacy=Target(1.0, 1e-5))


def test_sums_are_divided_by_the_expected_number() -> None:
    plan = make_plan(replace(RECIPE, privacy="none", epsilon=None, delta=None).for_algorithm("fedavg"))
    assert plan.algorithm.participation == PoissonClients(10.0)
    assert plan.algorithm.participation.divisor(3) == 10.0
    sizes = [len(plan.algorithm.participation.cohort(50, t, Randomness(0))) for t in range(400)]
    assert len(set(sizes)) > 5
    assert np.mean(sizes) == pytest.approx(10, abs=4.5 * math.sqrt(8 / 400))


def test_an_empty_cohort_is_a_round_like_any_other(tmp_path: Path) -> None:
    recipe = replace(RECIPE, cohort=1, rounds=40)
    assert any(len(PoissonClients(1.0).cohort(50, t, Randomness(0))) == 0 for t in range(40))
    summary = execute(recipe, tmp_path / "run")
    assert summary["epsilon"] <= 4.0
    assert summary["privacy"] == "client"
    header, *rounds = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert header["unit"] == "client"
    # Nobody may know who took part, so every round costs everyone.
    assert all(entry["clients"] == "all" for entry in rounds)
    assert account_run(tmp_path / "run").differences == ()


def test_against_a_server_that_sees_messages_each_carries_its_own_noise() -> None:
    plan = make_plan(RECIPE.with_algorithm_settings(adversary="server"))
    run = tacit.simulate(plan)
    assert run.guarantee is not None
    assert run.guarantee.adversary is Adversary.SERVER
    assert run.calibration.beside == ()
    attended = attendance(plan.algorithm, 50, 6, Randomness(0))
    assert attended == plan.attended
    z = float(run.calibration.noise_multipliers[0])
    assert _reference(1, z, attended.most, "replace-one") == pytest.approx(run.guarantee.epsilon, rel=2e-3)
    assert run.guarantee.epsilon <= 4.0
    central = account_recipe(RECIPE).plan.calibration.noise_multipliers[0]
    assert z > float(central) / math.sqrt(10)


def test_the_signal_to_noise_ratio_is_in_the_history(tmp_path: Path) -> None:
    plan = make_plan(replace(RECIPE, evaluate_every=1))
    ratios = {}
    for name in ("dp-fedavg", "dp-normfedavg"):
        algorithm = make_plan(RECIPE.for_algorithm(name)).algorithm
        run = tacit.simulate(
            tacit.plan(algorithm, plan.federation, rounds=6, privacy=plan.privacy), evaluate_every=1
        )
        assert run.history[0].signal_to_noise is None
        ratios[name] = run.history[1].signal_to_noise
        # From the definition: normalised updates of about 10 of 50 clients over noise of z C sqrt(d).
        assert all(row.signal_to_noise is not None and row.signal_to_noise > 0 for row in run.history.rows[1:])
    assert ratios["dp-normfedavg"] is not None
    assert ratios["dp-fedavg"] is not None
    assert ratios["dp-normfedavg"] >= ratios["dp-fedavg"]
    z = float(run.calibration.noise_multipliers[0])
    assert ratios["dp-normfedavg"] < 20 / (z * math.sqrt(run.algorithm.work.model.dim))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": "record"}, "protects every client"),
        ({"algorithm": "fedavg"}, "adds no noise, so it promises nothing: set privacy = 'none'"),
        ({"algorithm": "mb-sgd", "algorithm.local_steps": None}, "adds no noise"),
        (
            {"algorithm": "noisy-mb-sgd", "algorithm.local_steps": None, "privacy": "client"},
            "protects every record",
        ),
        ({"cohort": 51}, "more than the 50 clients"),
        ({"cohort": "5-9"}, "cohort must be a number"),
        ({"noise": "lattice"}, "no proof"),
        ({"weights": "records"}, "weights need a promise about single messages"),
        ({"epsilon": [1.0] * 49 + [2.0]}, "about all clients together"),
        ({"algorithm.momentum": 1.0}, "momentum must be"),
        ({"algorithm.bound": "normalise"}, "takes no bound; it takes adversary, batch, clip_norm"),
        ({"algorithm.output": "best"}, "unknown output"),
        ({"algorithm.schedule": "linear"}, "schedule must be"),
        ({"algorithm.adversary": "nobody"}, "adversary must be 'sum' or 'server', not 'nobody'"),
    ],
)
def test_what_cannot_be_promised_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_plan(RECIPE.with_settings(changes))


def test_a_bound_of_nothing_promises_nothing() -> None:
    plan = make_plan(replace(RECIPE, privacy="none", epsilon=None, delta=None).for_algorithm("fedavg"))
    with pytest.raises(RequestError, match="bounds no client's influence"):
        calibrate(plan.algorithm, plan.federation, releases=1, privacy=Target(1.0, 1e-5))


@pytest.mark.parametrize("output", ["last", "average", "random"])
def test_outputs(output: str) -> None:
    recipe = replace(RECIPE, rounds=5).with_algorithm_settings(output=output)
    plan = make_plan(recipe)
    points = []
    for rounds in range(1, 6):
        last = make_plan(replace(recipe, rounds=5).with_algorithm_settings(output="last"))
        simulation = Simulation(last, last.randomness(), 2**30)
        state = simulation.start()
        for _ in range(rounds - 1):
            state = simulation.advance(state, simulation.cohort(state.round))
        points.append(last.algorithm.server.broadcast(state.server.update, state.round)["point"])
    run = tacit.simulate(plan)
    if output == "average":
        torch.testing.assert_close(run.parameters, torch.stack(points).double().mean(0).float())
    elif output == "random":
        assert any(torch.equal(run.parameters, point) for point in points)
    else:
        assert not any(torch.equal(run.parameters, point) for point in points)
