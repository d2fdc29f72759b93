"""What theorems promise for a plan: with its own noise, true of runs, and silent where they do not hold."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tacit.algorithms.registry import ALGORITHMS
from tacit.client.sampling import Full, Poisson, Sampling, WithoutReplacement, WithReplacement
from tacit.engine.plan import make_plan, plan
from tacit.engine.recipe import Recipe
from tacit.engine.simulate import simulate
from tacit.engine.utility import Utility, batch_variance, utility_of
from tacit.errors import RequestError
from tacit.privacy import Target
from tacit.theory.soteriafl import sgd_constants, smallest_beta

RECIPE = Recipe(
    algorithm="soteriafl-gd",
    data="digits",
    clients=4,
    model="softmax",
    epsilon=8.0,
    delta=1e-5,
    rounds=20,
    algorithm_settings={"clip_norm": 1.5, "compressor": "identity", "step": 0.5},
    model_settings={"intercept": False},
    data_settings={"unit_norm": True},
)
IN_A_BALL = {"clip_norm": 2.1, "projection": "ball:2"}


def _asked(
    algorithm: str, settings: dict[str, Any], assumed: dict[str, float] | None = None, **more: Any
) -> Utility:
    recipe = replace(RECIPE, algorithm=algorithm, algorithm_settings=settings, **more)
    return utility_of(make_plan(recipe), assumed)


def test_theorem_3_has_the_noise_of_the_plan() -> None:
    made = make_plan(
        replace(RECIPE, algorithm="soteriafl-sgd").with_algorithm_settings(
            compressor="rand-k:0.2", batch=0.2, step=0.1
        )
    )
    found = utility_of(made).bound
    assert found.gaps == ()
    sizes, stds = made.federation.sizes.double(), made.calibration.noise_stds
    sampled = 2 * float((0.8 / (0.2 * sizes)).mean())  # (1-q) G^2 / b, G^2 = 2: no gradient reaches the clip norm

    def total(omega: float, noise: float) -> float:
        constants = replace(sgd_constants(records=9, batch=9, gradient_bound=math.sqrt(2)), c_2=sampled)
        beta = smallest_beta(constants, step=0.1, clients=4, omega=omega, smoothness=0.5)
        assert beta is not None
        spread = sampled + 640 * noise * float(stds.square().mean())
        return 2 * (math.log(10) + beta / 0.5 * 2) / (0.1 * 20) + 3 * beta / ((1 + omega) * 0.5 * 0.1) * spread

    assert found.value == pytest.approx(total(4.0, 1.0))
    assert found.terms["compression"] == pytest.approx(total(4.0, 1.0) - total(0.0, 1.0))
    assert found.terms["privacy"] == pytest.approx(total(0.0, 1.0) - total(0.0, 0.0))
    assert sum(found.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("algorithm", ["ldp-sgd", "soteriafl-gd"])
def test_a_run_keeps_what_the_theorem_promises(algorithm: str) -> None:
    settings = {"clip_norm": 1.5, "step": 0.5, "sampling": "poisson", "batch": 0.5}
    if algorithm == "soteriafl-gd":
        settings = {"clip_norm": 1.5, "step": 0.5, "compressor": "rand-k:0.5"}
    made = make_plan(replace(RECIPE, algorithm=algorithm, algorithm_settings=settings))
    found = utility_of(made).bound
    assert found.gaps == ()
    measured = simulate(made, evaluate_every=1).history[-1].grad_norm_sq_mean
    assert found.value is not None
    assert found.value / 1000 < measured < found.value


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("noisy-mb-sgd", {"step": 0.2, "batch": 0.1}),
        ("accelerated-mb-sgd", {"stages": [[20, 2.0]], "regularisation": 0.4, "batch": 0.1}),
    ],
)
def test_a_run_keeps_the_promised_risk_and_the_lower_bound_is_below(
    algorithm: str, settings: dict[str, Any]
) -> None:
    made = make_plan(replace(RECIPE, algorithm=algorithm, algorithm_settings=IN_A_BALL | settings))
    found = utility_of(made).bound
    assert found.gaps == ()
    risk = simulate(made).history[-1].train_loss  # at least 0, so it is above the excess
    assert found.value is not None
    assert risk - math.log(10) < 0 < risk < found.value + math.log(10)
    assert found.lower is not None
    assert found.times_lower == pytest.approx(found.value / found.lower)
    assert found.lower < found.value
    assert "epsilon <= sqrt(clients)" in found.lower_unmet


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("cdp-sgd", {"clip_norm": 1.5, "step": 0.5, "batch": 0.2}), ("noisy-mb-sgd", IN_A_BALL | {"step": 0.1})],
)
def test_from_the_epsilon_that_is_named_privacy_costs_less_than_sampling(
    algorithm: str, settings: dict[str, Any]
) -> None:
    found = _asked(algorithm, settings)
    assert found.free_epsilon is not None
    there = _asked(algorithm, settings, epsilon=found.free_epsilon)
    assert there.bound.terms["privacy"] == pytest.approx(there.bound.sampling, rel=0.05)
    assert there.bound.terms["optimisation"] == pytest.approx(found.bound.terms["optimisation"])


def test_less_epsilon_costs_privacy_alone() -> None:
    strict, loose = (_asked("soteriafl-gd", RECIPE.algorithm_settings, epsilon=e).bound.terms for e in (1.0, 4.0))
    assert strict["privacy"] > 10 * loose["privacy"]
    assert strict["optimisation"] == loose["optimisation"]


def test_a_run_without_noise_has_no_privacy_term_and_no_lower_bound() -> None:
    found = _asked("mb-sgd", {"projection": "ball:2", "step": 0.2}, epsilon=None, delta=None, privacy="none")
    assert found.epsilon is found.free_epsilon is found.bound.lower is None
    assert found.bound.terms["privacy"] == 0
    assert found.bound.gaps == ()


@pytest.mark.parametrize("algorithm", [name for name, entry in ALGORITHMS.items() if entry.theory is not None])
def test_every_theory_answers_for_its_algorithm(algorithm: str) -> None:
    made = replace(RECIPE, algorithm_settings={}, clients=6, rounds=2).for_algorithm(algorithm)
    if not ALGORITHMS[algorithm].private:
        made = replace(made, epsilon=None, delta=None, privacy="none").with_algorithm_settings(step=0.1)
    if algorithm.endswith("svrg"):
        made = made.with_algorithm_settings(sampling="full", snapshot_probability=0.1)
    if algorithm.startswith("shuffled"):
        made = replace(made, epsilon=10.0)
    found = utility_of(make_plan(made))
    assert found.bound.terms or found.bound.gaps
    assert all(value >= 0 for value in found.bound.terms.values())
    assert found.to_dict()["algorithm"] == algorithm


@pytest.mark.parametrize(
    ("algorithm", "settings", "more", "gap"),
    [
        ("soteriafl-gd", {"step": 9.0}, {}, "step = 9 is longer than the theorem allows"),
        ("soteriafl-gd", {"clip_norm": 0.1}, {}, "shortens gradients to 0.1, which can be as long as 1.414"),
        ("soteriafl-gd", {"bound": "normalise"}, {}, "rescaled to the same norm"),
        ("soteriafl-gd", {"shift_step": 0.9}, {}, "shift_step = 0.9"),
        ("soteriafl-gd", {}, {"data_settings": {}}, "smoothness is not known"),
        ("soteriafl-gd", {}, {"cohort": 2}, "2 of 4 clients"),
        ("soteriafl-gd", {}, {"weights": [1.0, 2.0, 1.0, 1.0]}, "weights"),
        ("noisy-mb-sgd", IN_A_BALL, {"model": "network", "model_settings": {}}, "is not convex"),
        ("noisy-mb-sgd", {}, {}, "the model is not restricted"),
        ("noisy-mb-sgd", IN_A_BALL | {"step": 90.0}, {}, "longer than the theorem allows"),
        ("accelerated-mb-sgd", IN_A_BALL | {"step": 9.0, "stages": 1}, {}, "do not hold for these stages"),
        ("noisy-local-sgd", {}, {}, "proves nothing about local steps"),
        ("fed-spa", {"step": 0.1}, {}, "beta_1 = 0.9"),
        ("fed-spa", {}, {}, "no step is given"),
        ("fed-spa", {"step": 0.1, "beta_1": 0.0, "schedule": "constant"}, {}, "Poisson batches"),
        ("dp-fedavg", {}, {}, "distance is not known"),
        ("dp-normfedavg", {"momentum": 0.5}, {}, "momentum"),
    ],
)
def test_what_a_theorem_does_not_cover_is_said(
    algorithm: str, settings: dict[str, Any], more: dict[str, Any], gap: str
) -> None:
    said = _asked(algorithm, settings, **more).bound.gaps
    assert any(gap in one for one in said), said


def test_constants_may_be_assumed_where_they_are_used() -> None:
    known = _asked("dp-fedavg", {"output": "average", "step": 0.01, "clip_norm": 20.0}, {"distance": 2.0})
    assert known.bound.gaps == ()
    assert "distance = 2: assumed" in known.bound.assumptions
    unlike = _asked(
        "dp-fedavg",
        {"output": "average", "step": 0.01, "clip_norm": 20.0},
        {"distance": 2.0, "heterogeneity": 1.0},
    )
    assert unlike.bound.terms["heterogeneity"] > known.bound.terms["heterogeneity"] == 0
    assert unlike.bound.terms["privacy"] == known.bound.terms["privacy"]
    network = {"model": "network", "model_settings": {}}
    stated = {"smoothness": 2.0, "lipschitz": 1.0, "loss_gap": 3.0}
    assert _asked("soteriafl-gd", {"step": 0.005, "clip_norm": 1.0}, stated, **network).bound.gaps == ()
    with pytest.raises(RequestError, match="does not use it; it uses lipschitz, loss_gap, smoothness"):
        _asked("soteriafl-gd", {}, {"distance": 1.0})
    with pytest.raises(RequestError, match="unknown constant to assume 'smothness'; did you mean 'smoothness'"):
        _asked("soteriafl-gd", {}, {"smothness": 1.0})
    with pytest.raises(RequestError, match="must be a positive number"):
        _asked("soteriafl-gd", {}, {"smoothness": math.nan})


def test_what_no_theorem_is_about_is_refused() -> None:
    with pytest.raises(RequestError, match="the papers have no theorem about 'dp-fed'"):
        _asked("dp-fed", {})
    made = make_plan(RECIPE)
    bare = plan(made.algorithm, made.federation, rounds=3, privacy=Target(1.0, 1e-5))
    with pytest.raises(RequestError, match="make_plan"):
        utility_of(bare)


def _enumerated(sampling: Sampling, values: np.ndarray, batch: int) -> float:
    """E (batch mean - mean)^2 over all batches."""
    m = len(values)
    if isinstance(sampling, Poisson):
        rate = batch / m
        draws = [
            (math.prod(rate if c else 1 - rate for c in coins), float(np.dot(coins, values)) / batch)
            for coins in itertools.product([0, 1], repeat=m)
        ]
    else:
        pick = itertools.combinations if sampling.name == "without-replacement" else itertools.product
        rows = list(itertools.combinations(range(m), batch)) if pick is itertools.combinations else None
        rows = rows or list(itertools.product(range(m), repeat=batch))
        draws = [(1 / len(rows), float(values[list(row)].mean())) for row in rows]
    return sum(chance * (mean - values.mean()) ** 2 for chance, mean in draws)


@pytest.mark.parametrize("sampling", [Poisson(2), WithoutReplacement(2), WithReplacement(2)])
def test_the_variance_of_a_batch_is_that_of_all_batches(sampling: Sampling) -> None:
    bound = batch_variance(sampling, torch.tensor([4]))
    balanced = np.array([1.0, -1.0, 1.0, -1.0])  # the worst case for batches of a fixed size: mean 0, length 1
    assert _enumerated(sampling, balanced, 2) == pytest.approx(bound)
    assert _enumerated(sampling, np.ones(4), 2) <= bound
    assert batch_variance(Full(), torch.tensor([4, 9])) == 0
