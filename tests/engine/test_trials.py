"""Races on synthetic records: shared seeds, those far behind drop out, and no more work than the budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tacit.engine.recipe import Recipe
from tacit.errors import DivergedError
from tacit.planning import trials
from tacit.planning.rehearsal import worlds_like
from tacit.planning.shape import plan_unseen, records_of_shape
from tacit.planning.trials import FAR_BEHIND, REPEATS, lag, race, work_of

SHAPE = records_of_shape(clients=3, records=50, features=4, classes=2)
RECIPE = Recipe(data="x", algorithm="noisy-mb-sgd", epsilon=8.0, rounds=3, feature_norm=1.0)
WORLDS = tuple(worlds_like(SHAPE, 1.0, seed=0))


def test_scores_are_those_of_runs_on_both_worlds() -> None:
    (scores,) = race([RECIPE], WORLDS)
    assert scores is not None
    assert len(scores) == 2 * REPEATS
    assert all(0 <= score <= 1 for score in scores)
    assert race([RECIPE], WORLDS) == [scores]


def test_the_budget_ends_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    once = sum(work_of(plan_unseen(RECIPE, world)) for world in WORLDS)
    monkeypatch.setattr(trials, "_score", lambda _: 0.5)
    assert race([RECIPE], WORLDS, 0.9 * once) == [()]
    assert race([RECIPE, RECIPE], WORLDS, 1.5 * once) == [(0.5, 0.5), ()]
    assert race([RECIPE, RECIPE], WORLDS, 3.5 * once) == [(0.5,) * 4, (0.5,) * 2]


def test_those_far_behind_drop_out_and_what_diverges_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {3: 0.9, 4: 0.9 - 2 * FAR_BEHIND, 5: 0.9 - FAR_BEHIND / 2}

    def score(plan: object) -> float:
        rounds = plan.rounds  # type: ignore[attr-defined]
        if rounds == 6:
            raise DivergedError("far away")
        return results[rounds]

    monkeypatch.setattr(trials, "_score", score)
    found = race([replace(RECIPE, rounds=rounds) for rounds in (3, 4, 5, 6)], WORLDS)
    assert [scores and len(scores) for scores in found] == [2 * REPEATS, 2, 2 * REPEATS, None]


def test_a_regression_is_scored_in_units_of_its_spread() -> None:
    shape = records_of_shape(clients=3, records=300, features=4, classes=None)
    recipe = replace(RECIPE, rounds=20, target_bound=1000.0)
    (scores,) = race([recipe], tuple(worlds_like(shape, 1.0, seed=0, target_bound=1000.0)))
    assert scores is not None
    assert all(-1.5 < score < 0.6 for score in scores)


def test_a_lag_is_measured_on_the_trials_that_both_had() -> None:
    assert lag((0.5, 0.6), (0.6, 0.7, 0.1)) == pytest.approx((0.1, 0.0))
    assert lag((0.5, 0.6), (0.5, 0.8)) == pytest.approx((0.1, 0.1))
    assert lag((0.5,), (0.6,)) == pytest.approx((0.1, 0.0))


def test_work_grows_with_rounds_records_and_local_steps() -> None:
    few = work_of(plan_unseen(RECIPE, SHAPE))
    assert work_of(plan_unseen(replace(RECIPE, rounds=6), SHAPE)) == pytest.approx(2 * few)
    larger = records_of_shape(clients=3, records=500_000, features=4, classes=2)
    full = RECIPE.with_algorithm_settings(sampling="full")
    assert work_of(plan_unseen(full, larger)) > 10 * few
    local = RECIPE.for_algorithm("noisy-local-sgd").with_algorithm_settings(local_steps=7)
    assert work_of(plan_unseen(local, SHAPE)) == pytest.approx(7 * few, rel=0.1)
