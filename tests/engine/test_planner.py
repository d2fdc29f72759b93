"""The planner: exact noise, honest bounds, recipes that run."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tacit
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.planning import planner
from tacit.planning.planner import candidates, public_numbers
from tacit.planning.rehearsal import synthetic_like
from tacit.planning.shape import records_of_shape
from tacit.planning.trials import try_out
from tacit.theory import soteriafl

RECIPE = Recipe(data="digits", clients=5, model="softmax", epsilon=4.0, data_settings={"unit_norm": True})
SMALL = {"rounds": (5, 20), "fractions": (0.1, 1.0), "compressors": ("identity", "rand-k:0.1")}


def test_candidates_are_sorted_and_their_recipes_need_exactly_their_noise() -> None:
    found = candidates(RECIPE, **SMALL)  # type: ignore[arg-type]
    bounds = [c.bound for c in found if c.bound is not None]
    assert len(bounds) == len(found)
    assert bounds == sorted(bounds)
    assert {c.algorithm for c in found} == {"soteriafl-gd", "soteriafl-sgd", "cdp-sgd", "ldp-sgd"}
    for candidate in (
        found[0],
        next(c for c in found if c.algorithm == "soteriafl-gd" and c.compressor != "identity"),
    ):
        plan = make_plan(candidate.recipe(RECIPE))
        run = tacit.simulate(plan)
        assert run.guarantee is not None
        assert run.guarantee.epsilon <= 4.0
        assert float(run.calibration.noise_stds.max()) == pytest.approx(candidate.noise_std, rel=1e-6)
        assert run.last.uplink_bits_per_client == candidate.uplink_bits_per_client
        assert candidate.bound is not None
        assert run.history[-1].grad_norm_sq_mean < candidate.bound


def test_the_step_of_direct_compression_makes_its_bound_smallest() -> None:
    best = next(c for c in candidates(RECIPE, **SMALL) if c.algorithm == "ldp-sgd" and c.batch is None)  # type: ignore[arg-type]
    plan = make_plan(best.recipe(RECIPE))
    problem = soteriafl.Problem(
        clients=5, records=int(plan.federation.sizes.min()), dim=plan.algorithm.work.model.dim, omega=0.0,
        epsilon=4.0, delta=1e-5, smoothness=1.0, gradient_bound=2.0, loss_gap=2.302585092994046,
    )  # fmt: skip
    # softmax with an intercept on unit features: slope sqrt(2) and curvature 1/2, times 2.
    numbers = {"rounds": best.rounds, "batch": problem.records, "noise_std": best.noise_std}
    assert best.bound == pytest.approx(soteriafl.cdp_utility_bound(problem, step=best.step, **numbers))
    for step in (0.9 * best.step, min(1.0, 1.1 * best.step)):
        assert best.bound is not None
        assert soteriafl.cdp_utility_bound(problem, step=step, **numbers) >= best.bound * (1 - 1e-9)


def test_a_ball_makes_it_a_question_of_excess_risk() -> None:
    found = candidates(RECIPE.with_algorithm_settings(projection="ball:5"), **SMALL)  # type: ignore[arg-type]
    assert {c.quantity for c in found} == {"excess risk"}
    plan = make_plan(found[0].recipe(RECIPE.with_algorithm_settings(projection="ball:5")))
    assert plan.rounds == found[0].rounds


def test_a_bit_budget_is_kept() -> None:
    found = candidates(RECIPE, bit_budget=1e5, **SMALL)  # type: ignore[arg-type]
    assert max(c.uplink_bits_per_client for c in found) <= 1e5
    with pytest.raises(RequestError, match="bit_budget = 10 bits"):
        candidates(RECIPE, bit_budget=10, **SMALL)  # type: ignore[arg-type]


def test_trials_use_synthetic_records_of_the_same_shape() -> None:
    found = candidates(RECIPE, **SMALL)  # type: ignore[arg-type]
    tried = try_out(found, RECIPE, most=3)
    assert {trial.candidate for trial in tried if trial.candidate.bound is not None} == set(found[:3])
    assert [trial.train_loss for trial in tried] == sorted(trial.train_loss for trial in tried)
    real = tacit.load("digits", clients=5, unit_norm=True)
    made = synthetic_like(real, 1.0, seed=0)
    assert (made.sizes == real.sizes).all()
    assert made.feature_shape == real.feature_shape
    assert made.classes == real.classes
    assert float((made.features.norm(dim=1) - 1).abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"data.unit_norm": False}, {}, "public bound on the features"),
        ({"model": "network"}, {}, "linear model"),
        ({"epsilon": [1.0] * 5}, {}, "one epsilon and one delta"),
        ({"privacy": "none", "epsilon": None, "delta": None}, {}, "one epsilon and one delta"),
        ({}, {"algorithms": ["fed-spa"]}, "has no bound to plan with"),
        ({}, {"algorithms": ["noisy-mb-sgd"]}, "give algorithm.projection"),
        ({"data": "diabetes", "model": None}, {}, "target_bound must be given"),
        ({"cohort": 2}, {}, "cohort = 2: .* leave cohort out"),
        ({"weights": "records"}, {}, "leave weights out"),
        ({"client_epsilon": 3.0}, {}, "leave client_epsilon out"),
        ({"data": "breast-cancer", "model": "svm"}, {}, "give model.smoothing"),
        (
            {"algorithm.projection": "ball:5"},
            {"algorithms": ["soteriafl-gd", "noisy-mb-sgd", "ldp-sgd"]},
            "noisy-mb-sgd are on the excess risk, those of soteriafl-gd, ldp-sgd on the mean squared gradient",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(changes: dict, options: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(RequestError, match=message):
        candidates(RECIPE.with_settings(changes), **options)


def test_smaller_clip_norms_are_tried_without_a_bound_and_with_the_noise_that_they_need() -> None:
    found = candidates(RECIPE, **SMALL)  # type: ignore[arg-type]
    tried = [trial.candidate for trial in try_out(found, RECIPE, most=1)]
    clips = {c.clip_norm: c for c in tried}
    assert sorted(clips) == pytest.approx(
        [0.25 * found[0].clip_norm, 0.5 * found[0].clip_norm, found[0].clip_norm]
    )
    for clip_norm, candidate in clips.items():
        assert (candidate.bound is None) == (clip_norm < found[0].clip_norm)
        assert (candidate.algorithm, candidate.rounds) == (found[0].algorithm, found[0].rounds)
        assert candidate.noise_std == pytest.approx(found[0].noise_std * clip_norm / found[0].clip_norm)
        plan = make_plan(
            candidate.recipe(
                RECIPE.with_algorithm_settings(bound="clip-each-coordinate", bound_from="quantile:0.1")
            )
        )
        run = tacit.simulate(plan)
        assert float(run.calibration.noise_stds.max()) == pytest.approx(candidate.noise_std, rel=1e-6)


def test_a_shape_is_enough_to_plan_and_gives_what_records_of_that_shape_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("no data are at hand")

    real = tacit.load("digits", clients=5, unit_norm=True)
    by_data = candidates(RECIPE, federation=replace(real, sizes=real.sizes), **SMALL)  # type: ignore[arg-type]
    monkeypatch.setattr(planner, "load_federation", refuse)
    shape = records_of_shape(clients=5, records=int(real.sizes.min()), features=64, classes=10)
    assert candidates(RECIPE, federation=shape, **SMALL) == by_data  # type: ignore[arg-type]
    assert len(try_out(by_data, RECIPE, most=1, federation=shape)) == 3


def test_a_ball_bounds_the_gradients_of_squared_errors_and_nothing_else_does() -> None:
    recipe = Recipe(
        model="least-squares",
        feature_norm=1.0,
        target_bound=3.0,
        epsilon=2.0,
        algorithm_settings={"projection": "ball:2"},
    )
    shape = records_of_shape(clients=3, records=50, features=4, classes=None)
    (ball,) = candidates(recipe, algorithms=["noisy-mb-sgd"], rounds=(5,), fractions=(1.0,), federation=shape)
    # |x w - y| ||x||, with the intercept's feature of 1.
    assert ball.clip_norm == ball.lipschitz == pytest.approx(2**0.5 * (2**0.5 * 2 + 3))
    (free,) = candidates(recipe, algorithms=["ldp-sgd"], rounds=(5,), fractions=(1.0,), federation=shape)
    assert (free.clip_norm, free.lipschitz) == (1.0, None)


@pytest.mark.parametrize(
    ("model", "classes", "gap"),
    [
        ("svm", 2, 1.0),
        ("absolute-regression", None, 3.0),
        ("least-squares", None, 4.5),
        ("softmax", 5, 1.6094379),
    ],
)
def test_the_loss_at_the_start_is_the_loss_itself(model: str, classes: int | None, gap: float) -> None:
    smooth = {"smoothing": 1.0} if model in ("svm", "absolute-regression") else {}
    recipe = Recipe(model=model, feature_norm=1.0, target_bound=3.0, model_settings=smooth)
    shape = records_of_shape(clients=3, records=50, features=4, classes=classes)
    assert public_numbers(recipe, shape, ["ldp-sgd"]).loss_gap == pytest.approx(gap)
