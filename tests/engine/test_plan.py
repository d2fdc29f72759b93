"""One door from a recipe to a run: noise is derived once, in one place, and belongs to one plan."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import tacit
from tacit.algorithms import calibrate as door
from tacit.cli import app
from tacit.deploy.guard import admit
from tacit.deploy.job import Job
from tacit.deploy.policy import Policy
from tacit.engine import choices
from tacit.engine import plan as plans
from tacit.engine.account import account_recipe
from tacit.engine.compare import compare
from tacit.engine.plan import Plan, make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy import Target
from tacit.server.update import Descent
from tacit.sklearn import FederatedLogisticRegression

SOURCE = Path(tacit.__file__).parent

MAY_CALIBRATE = {
    "algorithms/calibrate.py": "the door: noise of training, and nothing else does that",
    "side/release.py": "noise of what is released beside training, which has a price of its own",
    "engine/batches.py": "compares sampling rates, and returns a rate",
    "engine/audit/promises.py": "says which promise a measured leak would have been",
    "deploy/report.py": "noise of reported losses, a release of its own",
    "side/noisy_total.py": "noise of one sum over all clients, a release of its own",
    "bench/calibration.py": "measures how long it takes",
    "experiments/norm_theorems.py": "puts the noise beside what a theorem says about it, and adds none",
}
"""Who asks the accountant for noise, beside the accountant itself and what the papers' theorems say."""

RECIPE = Recipe(
    algorithm="ldp-sgd", data="breast-cancer", clients=3, rounds=2, algorithm_settings={"step": 0.1, "batch": 0.5}
)


def _calls(name: str) -> dict[str, int]:
    """How often a function or class is called by that name, by file."""
    found: dict[str, int] = {}
    for place, called in _all_calls():
        if called == name:
            found[place] = found.get(place, 0) + 1
    return found


@cache
def _all_calls() -> list[tuple[str, str]]:
    return [
        (path.relative_to(SOURCE).as_posix(), getattr(node.func, "attr", getattr(node.func, "id", "")))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]


def test_only_one_module_derives_the_noise_of_training() -> None:
    asked = {place for place in _calls("calibrate_noise") if place.split("/")[0] not in ("privacy", "theory")}
    assert asked == set(MAY_CALIBRATE)
    assert _calls("Calibration").keys() == {"algorithms/calibrate.py"}
    assert _calls("Group").keys() == {"algorithms/calibrate.py"} | {
        place for place in _calls("Group") if place.startswith("cli/")
    }


def test_only_plans_go_through_the_door() -> None:
    """Others ask what a plan would need: a theorem that chooses a step, a silo that compares job and policy."""
    assert _calls("calibrate").keys() == {"engine/plan.py", "engine/choices.py", "deploy/job_noise.py"}
    assert _calls("Plan") == {"engine/plan.py": 1}
    assert _calls("least_noise").keys() == {"algorithms/calibrate.py", "algorithms/hybrid.py"}
    games = {"engine/audit/game.py", "engine/audit/pooled.py"}
    noisy = {"engine/round.py", "deploy/computation.py"} | games
    assert {place for place in _calls("client_round") if not place.startswith("bench/")} == noisy
    assert _calls("add_messages").keys() == {"engine/simulation.py", "engine/audit/pooled.py"}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of every algorithm that was calibrated."""
    calls: list[str] = []

    def noted(algorithm: tacit.Algorithm, *args: Any, **kwargs: Any) -> Any:
        calls.append(algorithm.name)
        return door.calibrate(algorithm, *args, **kwargs)

    for module in (plans, choices):
        monkeypatch.setattr(module, "calibrate", noted)
    return calls


def test_a_run_is_calibrated_once(
    counted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tacit", "run", "--rounds=2", "--json", "--out=here"])
    with pytest.raises(SystemExit, match="0"):
        app.main()
    assert '"epsilon"' in capsys.readouterr().out
    assert counted == ["soteriafl-sgd"]


@pytest.mark.parametrize(
    "use",
    [
        account_recipe,
        lambda recipe: compare(recipe, ["ldp-sgd"], out=Path(recipe.partition), workers=1),
        lambda recipe: tacit.simulate(make_plan(recipe)).summary(),
    ],
    ids=["account", "compare", "simulate"],
)
def test_so_is_everything_else_that_consumes_a_plan(
    use: Callable[[Recipe], object], counted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    use(RECIPE)
    assert counted == ["ldp-sgd"]


def test_an_estimator_whose_step_follows_from_the_noise_is_calibrated_once(counted: list[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 3, generator=generator).numpy()
    model = FederatedLogisticRegression(epsilon=4, rounds=3, random_state=0).fit(features, features[:, 0] > 0)
    assert counted == ["noisy-mb-sgd"]
    assert model.guarantee_.epsilon <= 4


def test_a_deployed_job_has_the_noise_of_the_simulation() -> None:
    recipe = replace(RECIPE, noise="lattice")
    plan = make_plan(recipe)
    job = Job.from_plan(plan, ["a", "b", "c"])
    for position, site in enumerate(job.sites):
        terms = admit(job, Policy.for_job(job, site), site, plan.federation.client(position))
        assert terms.noise_multiplier == float(plan.calibration.noise_multipliers[position])


@pytest.fixture
def planned() -> Plan:
    return make_plan(RECIPE)


def _more_records(plan: Plan) -> Federation:
    return tacit.load("breast-cancer", clients=3, partition="dirichlet:0.5")


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: {"rounds": 200},
        lambda plan: {"federation": _more_records(plan)},
        lambda plan: {"algorithm": make_plan(RECIPE.with_algorithm_settings(batch=0.1)).algorithm},
        lambda plan: {"attended": replace(plan.attended, most=1, rounds=1)},
    ],
    ids=["rounds", "records", "algorithm", "attendance"],
)
def test_the_noise_of_one_plan_is_not_for_another_run(planned: Plan, change: Callable[[Plan], Any]) -> None:
    with pytest.raises(RequestError, match="derived for another run"):
        replace(planned, **change(planned))


def test_another_server_needs_no_other_noise(planned: Plan) -> None:
    longer = planned.with_server(Descent(0.2))
    fresh = make_plan(RECIPE.with_algorithm_settings(step=0.2))
    assert torch.equal(longer.calibration.noise_multipliers, fresh.calibration.noise_multipliers)
    assert torch.equal(tacit.simulate(longer).parameters, tacit.simulate(fresh).parameters)


def test_a_plan_of_parts_is_the_plan_of_the_recipe_that_names_them(planned: Plan) -> None:
    target = Target(8.0, 1e-5)
    parts = tacit.plan(planned.algorithm, planned.federation, rounds=2, privacy=target)
    assert torch.equal(parts.calibration.noise_multipliers, planned.calibration.noise_multipliers)
    assert torch.equal(tacit.simulate(parts).parameters, tacit.simulate(planned).parameters)
    assert parts.recipe is None
    with pytest.raises(RequestError, match="make its plan of one"):
        Job.from_plan(parts, ["a", "b", "c"])


def test_what_cannot_be_promised_is_refused_by_the_plan(planned: Plan) -> None:
    one_pass = make_plan(RECIPE.with_algorithm_settings(sampling="one-pass", batch=60)).algorithm
    with pytest.raises(RequestError, match="only 2 disjoint batches"):
        tacit.plan(one_pass, planned.federation, rounds=3, privacy="none")
    with pytest.raises(RequestError, match="rounds must be a whole number"):
        tacit.plan(planned.algorithm, planned.federation, rounds=0, privacy="none")
    with pytest.raises(RequestError, match="privacy must be a Target"):
        tacit.plan(planned.algorithm, planned.federation, rounds=2, privacy="some")  # type: ignore[arg-type]
