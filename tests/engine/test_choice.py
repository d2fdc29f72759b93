"""Choosing a recipe: every candidate keeps the promise, none looks at a record, and the first is good."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tacit
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.planning import choice
from tacit.planning.choice import Candidate, _ranked, choose, command
from tacit.planning.rehearsal import synthetic_like
from tacit.planning.shape import records_of_shape

RECIPE = Recipe(data="breast-cancer", clients=5, epsilon=4.0)
SHORT = replace(RECIPE, rounds=10)
TWO = ("noisy-mb-sgd", "soteriafl-gd")


def test_every_candidate_is_written_out_and_keeps_the_promise() -> None:
    found = choose(replace(RECIPE, rounds=40), algorithms=TWO, trials=3)
    assert [c.score is not None for c in found[:4]] == [True, True, True, False]
    scores = [c.score for c in found if c.score is not None]
    behind = [score for score in scores if score < max(scores) - choice.ABOUT_EQUAL]
    assert scores[len(scores) - len(behind) :] == sorted(behind, reverse=True)
    alike = [c.excess for c in found[: len(scores) - len(behind)]]
    assert alike == sorted(alike)
    losses = [c.excess for c in found if c.score is None]
    assert losses == sorted(losses)
    assert {c.recipe.algorithm for c in found} == set(TWO)
    for candidate in (found[0], found[-1]):
        plan = make_plan(candidate.recipe)
        assert plan.recipe == candidate.recipe
        assert plan.guarantee is not None
        assert plan.guarantee.epsilon <= 4.0
        run = tacit.simulate(plan, evaluate_every=plan.rounds)
        assert run.last.uplink_bits_per_client == candidate.uplink_bits_per_client


def test_the_choice_does_not_depend_on_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("no data are at hand")

    real = tacit.load("breast-cancer", clients=5)
    other = replace(real, features=torch.rand_like(real.features) * 50, targets=real.targets.flip(0) * 0)
    by_data = choose(SHORT, algorithms=TWO, trials=2, federation=real)
    monkeypatch.setattr(choice, "load_federation", refuse)
    assert choose(SHORT, algorithms=TWO, trials=2, federation=other) == by_data
    shape = records_of_shape(clients=5, records=91, features=30, classes=2)
    assert choose(SHORT, algorithms=TWO, trials=2, federation=shape) == by_data


def test_what_is_given_is_kept() -> None:
    given = replace(RECIPE, rounds=20).with_algorithm_settings(clip_norm=0.5, compressor="natural")
    for candidate in choose(given, algorithms=TWO, trials=8):
        assert candidate.recipe.rounds == 20
        assert candidate.recipe.algorithm_settings["clip_norm"] == 0.5
        assert candidate.recipe.algorithm_settings.get("compressor", "natural") == "natural"


def test_models_are_chosen_together_with_the_rest() -> None:
    found = choose(SHORT, algorithms=["noisy-mb-sgd"], models=["logistic", "svm"], trials=2)
    assert {c.recipe.model for c in found[:2]} == {"logistic", "svm"}


def test_a_bit_budget_is_kept() -> None:
    found = choose(RECIPE, algorithms=TWO, trials=0, bit_budget=1e5)
    assert 0 < max(c.uplink_bits_per_client for c in found) <= 1e5
    with pytest.raises(RequestError, match="bit_budget = 10 bits"):
        choose(RECIPE, algorithms=TWO, trials=0, bit_budget=10)


def test_what_cannot_be_chosen_is_refused() -> None:
    with pytest.raises(RequestError, match="without a promise"):
        choose(replace(RECIPE, privacy="none", epsilon=None, delta=None))
    with pytest.raises(RequestError, match=r"no candidate fits this recipe: .*two classes"):
        choose(replace(RECIPE, data="digits", model="logistic"), algorithms=["ldp-sgd"], trials=0)


def test_the_command_spells_the_recipe_out() -> None:
    recipe = Recipe(
        data="digits", algorithm="soteriafl-sgd", epsilon=[1.0, 2.0], clients=2, weights={"a": 1, "b": 2}
    )
    line = command(recipe.with_algorithm_settings(clip_norm=0.5, sampling="poisson", batch=0.1))
    assert line == (
        "tacit run --data digits --algorithm soteriafl-sgd --clients 2 --set 'epsilon=[1.0, 2.0]' "
        """--set 'weights={"a" = 1.0, "b" = 2.0}' --clip-norm 0.5 --set algorithm.sampling=poisson --batch 0.1"""
    )


def test_synthetic_records_have_the_same_shape() -> None:
    real = tacit.load("digits", clients=5, unit_norm=True)
    made = synthetic_like(real, 1.0, seed=0)
    assert (made.sizes == real.sizes).all()
    assert made.feature_shape == real.feature_shape
    assert made.classes == real.classes
    assert float((made.features.norm(dim=1) - 1).abs().max()) < 1e-5


def test_trials_that_chance_may_explain_leave_the_order_to_predictions() -> None:
    recipe = Recipe(algorithm="noisy-mb-sgd")
    noisier, quieter, local = (
        Candidate(recipe, 2.0, 1, score=0.80),
        Candidate(recipe, 1.0, 1, score=0.77),
        Candidate(recipe.with_algorithm_settings(local_steps=5), 0.5, 1, score=0.79),
    )
    scored = [quieter, local, noisier]
    assert _ranked(scored, 0.04, smaller_is_better=False) == [quieter, noisier, local]
    assert _ranked(scored, 0.0, smaller_is_better=False) == [noisier, local, quieter]
