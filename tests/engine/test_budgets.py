"""Silos with sizes, budgets and weights of their own: ISRL-DP, appendix H."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tacit
from tacit.algorithms.calibrate import calibrate
from tacit.client.cohort import Cohort
from tacit.engine.account import account_run
from tacit.engine.execute import execute
from tacit.engine.objective import objective
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.round import client_round, client_start
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models import logistic_regression
from tacit.noise.randomness import Randomness
from tacit.privacy import Target
from tacit.privacy.accountant.accounting import epsilon

SIZES = (50, 80, 150, 300, 600, 1200, 2500, 5000)
EPSILONS = (0.5, 1.0, 8.0, 2.0, 4.0, 0.7, 8.0, 3.0)
DELTAS = (1e-4, 1e-5, 1e-5, 1e-6, 1e-5, 1e-7, 1e-8, 1e-6)


@pytest.fixture(scope="module")
def silos() -> Federation:
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(4, generator=generator)
    clients = []
    for size in SIZES:
        features = torch.nn.functional.normalize(torch.randn(size, 4, generator=generator))
        clients.append((features, (features @ direction > 0).long()))
    return Federation.from_clients(clients, classes=2, names=tuple(f"hospital-{k}" for k in range(8)))


def _algorithm(batch: float = 0.2) -> tacit.Algorithm:
    return tacit.ldp_sgd(
        logistic_regression(features=4), bound=tacit.ClipNorm(1.0), sampling=tacit.Poisson(batch), step=0.5
    )


def _poisson_epsilon(rate: float, noise_multiplier: float, rounds: int, delta: float) -> float:
    """By the PLD of dp_accounting, which the calibration does not use: replace-one of Poisson batches."""
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE, 1e-3)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise_multiplier))
    return float(accountant.compose(event, rounds).get_epsilon(delta))


def test_eight_silos_end_at_or_under_their_own_budgets(silos: Federation, tmp_path: Path) -> None:
    targets = tuple(Target(e, d) for e, d in zip(EPSILONS, DELTAS, strict=True))
    run = tacit.simulate(tacit.plan(_algorithm(), silos, rounds=12, privacy=targets), out=tmp_path)
    run.save(tmp_path)
    assert run.guarantee is not None
    for spent, target in zip(run.guarantee.epsilons, targets, strict=True):
        assert 0.99 * target.epsilon < spent <= target.epsilon
    header, *rounds = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert len(rounds) == 12
    for group in header["groups"]:
        (client,) = group["clients"]
        z, delta = group["noise_multiplier"], group["delta"]
        assert (group["epsilon_budget"], delta, group["records"]) == (
            EPSILONS[client],
            DELTAS[client],
            SIZES[client],
        )
        recomputed = _poisson_epsilon(0.2, z, 12, delta)
        assert recomputed <= EPSILONS[client] * 1.002
        assert recomputed > EPSILONS[client] * 0.98
    found = account_run(tmp_path)
    assert found.differences == ()
    assert all(one.epsilon <= one.budget for one in found.spent)
    own = {row["client"]: row for row in run.summary()["clients_own"]}
    assert own["hospital-5"]["epsilon_budget"] == 0.7
    assert own["hospital-5"]["epsilon"] <= 0.7
    assert (
        "0.496 for the best protected one" in run.guarantee.sentence()
        or "best protected" in run.guarantee.sentence()
    )


def test_a_ledger_over_budget_is_told(silos: Federation, tmp_path: Path) -> None:
    targets = tuple(Target(e, 1e-5) for e in EPSILONS)
    tacit.simulate(tacit.plan(_algorithm(), silos, rounds=3, privacy=targets), out=tmp_path)
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
    extra = [json.dumps({"round": t, "clients": [0]}) for t in range(3, 9)]
    (tmp_path / "ledger.jsonl").write_text("\n".join([*lines, *extra]) + "\n")
    (told,) = account_run(tmp_path).differences
    assert told.startswith("client 0: epsilon")
    assert "its budget was 0.5" in told


def test_a_looser_budget_gets_less_noise_and_an_equal_one_the_same(silos: Federation) -> None:
    tight, loose = Target(1.0, 1e-5), Target(4.0, 1e-5)
    mixed = calibrate(_algorithm(), silos, releases=5, privacy=(*[tight] * 4, *[loose] * 4))
    one = calibrate(_algorithm(), silos, releases=5, privacy=tight)
    torch.testing.assert_close(mixed.noise_multipliers[:4], one.noise_multipliers[:4])
    assert bool((mixed.noise_multipliers[4:] < one.noise_multipliers[4:]).all())
    # Equal K_i / n_i: the same rate for every silo, whatever its size.
    assert len({round(float(z), 12) for z in one.noise_multipliers}) == 1
    torch.testing.assert_close(one.noise_stds * torch.tensor(SIZES), one.noise_stds[0].expand(8) * SIZES[0])


@pytest.mark.parametrize("privacy", [[Target(1.0, 1e-5)] * 7, [1.0] * 8, [], 1.0, "record"])
def test_wrong_budgets_are_refused(privacy: object, silos: Federation) -> None:
    with pytest.raises(RequestError, match="privacy must be"):
        calibrate(_algorithm(), silos, releases=5, privacy=privacy)  # type: ignore[arg-type]


def test_targets_must_agree_on_the_neighbours(silos: Federation) -> None:
    targets = [Target(1.0, 1e-5)] * 7 + [Target(1.0, 1e-5, tacit.privacy.Adjacency.ADD_REMOVE)]
    with pytest.raises(RequestError, match="same adjacency"):
        calibrate(_algorithm(), silos, releases=5, privacy=targets)


def test_weights_make_the_weighted_objective(silos: Federation) -> None:
    weighted = silos.weighted("records")
    assert weighted.weights is not None
    assert float(weighted.weights.mean()) == pytest.approx(1.0)
    model, point = logistic_regression(features=4), torch.linspace(-1, 1, 5)
    # p_i = n_i / n: the mean over all records, wherever they are.
    loss, gradient = objective(model, point, weighted)
    assert float(loss) == pytest.approx(float(model.losses(point, silos.batch()).mean()), rel=1e-6)
    algorithm = tacit.ldp_sgd(model, bound=tacit.ClipNorm(9.0), sampling=tacit.Full(), step=0.1)
    cohort = Cohort(weighted, torch.arange(8), 0, Randomness(0))
    state, silent = client_start(algorithm, point, weighted), torch.zeros(8, dtype=torch.float64)
    packets, _ = client_round(algorithm, {"point": point}, cohort, state, silent)
    total = torch.zeros(5)
    packets.add_sum_to(total)
    torch.testing.assert_close(total / 8, gradient.float(), atol=1e-5, rtol=1e-5)
    alone = weighted.client(7)
    assert alone.weights is not None
    assert float(alone.weights[0]) == pytest.approx(float(weighted.weights[7]))
    assert silos.weighted("equal").weights is None


@pytest.mark.parametrize("weights", ["sizes", [1.0] * 7, [0.0] + [1.0] * 7, [float("nan")] + [1.0] * 7])
def test_wrong_weights_are_refused(weights: object, silos: Federation) -> None:
    with pytest.raises(RequestError, match="weights must be"):
        silos.weighted(weights)  # type: ignore[arg-type]


RECIPE = Recipe(
    algorithm="noisy-mb-sgd",
    data="breast-cancer",
    clients=3,
    rounds=3,
    epsilon=[1.0, 2.0, 4.0],
    algorithm_settings={"step": 0.1, "batch": 0.5},
)


def test_a_recipe_has_a_budget_for_each_silo_and_keeps_it_through_toml(tmp_path: Path) -> None:
    recipe = replace(RECIPE, delta={"0": 1e-5, "1": 1e-6, "2": 1e-5}, weights="records")
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    summary = execute(recipe, tmp_path / "run")
    assert [row["epsilon_budget"] for row in summary["clients_own"]] == [1.0, 2.0, 4.0]
    assert [row["delta"] for row in summary["clients_own"]] == [1e-5, 1e-6, 1e-5]
    assert summary["delta"] == 1e-5
    assert account_run(tmp_path / "run").differences == ()
    assert execute(recipe, tmp_path / "run", resume=True) == summary


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": [1.0, 2.0]}, "epsilon has 2 entries, but there are 3 clients"),
        ({"epsilon": {"0": 1.0, "1": 1.0}}, "epsilon has no value for 2"),
        ({"epsilon": {"0": 1.0, "9": 1.0}}, "unknown client in epsilon '9'"),
        ({"epsilon": [1.0, 0.0, 2.0]}, "epsilon must be a finite number above 0"),
        ({"weights": "size"}, "weights must be"),
        ({"weights": [1.0]}, "weights has 1 entries"),
    ],
)
def test_wrong_budgets_of_a_recipe_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_plan(replace(RECIPE, **changes))  # type: ignore[arg-type]


def test_numbers_of_a_list_must_be_numbers() -> None:
    with pytest.raises(RequestError, match="epsilon must be a number for each client"):
        Recipe(epsilon=["much"])  # type: ignore[list-item]


def test_events_of_silos_are_accounted_at_their_own_delta(silos: Federation) -> None:
    targets = tuple(Target(2.0, delta) for delta in DELTAS)
    calibration = calibrate(_algorithm(), silos, releases=7, privacy=targets)
    for position, target in enumerate(targets):
        group = calibration.groups[int(calibration.group_of_client[position])]
        assert epsilon(calibration.event(group, 7), target.delta) <= 2.0
        assert epsilon(calibration.event(group, 7), target.delta / 10) > 2.0


def test_a_silo_with_one_record_keeps_its_budget() -> None:
    generator = torch.Generator().manual_seed(2)
    clients = [(torch.randn(size, 3, generator=generator), torch.arange(size) % 2) for size in (1, 40)]
    federation = Federation.from_clients(clients, classes=2)
    for name in ("noisy-mb-sgd", "accelerated-mb-sgd", "noisy-local-sgd"):
        recipe = replace(
            RECIPE, algorithm=name, data="given", clients=None, epsilon=[1.0, 2.0]
        ).with_algorithm_settings(batch=0.5)
        plan = make_plan(recipe, federation=federation)
        run = tacit.simulate(plan)
        assert run.guarantee is not None
        assert run.guarantee.epsilons[0] <= 1.0
        assert run.guarantee.epsilons[1] <= 2.0
