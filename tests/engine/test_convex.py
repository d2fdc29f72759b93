"""The choices of ISRL-DP for a recipe: steps, stages, regularisation and smoothing from public numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import optimize

import tacit
from tacit.algorithms.isrl_dp import accelerated, mb_sgd
from tacit.client.sampling import Full
from tacit.engine.execute import execute
from tacit.engine.objective import objective
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models import least_squares, logistic_regression
from tacit.models.linear import LinearModel
from tacit.server.accelerated import Accelerated, Stage
from tacit.server.self_tuned import SelfTuned
from tacit.server.update import Averaged, Descent
from tacit.theory import isrl_dp as theory

RECIPE = Recipe(
    algorithm="noisy-mb-sgd",
    data="breast-cancer",
    clients=4,
    model="logistic",
    rounds=20,
    epsilon=2.0,
    settings_from="theory",
    data_settings={"unit_norm": True},
    algorithm_settings={"batch": 0.5, "projection": "ball:5"},
)


def test_the_step_is_the_one_of_lemma_d_6_for_the_real_noise() -> None:
    plan = make_plan(RECIPE)
    run = tacit.simulate(plan)
    noise_std = float(run.calibration.noise_stds.square().mean().sqrt())
    problem = theory.problem_of(
        plan.algorithm.work.model, plan.federation, epsilon=2.0, delta=1e-5, feature_norm=1.0, diameter=10.0
    )
    step = theory.mb_sgd_step(problem, rounds=20, noise_std=noise_std)
    assert plan.recipe.algorithm_settings["step"] == pytest.approx(step)
    assert make_plan(plan.recipe).algorithm == plan.algorithm
    assert isinstance(plan.algorithm.server, Averaged)
    assert plan.algorithm.server.growth == 1.0


def test_strong_convexity_lets_late_points_count_for_more() -> None:
    plan = make_plan(replace(RECIPE, model_settings={"ridge": 0.1}))
    server = plan.algorithm.server
    assert isinstance(server, Averaged)
    assert isinstance(server.update, Descent)
    assert server.growth == pytest.approx(1 / (1 - 0.1 * server.update.step_size))


def test_convex_losses_are_regularised_and_strongly_convex_ones_get_stages() -> None:
    convex = make_plan(replace(RECIPE, algorithm="accelerated-mb-sgd"))
    server = convex.algorithm.server
    assert isinstance(server, Accelerated)
    assert server.regularisation > 0
    assert server.stages == (Stage(20, 0.5 + server.regularisation),)
    strong = make_plan(replace(RECIPE, algorithm="accelerated-mb-sgd", rounds=200, model_settings={"ridge": 0.1}))
    server = strong.algorithm.server
    assert isinstance(server, Accelerated)
    assert (server.regularisation, server.strong_convexity) == (0.0, 0.1)
    assert server.rounds == 200
    assert make_plan(strong.recipe).algorithm == strong.algorithm
    assert Recipe.from_toml(strong.recipe.to_toml()) == strong.recipe


def test_without_public_bounds_the_step_follows_from_the_messages() -> None:
    for recipe in (RECIPE.with_algorithm_settings(projection="none"), replace(RECIPE, data_settings={})):
        assert isinstance(make_plan(recipe).algorithm.server, SelfTuned)
    accelerated_plan = make_plan(
        replace(RECIPE, algorithm="accelerated-mb-sgd").with_algorithm_settings(projection=None)
    )
    assert (
        accelerated_plan.recipe.algorithm_settings["stages"],
        accelerated_plan.recipe.algorithm_settings["regularisation"],
    ) == (1, 0.0)


def test_one_pass_takes_all_disjoint_batches() -> None:
    plan = make_plan(
        replace(RECIPE, rounds=None, algorithm="accelerated-mb-sgd").with_algorithm_settings(
            sampling="one-pass", batch=10
        )
    )
    assert plan.rounds == int(plan.federation.sizes.min()) // 10


def test_the_theory_smooths_a_kinked_loss(tmp_path: Path) -> None:
    recipe = replace(RECIPE, model="svm", model_settings={"smoothing": "theory"})
    plan = make_plan(recipe)
    beta = plan.recipe.model_settings["smoothing"]
    assert beta > 0
    assert plan.recipe.algorithm_settings["step"] is not None
    assert plan.recipe.algorithm_settings["step"] <= 1 / beta
    summary = execute(recipe, tmp_path / "run")
    assert summary["epsilon"] <= 2.0
    assert summary["test_metric"] > 0.5
    with pytest.raises(RequestError, match="needs public bounds"):
        make_plan(recipe.with_algorithm_settings(projection="none"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {
                "algorithm": "accelerated-mb-sgd",
                "algorithm.strong_convexity": 5.0,
                "algorithm.step": 0.1,
                "algorithm.stages": [[20, 2.0]],
            },
            "more strong convexity than smoothness",
        ),
        ({"algorithm.step": 0.1, "algorithm.strong_convexity": 30.0}, "too long for strong_convexity"),
        (
            {"algorithm": "accelerated-mb-sgd", "algorithm.stages": [[19, 2.0]], "algorithm.step": 0.1},
            "19 rounds, but the recipe has 20",
        ),
        (
            {"algorithm": "accelerated-mb-sgd", "algorithm.stages": [[20]], "algorithm.step": 0.1},
            "stages must be a number",
        ),
        (
            {"algorithm": "accelerated-mb-sgd", "algorithm.stages": [[float("nan"), 1.0]], "algorithm.step": 0.1},
            "whole number",
        ),
        (
            {"algorithm": "accelerated-mb-sgd", "algorithm.stages": [["a", 1.0]], "algorithm.step": 0.1},
            "whole number",
        ),
        (
            {
                "algorithm": "accelerated-mb-sgd",
                "algorithm.stages": [[1.9, 5.0], [18.1, 5.0]],
                "algorithm.step": 0.1,
            },
            "whole number",
        ),
        ({"algorithm": "accelerated-mb-sgd", "algorithm.stages": 0, "algorithm.step": 0.1}, "between 1 and"),
        (
            {"algorithm": "accelerated-mb-sgd", "algorithm.stages": 21, "algorithm.step": 0.1},
            "between 1 and the 20 rounds",
        ),
        (
            {
                "algorithm": "accelerated-mb-sgd",
                "algorithm.regularisation": -1.0,
                "algorithm.step": 0.1,
                "algorithm.stages": 1,
            },
            "at least 0",
        ),
        ({"algorithm.projection": "ball:-1"}, "radius must be"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"algorithm.regularisation": 0.1}, "takes no regularisation"),
    ],
)
def test_bad_choices_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_plan(RECIPE.with_settings(changes))


def test_a_set_that_excludes_the_start_is_refused() -> None:
    plan = make_plan(RECIPE.with_algorithm_settings(projection="box:1:2"))
    with pytest.raises(RequestError, match="the start lies outside the box"):
        tacit.simulate(plan)


def _ill_conditioned(condition: float = 1000.0, records: int = 40) -> tuple[Federation, float]:
    """Least squares whose Hessian has eigenvalues from 1/condition to 1, and a known minimiser."""
    features = torch.diag(
        torch.logspace(0, -0.5 * torch.log10(torch.tensor(condition)), records, dtype=torch.float64)
    )
    features *= records**0.5
    targets = features @ torch.ones(records, dtype=torch.float64)
    half = [(features, targets)] * 2
    return Federation.from_clients(half, task="regression", dtype=torch.float64), 1.0


def _gap(algorithm: tacit.Algorithm, federation: Federation, rounds: int) -> float:
    return float(tacit.simulate(tacit.plan(algorithm, federation, rounds=rounds, privacy="none")).last.train_loss)


def test_acceleration_meets_the_rate_of_lemma_e_1_and_plain_descent_needs_twice_the_rounds() -> None:
    federation, smoothness = _ill_conditioned()
    model = least_squares(features=40, intercept=False)

    def fast(rounds: int) -> float:
        stage = (Stage(rounds, smoothness),)
        parts = accelerated(model, sampling=Full(), stages=stage)
        return _gap(parts, federation, rounds)

    def slow(rounds: int) -> float:
        return _gap(mb_sgd(model, sampling=Full(), step=1 / smoothness), federation, rounds)

    gaps = {rounds: fast(rounds) for rounds in (10, 20, 40, 80, 160)}
    for rounds, gap in gaps.items():
        # Lemma E.1 without variance: 2 beta D^2 / (R (R + 1)), with ||w_0 - w*||^2 = 40.
        assert gap <= 2 * smoothness * 40 / (rounds * (rounds + 1))
    for rounds in (20, 40, 80):
        assert gaps[2 * rounds] <= gaps[rounds] / 3.5
    for rounds in (40, 80, 160):
        assert slow(2 * rounds) > gaps[rounds]


def test_stages_meet_the_linear_rate_of_appendix_e_2() -> None:
    federation, smoothness = _ill_conditioned(condition=100.0)
    mu = smoothness / 100.0
    model = least_squares(features=40, intercept=False)
    length = math.ceil(4 * math.sqrt(2 * smoothness / mu))
    gaps = []
    for stages in (1, 2, 4, 6):
        parts = accelerated(
            model,
            sampling=Full(),
            stages=(Stage(length, smoothness),) * stages,
            strong_convexity=mu,
        )
        gaps.append(_gap(parts, federation, stages * length))
    start = 0.5 * 40 * float((federation.features[:40] ** 2).sum() / 40 / 40)
    for stages, gap in zip((1, 2, 4, 6), gaps, strict=True):
        assert gap <= start * 0.5**stages


def _minimiser(model: LinearModel, federation: Federation) -> torch.Tensor:
    def value_and_slope(point: Any) -> tuple[float, Any]:
        value, gradient = objective(model, torch.from_numpy(point), federation)
        return float(value), gradient.numpy()

    start = torch.zeros(model.dim, dtype=torch.float64).numpy()
    return torch.from_numpy(optimize.minimize(value_and_slope, start, jac=True, method="BFGS").x)


def test_acceleration_meets_its_rate_on_logistic_regression_with_a_known_minimiser() -> None:
    federation = tacit.load("breast-cancer", clients=3, unit_norm=True)
    model = logistic_regression(features=30, ridge=1e-3)
    smoothness = model.smoothness(feature_norm=1.0)
    assert smoothness is not None
    best = _minimiser(model, federation)
    least = float(objective(model, best, federation)[0])
    distance_squared = float(best.double().square().sum())
    gaps = {}
    for rounds in (20, 40, 80):
        stage = (Stage(rounds, smoothness),)
        parts = accelerated(model, sampling=Full(), stages=stage, strong_convexity=1e-3)
        gaps[rounds] = _gap(parts, federation, rounds) - least
        assert gaps[rounds] <= 2 * smoothness * distance_squared / (rounds * (rounds + 1))
    plain = mb_sgd(model, sampling=Full(), step=1 / smoothness)
    assert _gap(plain, federation, 160) - least > gaps[80]
