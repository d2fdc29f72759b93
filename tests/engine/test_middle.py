"""Regressions on arrays that nobody has described: where targets lie is learned privately and charged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit.cli.deploy import _provisioned
from tacit.deploy.job import Job
from tacit.engine.account import account_run
from tacit.engine.audit.releases import PlayedMiddle
from tacit.engine.loaded import load_run
from tacit.engine.middle import UNSEEN, middle_targets, with_middle
from tacit.engine.outlook import outlook
from tacit.engine.plan import Plan, make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models.linear import least_squares
from tacit.planning.choice import choose
from tacit.planning.shape import plan_unseen
from tacit.side.middle import Middle, middle_release
from tacit.sklearn import FederatedEstimator, FederatedRidge

RECIPE = Recipe(algorithm="noisy-mb-sgd", data="custom", epsilon=2.0, rounds=100)


def _records(centre: float, spread: float, records: int = 6000) -> Federation:
    generator = np.random.default_rng(0)
    features = generator.uniform(-1, 1, (records, 4)).astype(np.float32)
    signal = features @ np.array([1.0, -1.0, 0.5, 0.0], dtype=np.float32)
    targets = (centre + spread * (signal + 0.3 * generator.standard_normal(records))).astype(np.float32)
    return Federation.from_arrays(features, targets, np.arange(records) % 3, test=(features, targets))


def _plan(centre: float, spread: float, **changes: Any) -> Plan:
    return make_plan(replace(RECIPE, **changes), federation=_records(centre, spread))


def _r2(plan: Plan) -> float:
    error = tacit.simulate(plan, evaluate_every=plan.rounds).last.test_metric
    assert error is not None
    assert plan.federation.test_targets is not None
    return 1 - (error / float(plan.federation.test_targets.double().std())) ** 2


@pytest.mark.parametrize(("centre", "spread"), [(0.0, 1.0), (2000.0, 10.0), (2e5, 8e4), (0.0, 1e-6)])
@pytest.mark.parametrize("model", ["least-squares", "absolute-regression"])
def test_the_first_run_is_good_wherever_targets_lie(centre: float, spread: float, model: str) -> None:
    """The best linear model has 88% of R2."""
    assert _r2(_plan(centre, spread, model=model)) > 0.8


def test_targets_far_from_zero_that_are_taken_as_they_are_are_not_reached() -> None:
    """What learning is for."""
    assert _r2(_plan(2000.0, 10.0, target_bound=0.0)) < 0.6
    assert _r2(_plan(2e6, 10.0, target_bound=0.0)) < 0


def test_a_model_without_intercept_cannot_start_there_and_gets_a_wider_bound() -> None:
    plan = _plan(10.0, 1.0, model_settings={"intercept": False})
    assert plan.federation.middle is not None
    assert plan.federation.target_bound is not None
    assert plan.federation.target_bound > 10
    assert torch.equal(plan.algorithm.work.model.init(np.random.default_rng(0)), torch.zeros(4))


def test_what_was_learned_is_part_of_the_promise_and_told(tmp_path: Path) -> None:
    learned, given = _plan(50.0, 2.0), _plan(50.0, 2.0, target_bound=60.0)
    assert learned.guarantee is not None
    assert 1.9 < learned.guarantee.epsilon <= 2.0
    noise, less = (float(one.calibration.noise_multipliers[0]) for one in (learned, given))
    assert 1.02 * less < noise < 1.08 * less  # and sizes of features
    run = tacit.simulate(learned, evaluate_every=100)
    run.save(tmp_path)
    told = run.summary()["learned"]
    assert told["epsilon_alone"] > 0.4
    assert abs(told["targets"]["centre"] - 50) < 1
    assert told["sizes"] == [0.5]
    assert not account_run(tmp_path).differences
    rows = _records(50.0, 2.0).features.numpy()
    assert abs(float(np.mean(load_run(tmp_path).predict(rows))) - 50) < 1


def test_a_resolved_recipe_learns_the_same_again() -> None:
    first = _plan(50.0, 2.0)
    assert first.recipe is not None
    assert first.recipe.target_bound == "learn"
    again = make_plan(Recipe.from_toml(first.recipe.to_toml()), federation=_records(50.0, 2.0))
    assert again.federation.middle == first.federation.middle
    assert torch.equal(first.calibration.noise_stds, again.calibration.noise_stds)


@pytest.mark.parametrize(
    "changes",
    [
        {"target_bound": 3.0},
        {"target_bound": 0.0},
        {"algorithm_settings": {"clip_norm": 1.0}},
        {"settings_from": "theory"},
        {"noise": "lattice"},
        {"client_epsilon": 4.0},
        {"algorithm": "dp-fedavg", "privacy": "client"},
        {"algorithm": "shuffled-mb-sgd"},
    ],
)
def test_nothing_is_learned_where_targets_are_known_or_nothing_can_be_charged(changes: dict[str, Any]) -> None:
    recipe, federation = with_middle(replace(RECIPE, **changes), _records(0.0, 1.0))
    assert recipe.target_bound != "learn"
    assert (federation.charged, federation.middle) == (None, None)


def test_with_few_records_nothing_is_released_and_the_assumption_is_told() -> None:
    plan = make_plan(RECIPE, federation=_records(50.0, 2.0, records=300))
    assert plan.recipe is not None
    assert plan.recipe.target_bound is None
    assert plan.federation.middle is None
    ahead = outlook(plan)
    assert ahead is not None
    assert "target_bound" in ahead.sentence


def test_without_privacy_it_costs_nothing() -> None:
    recipe = Recipe(algorithm="mb-sgd", data="custom", privacy="none", epsilon=None, delta=None, rounds=100)
    plan = make_plan(recipe, federation=_records(2000.0, 10.0))
    assert plan.guarantee is None
    assert plan.federation.charged is None
    assert _r2(plan) > 0.85


def test_refused_where_it_cannot_be_charged_or_means_nothing() -> None:
    with pytest.raises(RequestError, match="another release"):
        _plan(0.0, 1.0, noise="lattice", target_bound="learn")
    with pytest.raises(RequestError, match="regressions on arrays"):
        make_plan(Recipe(target_bound="learn"), federation=tacit.load("digits", clients=3))
    with pytest.raises(RequestError, match="accounted per record"):
        _plan(0.0, 1.0, algorithm="dp-fedavg", privacy="client", target_bound="learn")
    with pytest.raises(RequestError, match="models with a name"):
        make_plan(
            replace(RECIPE, target_bound="learn"),
            federation=_records(0.0, 1.0),
            model=least_squares(features=4),
        )
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(RequestError, match="target_bound must be a finite number of at least 0"):
            Recipe(target_bound=wrong)
    with pytest.raises(RequestError, match="target_bound must be 'learn' or a number"):
        Recipe(target_bound="guess")  # type: ignore[arg-type]
    sites = ["a", "b", "c"]
    learns = _plan(0.0, 1.0, data_settings={"features": "sizes:0.5"})
    with pytest.raises(RequestError, match="give a public bound on the absolute"):
        Job.from_plan(learns, sites)


def test_what_was_read_without_privacy_is_refused_under_a_promise() -> None:
    none = Recipe(algorithm="mb-sgd", data="custom", privacy="none", epsilon=None, delta=None, rounds=100)
    seen = make_plan(replace(none, feature_norm=2.0), federation=_records(2000.0, 10.0)).federation
    private = replace(RECIPE, feature_norm=2.0)
    for noise in ("gaussian", "lattice"):
        with pytest.raises(RequestError, match="nothing was charged for it"):
            make_plan(replace(private, noise=noise), federation=seen)
    with pytest.raises(RequestError, match="nothing was charged for it"):
        make_plan(RECIPE, federation=replace(seen, feature_norm=None))  # learning sizes is charged, but not this
    with pytest.raises(RequestError, match="nothing was charged for it"):
        make_plan(private, federation=replace(_records(0.0, 1.0), middle=Middle(0.0, 1.0)))


def test_records_that_are_planned_twice_are_charged_once_and_the_recipe_says_so() -> None:
    first = _plan(50.0, 2.0, feature_norm=2.0)
    second = make_plan(replace(RECIPE, feature_norm=2.0), federation=first.federation)
    assert second.recipe == first.recipe
    assert torch.equal(first.calibration.noise_multipliers, second.calibration.noise_multipliers)
    with pytest.raises(RequestError, match="give a public bound on the absolute"):
        Job.from_plan(second, ["a", "b", "c"])


def test_a_recipe_of_a_run_suits_other_records_too() -> None:
    """Its clip norm would be in the unit of the first run's targets."""
    first = _plan(2000.0, 10.0)
    assert first.recipe is not None
    assert _r2(make_plan(first.recipe, federation=_records(0.0, 0.001))) > 0.8
    asked = make_plan(
        replace(RECIPE, target_bound="learn", algorithm_settings={"clip_norm": 3.0}),
        federation=_records(50.0, 2.0),
    )
    assert asked.recipe is not None
    assert asked.recipe.algorithm_settings["clip_norm"] == 3.0


def test_no_theory_takes_what_was_learned_for_a_bound_on_all_targets() -> None:
    for bound in ("learn", 0.0):
        recipe = replace(RECIPE, target_bound=bound, settings_from="theory", rounds=5)  # type: ignore[arg-type]
        plan = make_plan(
            recipe.with_algorithm_settings(projection="ball:10").with_settings({"feature_norm": 2.0}),
            federation=_records(2e5, 8e4),
        )
        assert plan.recipe is not None
        assert "step" not in plan.recipe.algorithm_settings


def test_zero_means_that_nothing_is_known() -> None:
    recipe = replace(RECIPE, target_bound=0.0, rounds=20)
    best = choose(recipe, algorithms=["noisy-mb-sgd"], trials=1, federation=_records(0.0, 1.0, 1500))[0]
    assert best.score is not None


def test_an_audit_plays_what_was_released_before_records_were_held_back(tmp_path: Path) -> None:
    held = _records(50.0, 2.0, records=2100)
    asked = {"evaluation.held_back": 0.4, "evaluation.loss_bound": 1.0}
    plan = make_plan(RECIPE.with_settings(asked), federation=held)
    planned = middle_release(held, targets=middle_targets(plan.privacy), seed=0)  # type: ignore[arg-type]
    played = PlayedMiddle.planned(plan, 0)
    assert planned is not None
    assert played is not None
    assert (played.target, played.halvings) == (planned.target, planned.releases)


def test_a_penalty_does_not_pull_the_model_from_where_it_started() -> None:
    held = _records(2000.0, 10.0)
    X, y, who = held.features.numpy(), held.targets.numpy(), np.arange(held.records) % 3
    model = FederatedRidge(epsilon=2, alpha=0.01, random_state=0).fit(X, y, clients=who)
    assert model.score(X, y) > 0.8


def test_sizes_that_are_only_assumed_are_told_beside_targets_that_are_learned() -> None:
    ahead = outlook(_plan(50.0, 2.0, data_settings={"features": "given"}))
    assert ahead is not None
    assert "features of about size 1" in ahead.sentence
    assert "target" not in ahead.sentence


def test_planning_charges_the_release_and_looks_at_no_record() -> None:
    seen, unseen = _plan(50.0, 2.0), plan_unseen(RECIPE, _records(-3.0, 1000.0))
    assert unseen.federation.middle == UNSEEN
    assert torch.equal(seen.calibration.noise_multipliers, unseen.calibration.noise_multipliers)
    assert unseen.recipe is not None
    assert "clip_norm" not in unseen.recipe.algorithm_settings  # it would be for targets of another size


def test_a_choice_leaves_the_clip_norm_to_the_run() -> None:
    best = choose(RECIPE, algorithms=["noisy-mb-sgd"], trials=2, federation=_records(50.0, 2.0))[0]
    assert best.recipe.target_bound == "learn"
    assert "clip_norm" not in best.recipe.algorithm_settings
    assert _r2(make_plan(best.recipe, federation=_records(50.0, 2.0))) > 0.8


@pytest.mark.parametrize("random_state", [0, None])
def test_estimators_learn_it_once(random_state: int | None) -> None:
    held = _records(2000.0, 10.0)
    X, y, who = held.features.numpy(), held.targets.numpy(), np.arange(held.records) % 3
    for estimator in (
        FederatedRidge(epsilon=2, random_state=random_state),
        FederatedEstimator("regression", epsilon=2, random_state=random_state),
    ):
        assert estimator.fit(X, y, clients=who).score(X, y) > 0.8
        assert estimator.guarantee_.epsilon <= 2


def test_a_deployment_on_one_machine_takes_arrays_as_they_are(tmp_path: Path) -> None:
    """With seeded noise, too, with which a simulation would learn where targets lie."""
    held, files = _records(2000.0, 10.0), []
    for client in range(3):
        own = held.client(client)
        files.append(tmp_path / f"{client}.npz")
        np.savez(files[-1], X=own.features.numpy(), y=own.targets.numpy())
    recipe = replace(RECIPE, data=",".join(map(str, files)), rounds=3)
    party, _ = _provisioned(recipe, tmp_path / "out", None, 0, None)
    assert party.job.recipe.target_bound == 0.0
    assert party.job.blank().target_bound is None
    with pytest.raises(RequestError, match="give a public bound on the absolute"):
        _provisioned(replace(recipe, target_bound="learn"), tmp_path / "other", None, 0, None)
