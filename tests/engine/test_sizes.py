"""Arrays that nobody has described are divided by sizes that are learned privately and charged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit.deploy.job import Job
from tacit.engine.loaded import load_run
from tacit.engine.outlook import outlook
from tacit.engine.plan import Plan, make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.sizes import with_sizes
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.planning.shape import plan_unseen
from tacit.sklearn import FederatedLogisticRegression

RECIPE = Recipe(algorithm="noisy-mb-sgd", data="custom", epsilon=2.0, rounds=40)


def _records(size: float, records: int = 3000) -> Federation:
    generator = np.random.default_rng(0)
    features = generator.standard_normal((records, 5)).astype(np.float32)
    targets = (features @ [1.0, -1.0, 0.5, 0.0, 2.0] > 0).astype(int)
    held = features * size
    return Federation.from_arrays(held, targets, np.arange(records) % 3, test=(held, targets))


def _plan(size: float, **changes: Any) -> Plan:
    return make_plan(replace(RECIPE, **changes), federation=_records(size))


@pytest.mark.parametrize("size", [0.005, 1.0, 300.0])
def test_the_first_run_is_good_whatever_the_size_of_features(size: float) -> None:
    run = tacit.simulate(_plan(size), evaluate_every=40)
    assert run.last.test_metric is not None
    assert run.last.test_metric > 0.93


def test_small_features_as_they_are_given_hide_behind_the_intercept() -> None:
    """What learning is for; and the result is explained."""
    run = tacit.simulate(_plan(0.005, data_settings={"features": "given"}), evaluate_every=40)
    assert run.last.test_metric is not None
    assert run.last.test_metric < 0.9
    assert any("sizes:0.005" in one["change"] for one in run.summary()["findings"])
    named = tacit.simulate(_plan(0.005, data_settings={"features": "sizes:0.005"}), evaluate_every=40)
    assert named.last.test_metric is not None
    assert named.last.test_metric > 0.93


def test_what_was_learned_is_part_of_the_promise_and_told() -> None:
    learned, given = _plan(0.005), _plan(0.005, data_settings={"features": "given"})
    assert learned.guarantee is not None
    assert given.guarantee is not None
    assert 1.9 < learned.guarantee.epsilon <= 2.0
    noise, less = (float(one.calibration.noise_multipliers[0]) for one in (learned, given))
    assert 1.01 * less < noise < 1.04 * less
    told = tacit.simulate(learned, evaluate_every=40).summary()["learned"]
    assert 0.35 < told["epsilon_alone"] <= 0.4
    assert len(told["sizes"]) == 1  # all five columns are alike
    assert max(told["sizes"]) < 0.02


def test_a_resolved_recipe_learns_the_same_again() -> None:
    """It has a clip norm by then, which alone would mean that sizes are known."""
    first = _plan(0.005)
    assert first.recipe is not None
    assert first.recipe.data_settings["features"] == "learn"
    again = make_plan(first.recipe, federation=_records(0.005))
    assert torch.equal(first.federation.features, again.federation.features)
    assert torch.equal(first.calibration.noise_stds, again.calibration.noise_stds)


@pytest.mark.parametrize(
    "changes",
    [
        {"feature_norm": 1.0},
        {"algorithm_settings": {"clip_norm": 1.0}},
        {"settings_from": "theory"},
        {"noise": "lattice"},
        {"client_epsilon": 4.0},
        {"algorithm": "dp-fedavg", "privacy": "client"},
        {"algorithm": "shuffled-mb-sgd", "noise": "gaussian"},
    ],
)
def test_nothing_is_learned_where_a_size_is_known_or_nothing_can_be_charged(changes: dict[str, Any]) -> None:
    recipe, federation = with_sizes(replace(RECIPE, **changes), _records(0.005))
    assert "features" not in recipe.data_settings
    assert federation.charged is None


def test_named_data_sets_are_prepared() -> None:
    recipe, federation = with_sizes(Recipe(data="digits"), tacit.load("digits", clients=3))
    assert federation.charged is None
    assert "features" not in recipe.data_settings


def test_secret_noise_is_drawn_once_only() -> None:
    asked = replace(RECIPE, noise="lattice", data_settings={"features": "learn"})
    with pytest.raises(RequestError, match="another release"):
        make_plan(asked, federation=_records(0.005))


def test_with_few_records_nothing_is_released_and_the_assumption_is_told() -> None:
    for noise in ("gaussian", "lattice"):
        few = replace(RECIPE, noise=noise), _records(0.005, records=60)
        plan = make_plan(*with_sizes(*few, once=True)[:1], federation=few[1])
        assert plan.recipe is not None
        assert plan.recipe.data_settings["features"] == "given"
        assert plan.federation.charged is None
        ahead = outlook(plan)
        assert ahead is not None
        assert "data.features=sizes:SIZE" in ahead.sentence


def test_planning_charges_the_release_and_looks_at_no_record() -> None:
    seen, unseen = _plan(0.005), plan_unseen(RECIPE, _records(7.0))
    assert unseen.federation.features_by is None
    assert torch.equal(seen.calibration.noise_stds, unseen.calibration.noise_stds)


def test_estimators_learn_sizes_and_return_coefficients_of_features_as_they_were_given() -> None:
    held = _records(0.005)
    X, y = held.features.numpy(), held.targets.numpy()
    for random_state in (0, None):
        model = FederatedLogisticRegression(epsilon=2, random_state=random_state, rounds=40)
        assert model.fit(X, y, clients=np.arange(len(y)) % 3).score(X, y) > 0.93
        assert np.abs(model.coef_).max() > 100
        assert model.guarantee_.epsilon <= 2


def test_a_saved_run_predicts_for_records_as_they_were_given(tmp_path: Any) -> None:
    run = tacit.simulate(_plan(0.005), evaluate_every=40)
    run.save(tmp_path)
    loaded, rows = load_run(tmp_path), _records(0.005).features.numpy()
    assert (loaded.predict(rows) == loaded.to_sklearn().predict(rows)).all()
    scores = (
        rows @ loaded.coefficients["coefficient"].to_numpy()[:-1] + loaded.coefficients["coefficient"].iloc[-1]
    )
    assert ((scores > 0) == loaded.predict(rows)).mean() > 0.999
    assert float(np.mean(loaded.predict(rows) == _records(0.005).targets.numpy())) > 0.93


def test_a_job_needs_sizes_that_are_given() -> None:
    """Silos take arrays as they are, with the same settings as a simulation of them."""
    sites = ["a", "b", "c"]
    with pytest.raises(RequestError, match="silos take arrays as they are"):
        Job.from_plan(_plan(0.005), sites)
    given = _plan(0.005, data_settings={"features": "sizes:0.005"})
    assert Job.from_plan(given, sites).recipe == given.recipe
