"""Choosing a recipe: every candidate keeps the promise, none looks at a record, and the first is good."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.cli import app
from tacit.data.schema import Column, Predicted, Schema
from tacit.engine.account import account_recipe
from tacit.engine.evaluation import scoring_of
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe, parse_setting
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.planning import choice
from tacit.planning.choice import Candidate, _ranked, _varied, _worth_trying, choose
from tacit.planning.command import command
from tacit.planning.needs import Need, noise_needs
from tacit.planning.rehearsal import synthetic_like, worlds_like
from tacit.planning.shape import records_of_shape
from tacit.planning.trusts import what_trust_buys
from tacit.side.release import NoisyMeans

RECIPE = Recipe(data="breast-cancer", clients=5, epsilon=4.0)
SHORT = replace(RECIPE, rounds=10)
TWO = ("noisy-mb-sgd", "soteriafl-gd")


def test_every_candidate_is_written_out_and_keeps_the_promise() -> None:
    found = choose(replace(RECIPE, rounds=40), algorithms=TWO, trials=3)
    scores = [c.score for c in found if c.score is not None]
    assert len(scores) == 3
    assert [c.score for c in found[:3]] == scores
    assert max(scores) - scores[0] < 0.1
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


def test_worlds_are_of_the_same_shape_and_are_tested_on_records_of_their_own() -> None:
    real = tacit.load("digits", clients=5)
    one, other = worlds_like(real, 2.0, seed=0)
    again, _ = worlds_like(real, 2.0, seed=0)
    assert torch.equal(one.features, again.features)
    assert not torch.equal(one.features, other.features)
    for world in (one, other):
        assert (world.sizes == real.sizes).all()
        assert world.feature_shape == real.feature_shape
        assert world.classes == real.classes
        assert set(world.targets.tolist()) == set(range(10))
        assert float((world.features.norm(dim=1) - 2).abs().max()) < 1e-4
        assert world.test_features is not None
        assert not (world.test_features[:, None, :8] == world.features[None, :200, :8]).all(dim=2).any()


def test_regressions_are_rehearsed_with_noise_and_once_with_a_long_tail() -> None:
    """Without noise on targets, the shortest clip norm seems best: nothing is left to clip."""
    shape = records_of_shape(clients=2, records=2000, features=5, classes=None)
    plain, long_tailed = worlds_like(shape, 1.0, seed=0, target_bound=300.0)
    for world in (plain, long_tailed):
        assert (world.targets >= 0).all()
        assert (world.targets <= 300).all()
        inputs = torch.cat([world.features, torch.ones(4000, 1)], dim=1)
        residuals = world.targets - inputs @ torch.linalg.lstsq(inputs, world.targets[:, None]).solution[:, 0]
        assert 0.3 < float(residuals.var() / world.targets.var()) < 0.8
    assert abs(float(plain.targets.mean() - plain.targets.median())) < 10
    assert float(long_tailed.targets.mean()) > 1.1 * float(long_tailed.targets.median())
    unbounded, _ = worlds_like(shape, 1.0, seed=0)
    assert float(unbounded.targets.std()) == pytest.approx(1.0, rel=0.05)


def test_no_other_clip_norm_is_much_better_on_records_unlike_those_of_trials() -> None:
    """Risks that multiply a cost, few records, and a bound that is half as large again as the largest cost."""
    rng = np.random.default_rng(0)
    risks = (rng.random((2800, 12)) < 0.3).astype(float)
    costs = np.exp(7 + risks @ rng.uniform(0, 0.5, size=12) + 0.4 * rng.normal(size=2800))
    federation = Federation.from_arrays(
        risks[:800], costs[:800], np.arange(800) % 5, test=(risks[800:], costs[800:])
    )
    recipe = Recipe(epsilon=4.0, rounds=60, target_bound=25_000.0, data_settings={"features": "given"})
    tried = choose(recipe, algorithms=["noisy-mb-sgd"], trials=3, federation=federation)[:3]

    def error(candidate: Candidate) -> float:
        runs = [
            tacit.simulate(
                make_plan(replace(candidate.recipe, seed=seed), federation=federation), evaluate_every=60
            )
            for seed in (1, 2)
        ]
        return mean(run.last.test_metric or 0.0 for run in runs)

    assert len({one.recipe.algorithm_settings["clip_norm"] for one in tried}) == 3
    assert error(tried[0]) <= min(map(error, tried)) + 0.02 * float(costs.std())


def _made(score_of: str = "noisy-mb-sgd", excess: float = 1.0, **settings: object) -> Candidate:
    return Candidate(Recipe(algorithm=score_of, algorithm_settings=dict(settings)), excess, 1, 1.0)


def test_what_chance_may_explain_is_left_at_the_defaults() -> None:
    default, noisier = _made(), _made(excess=2.0)
    local, wide = _made(local_steps=5), replace(_made(clip_norm=9.0), varied=True)
    trials = [(wide, (0.8, 0.7)), (local, (0.79, 0.75)), (noisier, (0.8, 0.7)), (default, (0.75, 0.74))]
    order = [candidate.recipe for candidate in _ranked(trials)]
    assert order == [candidate.recipe for candidate in (default, noisier, wide, local)]


def test_what_is_better_in_every_trial_comes_first() -> None:
    default, wide = _made(), replace(_made(clip_norm=9.0), varied=True)
    ranked = _ranked([(default, (0.60, 0.90)), (wide, (0.63, 0.931))])
    assert [candidate.recipe for candidate in ranked] == [wide.recipe, default.recipe]
    # A point is no reason to leave the defaults.
    assert _ranked([(default, (0.60, 0.90)), (wide, (0.605, 0.909))])[0].recipe == default.recipe


def test_clip_norm_and_rounds_are_varied_together_unless_given() -> None:
    lead = replace(_made(clip_norm=0.3), uplink_bits_per_client=900)
    lead = replace(lead, recipe=replace(lead.recipe, rounds=90))

    def tried(given: Recipe) -> set[tuple[int | None, float]]:
        found = list(_varied(lead, given))
        assert all(one.varied and one.uplink_bits_per_client == 10 * (one.recipe.rounds or 0) for one in found)
        return {(one.recipe.rounds, round(one.recipe.algorithm_settings["clip_norm"], 3)) for one in found}

    assert tried(Recipe()) == {(90, 0.9), (90, 0.1), (30, 0.9), (30, 0.1), (30, 0.3)}
    assert tried(Recipe(rounds=90)) == {(90, 0.9), (90, 0.1)}
    assert tried(Recipe(algorithm_settings={"clip_norm": 0.3})) == {(30, 0.3)}


def test_every_model_is_tried_before_anything_is_varied() -> None:
    found = choose(SHORT, algorithms=TWO, models=["logistic", "svm"], trials=0)
    first = _worth_trying(found, SHORT)
    assert {candidate.recipe.model for candidate in first[:2]} == {"logistic", "svm"}
    assert not any(candidate.varied for candidate in first[:2])


def test_candidates_that_no_trial_can_tell_apart_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    raced: list[Recipe] = []

    def race(recipes: list[Recipe], worlds: object) -> list[tuple[float, ...]]:
        raced.extend(recipes)
        return [(0.5, 0.5)] * len(recipes)

    monkeypatch.setattr(choice, "race", race)
    given = SHORT.with_algorithm_settings(clip_norm=0.5, sampling="poisson", batch=0.1, compressor="identity")
    found = choose(given, algorithms=("noisy-mb-sgd", "soteriafl-sgd", "accelerated-mb-sgd"))
    assert sorted(recipe.algorithm for recipe in raced) == ["accelerated-mb-sgd", "noisy-mb-sgd"]
    assert all(candidate.score == 0.5 for candidate in found)


def test_whole_clients_have_algorithms_of_their_own() -> None:
    found = choose(replace(SHORT, clients=20, privacy="client"), trials=0)
    assert {candidate.recipe.algorithm for candidate in found} == set(choice.FOR_CLIENTS)


def test_a_given_step_is_refused() -> None:
    with pytest.raises(RequestError, match="leave out --step"):
        choose(SHORT.with_algorithm_settings(step=1.0), trials=0)


def test_the_command_reads_back_as_the_recipe_that_it_was_made_from() -> None:
    recipe = Recipe(data="own.csv", data_settings={"target": "2024", "client": "site", "public_schema": True})
    words = shlex.split(command(recipe.with_algorithm_settings(sampling="poisson", batch=1.0, clip_norm=0.1)))
    assert words[words.index("--batch") + 1] == "1"
    settings = [parse_setting(word) for before, word in pairwise(words) if before == "--set"]
    own = {name: value for name, value in settings if name.startswith("data.")}
    assert own == {"data.target": "2024", "data.client": "site", "data.public_schema": True}


def test_a_bound_that_only_records_can_tell_is_not_planned() -> None:
    # The noise in a plan tells the clip norm: that would be a release which nobody charges.
    recipe = replace(SHORT, algorithm="fed-spa").with_algorithm_settings(bound_from="quantile:0.1")
    for planned in (choose, noise_needs):
        with pytest.raises(RequestError, match="only a run charges"):
            planned(recipe, algorithms=["fed-spa"])
    rows = what_trust_buys(recipe, algorithm="fed-spa")
    assert any("only a run charges" in (row.refused or "") for row in rows)


@pytest.mark.parametrize("learned", ["ranges", "sizes"])
def test_what_only_tells_about_a_recipe_makes_no_release(
    learned: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only a run charges it. Whether limits of groups fit a range, for example, would tell the range.
    rng = np.random.default_rng(0)
    dose, site = rng.normal(200, 20, 6000), np.repeat(["a", "b", "c"], 2000)
    if learned == "ranges":
        ill = np.where(dose > 200, "yes", "no")
        pd.DataFrame({"dose": dose, "site": site, "ill": ill}).to_csv(tmp_path / "t.csv", index=False)
        column = Column("dose", "number", "mg", within=(0, 10_000))
        schema = Schema(Predicted("ill", "binary", classes=("no", "yes")), (column,), client="site")
        (tmp_path / "s.toml").write_text(schema.to_toml())
        recipe = Recipe(data=str(tmp_path / "t.csv"), data_settings={"schema": str(tmp_path / "s.toml")})
    else:
        np.savez(tmp_path / "t.npz", X=dose[:, None], y=dose > 200, site=site)
        recipe = Recipe(data=str(tmp_path / "t.npz"), data_settings={"client": "site"})
    recipe = replace(recipe, algorithm="noisy-mb-sgd", clients=None, epsilon=4.0, rounds=5)
    run = make_plan(recipe)
    assert run.federation.charged is not None

    def release(*_: object) -> None:
        raise AssertionError("a release that nobody charges")

    monkeypatch.setattr(NoisyMeans, "messages", release)
    account = account_recipe(recipe)
    assert account.plan.calibration.noise_multipliers.tolist() == run.calibration.noise_multipliers.tolist()
    needs = noise_needs(recipe, algorithms=["noisy-mb-sgd"]).planned[0]
    assert isinstance(needs, Need)
    assert needs.noise_multiplier == float(run.calibration.noise_multipliers[0])
    choose(recipe, algorithms=["noisy-mb-sgd"], trials=0)
    what_trust_buys(recipe, algorithm="noisy-mb-sgd")
    path = tmp_path / "r.toml"
    path.write_text(recipe.to_toml())
    monkeypatch.setattr(sys, "argv", ["tacit", "theory", str(path), "--json"])
    with pytest.raises(SystemExit, match="0"):
        app.main()


def test_no_groups_by_a_learned_range() -> None:
    column = Column("dose", "number", within=(0, 10_000))
    schema = Schema(Predicted("ill", "binary", classes=("no", "yes")), (column,), client="site")
    records = records_of_shape(clients=2, records=5, features=1, classes=2)
    for known in (schema, schema.closed({"dose": (100.0, 300.0)})):
        with pytest.raises(RequestError, match="has an open range"):
            scoring_of({"group": "dose", "group_edges": [400, 500]}, replace(records, schema=known))


@pytest.mark.parametrize("privacy", [None, "client"])
def test_sizes_that_are_protected_decide_nothing(privacy: str | None) -> None:
    # Scores on as many synthetic records as there are real ones would tell how many these are.
    recipe = Recipe(privacy=privacy, epsilon=8.0, delta=1e-3, rounds=3, clients=10)
    names = None if privacy == "client" else ["dp-fedavg"]
    few = records_of_shape(clients=10, records=30, features=3, classes=2)
    found = [choose(recipe, algorithms=names, trials=2, federation=one) for one in (few, _one_client_larger(few))]
    assert [one.to_dict() for one in found[0]] == [one.to_dict() for one in found[1]]
    assert found[0][0].score is not None
    public = recipe.with_algorithm_settings(public_sizes=True)
    told = [
        choose(public, algorithms=["dp-fedavg"], trials=1, federation=one)[0].score
        for one in (few, _one_client_larger(few))
    ]
    assert told[0] != told[1]


def _one_client_larger(federation: Federation) -> Federation:
    sizes = federation.sizes.clone()
    sizes[7] = 400
    number = int(sizes.sum())
    features = federation.features[:1].expand(number, *federation.feature_shape)
    return replace(federation, features=features, targets=federation.targets[:1].expand(number), sizes=sizes)
