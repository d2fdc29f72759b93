"""A run with an evaluation: what is held back, what the promise covers, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tacit.algorithms.calibrate import calibrate
from tacit.data import load
from tacit.data.schema import Schema
from tacit.data.schema.column import Column, Predicted
from tacit.engine.account import account_recipe, account_run
from tacit.engine.evaluation import hold_back, scoring_of
from tacit.engine.execute import execute, run_plan
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.simulate import simulate
from tacit.errors import DataError, RequestError
from tacit.federation import Federation
from tacit.privacy import events
from tacit.privacy.accountant import accounting
from tacit.privacy.promises.protection import protection
from tacit.report.evaluation_blocks import evaluation_blocks
from tacit.report.page import Paragraph
from tacit.report.words import evaluation_words

RECIPE = Recipe(algorithm="soteriafl-gd", data="breast-cancer", clients=3, rounds=3, epsilon=2.0)
EVALUATED = RECIPE.with_settings({"evaluation.held_back": 0.25})


def test_held_back_records_are_none_of_those_trained_on() -> None:
    numbers = np.arange(100, dtype=np.float32)[:, None]
    silos = Federation.from_arrays(numbers, numbers[:, 0] % 2 > 0, [0] * 2 + [1] * 3 + [2] * 95)
    kept, held = hold_back(silos, 0.4, 7)
    assert held.sizes.tolist() == [1, 1, 38]
    assert kept.sizes.tolist() == [1, 2, 57]
    assert sorted([*kept.features[:, 0].tolist(), *held.features[:, 0].tolist()]) == list(range(100))
    for position in range(3):
        mine = set(silos.client(position).features[:, 0].tolist())
        assert mine == {
            *kept.client(position).features[:, 0].tolist(),
            *held.client(position).features[:, 0].tolist(),
        }
    # A silo alone holds back the same records, and which ones does not depend on what they are.
    alone = hold_back(silos.client(2), 0.4, 7)[1]
    assert torch.equal(alone.features, held.client(2).features)
    with pytest.raises(DataError, match="single record"):
        hold_back(Federation.from_arrays(numbers[:3], [0, 1, 1], [0, 1, 1]), 0.4, 7)
    with pytest.raises(RequestError, match=r"at most 0\.5"):
        hold_back(silos, 0.6, 7)


def test_the_promise_covers_training_and_evaluation_together(tmp_path: Path) -> None:
    """Recomputed from the two events; the ledger says the same, from before the first round."""
    plan = make_plan(EVALUATED)
    assert plan.evaluation is not None
    also = plan.evaluation.event
    assert also is not None
    group = plan.calibration.groups[0]
    training = plan.algorithm.trust.event(plan.algorithm.work, 3, group.size, group.noise_multiplier, 3)
    together = accounting.epsilon(events.composed([training, also]), 1e-5)
    alone = accounting.epsilon(also, 1e-5)
    assert plan.guarantee is not None
    assert accounting.epsilon(training, 1e-5) < together <= plan.guarantee.epsilon <= 2.0
    assert alone == pytest.approx(0.4, rel=1e-3)
    without = calibrate(plan.algorithm, plan.federation, releases=3, privacy=plan.privacy)
    assert group.noise_multiplier > without.noise_multipliers[0]
    summary = execute(EVALUATED, tmp_path / "run")
    header = json.loads((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[0])
    written = [[n, events.from_dict(event)] for n, event in header["groups"][0]["events"]]
    assert accounting.epsilon(written[0][1], 1e-5) == pytest.approx(alone)
    assert accounting.epsilon(written[-1][1], 1e-5) == pytest.approx(together, rel=1e-6)
    assert summary["epsilon"] == plan.guarantee.epsilon
    assert summary["evaluation"]["epsilon_alone"] == 0.4
    assert summary["evaluation"]["all"]["records"] == plan.evaluation.held.records == 114
    assert set(summary["evaluation"]["clients"]) == {"0", "1", "2"}
    # The recipe that was written says all of it, and repeats the run.
    again = execute(Recipe.read(tmp_path / "run" / "recipe.toml"), tmp_path / "again")
    assert again["evaluation"] == summary["evaluation"]


def test_adversaries_who_see_more_see_the_evaluation_too() -> None:
    recipe = EVALUATED.with_settings({"algorithm": "shuffled-mb-sgd"})
    plan = make_plan(recipe)
    found = plan.calibration
    assert plan.evaluation is not None
    assert found.beside
    for seen in found.beside:
        alone = accounting.epsilon(plan.evaluation.event, seen.delta, seen.adjacency)
        assert seen.epsilon > alone
        for event in seen.events:
            assert events.to_dict(plan.evaluation.event) in events.to_dict(event)["events"]


def test_evaluations_of_different_models_share_no_noise() -> None:
    plan = make_plan(EVALUATED)
    assert plan.evaluation is not None
    model, held = plan.algorithm.work.model, plan.evaluation.held
    points = torch.zeros(model.dim), torch.full((model.dim,), 1e-30)
    first, second = (plan.evaluation.evaluate(model, point, 0, "").pooled for point in points)
    assert first.records == second.records == held.records
    # The same answers for every record, and other noise on them.
    assert first.estimates["loss"] != second.estimates["loss"]


def test_a_run_is_not_continued_with_other_records_held_back(tmp_path: Path) -> None:
    """The model is the same, and with it the noise: two results would differ by the changed record alone."""
    plan = make_plan(EVALUATED)
    assert plan.evaluation is not None
    held = plan.evaluation.held
    simulate(plan, out=tmp_path)
    changed = replace(held, targets=torch.cat([1 - held.targets[:1], held.targets[1:]]))
    with pytest.raises(DataError, match="another run"):
        simulate(replace(plan, evaluation=replace(plan.evaluation, held=changed)), out=tmp_path)
    assert simulate(plan, out=tmp_path).rounds == 3


def test_what_is_said_about_whole_clients_covers_ranges_learned_from_held_back_records(tmp_path: Path) -> None:
    """Ten records of a client are trained on and ten held back, but all twenty are in the search for ranges."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"dose": rng.normal(200, 20, 60), "hospital": np.repeat(["a", "b", "c"], 20)})
    table["ill"] = np.where(table["dose"] > 200, "yes", "no")
    table.to_csv(tmp_path / "t.csv", index=False)
    dose = Column("dose", "number", "mg", within=(0, 10_000))
    schema = Schema(Predicted("ill", "binary", classes=("no", "yes")), (dose,), client="hospital", test_share=0.0)
    (tmp_path / "s.toml").write_text(schema.to_toml())
    asked = {
        "data.schema": str(tmp_path / "s.toml"),
        "evaluation.held_back": 0.5,
        "evaluation.epsilon_share": 0.05,
    }
    recipe = replace(RECIPE, data=str(tmp_path / "t.csv"), clients=None, epsilon=1.0).with_settings(asked)
    plan = make_plan(recipe)
    assert plan.guarantee is not None
    everything: Any = plan.guarantee.events[0]
    training, (ranges, evaluation) = everything.events[0], everything.events[1].events
    shares = ((training, 10), (ranges, 20), (evaluation, 10))
    shift = sum(one.count * (records / one.event.noise_multiplier) ** 2 for one, records in shares) ** 0.5
    exact = accounting.epsilon(events.gaussian(1 / shift), 1e-5)
    run = run_plan(plan)
    run.save(tmp_path / "run")
    told = [run.protection()]
    for found in (account_recipe(recipe), account_run(tmp_path / "run")):
        assert found.guarantee is not None
        told.append(protection(found.guarantee, records=found.records))
    for rows in told:
        (whole,) = (row.epsilon for row in rows if row.protected == "all records of a client")
        assert exact <= whole


def test_without_privacy_there_is_no_noise() -> None:
    run = run_plan(make_plan(EVALUATED.with_settings({"privacy": "none", "epsilon": None, "delta": None})))
    assert run.evaluation is not None
    assert run.plan.evaluation is not None
    held = run.plan.evaluation.held
    accuracy = run.evaluation.pooled.estimates["accuracy"].value
    assert accuracy == pytest.approx(run.model.metric(held.batch()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "dp-normfedavg"}, "accounted per record, not per client"),
        ({"client_epsilon": 50.0}, "per record, not per client"),
        ({"evaluation.epsilon_share": 1.0}, "evaluation.epsilon_share must be above 0 and below 1"),
        ({"evaluation.held_bak": 0.1}, r"unknown setting of evaluation 'evaluation.held_bak'; did you mean"),
        ({"evaluation.group_feature": 1}, "go together"),
        ({"evaluation.edges": "few"}, "must be a list of numbers"),
        (
            {"evaluation.group_feature": 30, "evaluation.group_edges": [1], "evaluation.group_names": ["a", "b"]},
            "records have features 0 to 29",
        ),
    ],
)
def test_what_cannot_be_charged_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_plan(EVALUATED.with_settings(settings), federation=load("breast-cancer", clients=3))


def test_noise_that_cannot_be_drawn_again_is_not_simulated() -> None:
    with pytest.raises(RequestError, match="release, a second time"):
        run_plan(make_plan(EVALUATED.with_settings({"noise": "lattice"})))


def test_an_evaluation_survives_toml() -> None:
    recipe = EVALUATED.with_settings({"evaluation.group_feature": 2, "evaluation.group_names": ["a", "b"]})
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert "[evaluation]" not in RECIPE.to_toml()


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [
        ({"group": "sex"}, {"f": 20, "unknown": 10, "m": 30}),
        ({"group": "region = north"}, {"not region = north": 40, "region = north": 20}),
        ({"group": "age", "group_edges": [40, 65]}, {"below 40": 40, "40 to 65": 15, "65 and above": 5}),
    ],
)
def test_groups_are_named_by_columns_of_the_schema(asked: dict[str, Any], sizes: dict[str, int]) -> None:
    columns = (
        Column("sex", "category", categories=("f", "m"), missing="indicate"),
        Column("region", "category", categories=("north", "south", "west")),
        Column("age", "number", range=(0, 100)),
    )
    schema = Schema(Predicted("y", "binary", classes=("no", "yes")), columns, client="site", test_share=0.0)
    frame = pd.DataFrame({
        "site": ["a", "b"] * 30,
        "sex": ["f"] * 20 + ["m"] * 30 + [None] * 10,
        "region": ["north", "south", "west"] * 20,
        "age": [30] * 40 + [40] * 15 + [65] * 5,
        "y": ["no", "yes"] * 30,
    })  # fmt: skip
    records = Federation.from_frame(frame, schema)
    groups = scoring_of({**asked}, records).groups
    assert groups is not None
    counts = torch.bincount(groups.of(records.features), minlength=len(groups.names)).tolist()
    assert dict(zip(groups.names, counts, strict=True)) == sizes
    with pytest.raises(RequestError, match=r"Known: age, region, region = north, .* sex"):
        scoring_of({"group": "ages"}, records)
    for wrong in ({"group": "ages"}, {"group": "age"}, {"group": "age", "group_feature": 1}):
        with pytest.raises(RequestError, match="group"):
            scoring_of(wrong, records)
    with pytest.raises(RequestError, match="all others, as in group = 'region = north'"):
        scoring_of({"group": "region"}, records)
    with pytest.raises(RequestError, match="column of a schema"):
        scoring_of({"group": "age"}, replace(records, schema=None))


def test_the_bound_on_a_regressions_loss_follows_from_the_range_of_its_target() -> None:
    """An error of a quarter of the range, in the unit of the model's targets, where half of the range is 1."""
    target = Predicted("days", "regression", range=(0, 40), unit="days")
    schema = Schema(target, (Column("age", "number", range=(0, 100)),), client="site", test_share=0.0)
    frame = pd.DataFrame({"site": ["a", "b"] * 5, "age": range(10), "days": range(10)})
    records = Federation.from_frame(frame, schema)
    scoring = scoring_of({}, records)
    assert scoring.loss_bound == pytest.approx(0.5**2 / 2)
    assert scoring.told["error_is"] == "root mean squared error, in days; errors above 10 count as 10"
    assert scoring_of({}, records, "absolute-regression").loss_bound == pytest.approx(0.5)
    assert scoring_of({"loss_bound": 2.0}, records).told["error_is"].endswith("above 40 count as 40")
    # A range that is still to be learned has no unit yet, but half of it will be 1, too.
    opened = replace(schema, target=replace(schema.target, range=None, within=(0, 1000)))
    silo = replace(records, schema=opened)
    assert scoring_of({}, silo).loss_bound == scoring.loss_bound
    assert scoring_of({}, silo).unit is None
    plain = replace(records, schema=None)
    assert scoring_of({}, replace(plain, target_bound=30.0)).loss_bound == pytest.approx(15**2 / 2)
    assert scoring_of({"loss_bound": 2.0}, records, "quantile-regression").unit is None, "a pinball is no error"
    for refused in (lambda: scoring_of({}, plain), lambda: scoring_of({}, records, "quantile-regression")):
        with pytest.raises(RequestError, match=r"loss_bound is needed .*loss_bound = 0.5"):
            refused()


def test_a_table_with_numbers_is_evaluated_without_a_setting(tmp_path: Path) -> None:
    """In the summary and on the page, in the target's own unit."""
    draw = np.random.default_rng(0)
    age = draw.integers(20, 90, 2000)
    days = np.clip(np.rint(age / 5 + draw.normal(size=2000) * 2), 0, 40)
    pd.DataFrame({"site": ["a", "b"] * 1000, "age": age, "days": days}).to_csv(tmp_path / "t.csv", index=False)
    target = Predicted("days", "regression", range=(0, 40), unit="days")
    schema = Schema(target, (Column("age", "number", range=(0, 100)),), client="site")
    (tmp_path / "schema.toml").write_text(schema.to_toml())
    recipe = Recipe(
        data=str(tmp_path / "t.csv"),
        data_settings={"schema": str(tmp_path / "schema.toml")},
        evaluation_settings={"held_back": 0.2},
        epsilon=8.0,
        rounds=30,
    )
    run = run_plan(make_plan(recipe))
    told = run.summary()["evaluation"]
    assert told["error_is"].startswith("root mean squared error, in days")
    assert told["all"]["error"]["low"] < 2.0 < told["all"]["error"]["high"] < 5.0
    assert "Error: root mean squared error, in days" in evaluation_words(told)
    texts = [block.lines for block in evaluation_blocks(told) if isinstance(block, Paragraph)]
    assert texts[-1][0].startswith("error: root mean squared error, in days")
    assert "loss" not in evaluation_words(told), "the error says the same in a better unit"
    assert not any("calibration" in line for text in texts for line in text), "of classifiers alone"
