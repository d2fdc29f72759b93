"""Recipes: written, read back, resolved, refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tacit.cli.recipe_options import recipe_from
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe, parse_setting
from tacit.errors import RequestError

SMALL = Recipe(
    algorithm="soteriafl-svrg",
    data="breast-cancer",
    clients=3,
    rounds=2,
    algorithm_settings={"step": 0.1, "batch": 0.5, "snapshot_probability": 0.2},
)


def test_a_recipe_survives_its_file(tmp_path: Path) -> None:
    recipe = SMALL.with_settings({"model.ridge": 0.1, "data.unit_norm": True, "algorithm.compressor": "qsgd:4"})
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml())
    assert Recipe.read(path) == recipe
    none = replace(recipe, privacy="none", epsilon=None, delta=None)
    assert Recipe.from_toml(none.to_toml()) == none


def test_a_resolved_recipe_resolves_to_itself() -> None:
    for name in ("soteriafl-svrg", "soteriafl-gd", "ldp-sgd", "soteriafl-saga"):
        for chosen_by in ("defaults", "theory"):
            open_recipe = Recipe(
                algorithm=name,
                data="breast-cancer",
                clients=3,
                settings_from=chosen_by,
                data_settings={"unit_norm": True},
            )
            plan = make_plan(open_recipe)
            assert plan.recipe.rounds is not None
            assert ("step" in plan.recipe.algorithm_settings) == (chosen_by == "theory")
            again = make_plan(Recipe.from_toml(plan.recipe.to_toml()))
            assert again.recipe == plan.recipe
            assert again.algorithm.server == plan.algorithm.server


def test_the_demonstration_is_the_defaults() -> None:
    assert recipe_from(None, {}, None) == Recipe()
    plan = make_plan(Recipe())
    assert plan.federation.clients == 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"roundss": 1}, r"unknown setting 'roundss'; did you mean 'rounds'"),
        ({"rounds": "ten"}, "rounds must be a whole number, not 'ten'"),
        ({"epsilon": True}, "epsilon must be a number or a list or a table, not True"),
        ({"privacy": "nothing"}, r"unknown privacy 'nothing'"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SMALL.with_settings(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "sgd"}, "unknown algorithm"),
        ({"data": "mnst"}, "unknown data set"),
        ({"model": "softmx"}, "unknown model"),
        ({"epsilon": 0}, "epsilon must be a finite number above 0"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"delta": 1}, "delta"),
        ({"adjacency": "replace"}, "adjacency"),
        ({"algorithm.bound": "clip"}, "unknown bound"),
        ({"algorithm.clip_norm": -1}, "clip_norm"),
        ({"algorithm.compressor": "rnd-k:2"}, "unknown compressor"),
        ({"algorithm.sampling": "posson"}, "unknown sampling"),
        (
            {
                "algorithm": "ldp-sgd",
                "algorithm.compressor": "natural",
                "algorithm.snapshot_probability": None,
            },
            "takes no compressor",
        ),
        (
            {
                "algorithm": "soteriafl-saga",
                "algorithm.sampling": "one-pass",
                "algorithm.snapshot_probability": None,
            },
            "saga",
        ),
        ({"algorithm.sampling": "full"}, "draws every record, not batch = 0.5 of them"),
        ({"cohort": 0}, "cohort"),
        ({"cohort": "5-x"}, "cohort"),
        ({"algorithm.projection": "ball:1"}, "takes no projection"),
        (
            {
                "algorithm": "noisy-mb-sgd",
                "algorithm.snapshot_probability": None,
                "algorithm.projection": "disc:1",
            },
            "projection",
        ),
        (
            {"algorithm": "accelerated-mb-sgd", "algorithm.snapshot_probability": None, "algorithm.stages": 3},
            "stages must be",
        ),
        (
            {"algorithm": "noisy-local-sgd", "algorithm.snapshot_probability": None, "algorithm.local_steps": 0},
            "local_steps",
        ),
        ({"noise": "laplace"}, "unknown noise"),
    ],
)
def test_wrong_requests_are_refused_before_anything_runs(settings: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_plan(SMALL.with_settings(settings))


def test_an_open_step_is_the_theorys_where_it_is_asked_and_features_have_a_public_bound() -> None:
    def step(feature_norm: float | None) -> float | None:
        recipe = replace(SMALL, settings_from="theory", feature_norm=feature_norm)
        return make_plan(recipe.with_algorithm_settings(step=None)).recipe.algorithm_settings.get("step")

    assert step(None) is None
    one, other = step(3.0), step(6.0)
    assert one is not None
    assert other is not None
    assert other < one != 0.1


OLD = """
algorithm = "fed-spa"
data = "digits"
clients = 3
model = "softmax"
epsilon = 4.0
rounds = 2
bound = "clip-norm"
clip_norm = 0.5
local_steps = 2
kappa = 0.01
shift_step = 0.1
step = 0.1
step_schedule = "constant"
noise = "gaussian"

[model_settings]
ridge = 0.1

[data_settings]
unit_norm = true
"""


def test_an_old_recipe_is_told_what_to_write_instead() -> None:
    with pytest.raises(RequestError, match=r"old\.toml is from an older version") as refused:
        Recipe.from_toml(OLD, "old.toml")
    recipe = Recipe.from_toml(str(refused.value).partition("Write instead:\n")[2])
    # The shift step was never one of this algorithm's settings.
    own = {
        "bound": "clip-norm",
        "clip_norm": 0.5,
        "local_steps": 2,
        "kappa": 0.01,
        "step": 0.1,
        "schedule": "constant",
    }
    assert (recipe.algorithm, recipe.algorithm_settings) == ("fed-spa", own)
    assert (recipe.model, recipe.model_settings) == ("softmax", {"ridge": 0.1})
    assert (recipe.data, recipe.data_settings) == ("digits", {"unit_norm": True})
    assert (recipe.clients, recipe.epsilon, recipe.rounds) == (3, 4.0, 2)
    assert make_plan(recipe).guarantee is not None


def test_a_setting_outside_of_its_table_is_told_where_it_belongs() -> None:
    with pytest.raises(RequestError, match=r"in mine\.toml: for kappa write algorithm\.kappa"):
        Recipe.from_toml('kappa = 0.01\n[algorithm]\nname = "fed-spa"', "mine.toml")
    with pytest.raises(RequestError, match=r"for step_schedule write algorithm\.schedule"):
        SMALL.with_settings({"step_schedule": "constant"})


def test_tables_are_read_and_written() -> None:
    new = 'rounds = 3\n[algorithm]\nname = "fed-spa"\nkappa = 0.01\nschedule = "constant"\n[model]\nridge = 0.1'
    recipe = Recipe.from_toml(new)
    assert recipe.algorithm == "fed-spa"
    assert recipe.algorithm_settings == {"kappa": 0.01, "schedule": "constant"}
    assert (recipe.model, recipe.model_settings) == (None, {"ridge": 0.1})
    assert Recipe.from_toml(recipe.to_toml()) == recipe


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot read recipe"):
        Recipe.read(tmp_path / "none.toml")
    with pytest.raises(RequestError, match="not valid TOML"):
        Recipe.from_toml("rounds = ")
    with pytest.raises(RequestError, match="recipe: unknown setting 'round'"):
        Recipe.from_toml("round = 3")
    with pytest.raises(RequestError, match="key=value"):
        parse_setting("step")
