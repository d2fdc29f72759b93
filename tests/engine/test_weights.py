from __future__ import annotations

from dataclasses import replace
from statistics import mean

import numpy as np
import pytest
import torch

import tacit
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.weights import DIFFERENCE, noise_aware, noise_in_records
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy import Target, calibrate_noise
from tacit.privacy.events import gaussian, repeated
from tacit.privacy.promises.terms import RECORD_COUNTS

SIZES = torch.tensor([10.0, 100.0, 1000.0], dtype=torch.float64)


def _unlike(sizes: list[int], seed: int = 0) -> Federation:
    """Clients of these sizes with the same linear classes, and 4,000 test records."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(sum(sizes) + 4000, 10)) / np.sqrt(10)
    targets = (features @ np.arange(-4.5, 5) > 0).astype(np.int64)
    train = slice(0, sum(sizes))
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return Federation.from_arrays(
        features[train].astype(np.float32),
        targets[train],
        owners,
        test=(features[sum(sizes) :].astype(np.float32), targets[sum(sizes) :]),
    )


RECIPE = Recipe(algorithm="noisy-mb-sgd", epsilon=2.0, feature_norm=1.0)


def _objective(shares: torch.Tensor, noise: torch.Tensor) -> float:
    apart = DIFFERENCE**2 * (shares - SIZES / SIZES.sum()).square().sum()
    return float((shares * noise / SIZES).square().sum() + apart)


@pytest.mark.parametrize("noise", [0.1, 3.0, 50.0])
def test_no_other_shares_have_less_noise_and_difference(noise: float) -> None:
    each = torch.full((3,), noise, dtype=torch.float64)
    shares = noise_aware(SIZES, each)
    assert float(shares.sum()) == pytest.approx(1)
    assert bool((shares > 0).all())
    for way in ([1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [-1.0, 0.0, 1.0]):
        for step in (1e-4, -1e-4):
            moved = shares + step * torch.tensor(way, dtype=torch.float64)
            assert _objective(moved, each) > _objective(shares, each)


def test_little_noise_is_by_records_and_much_is_by_precision() -> None:
    little, much = (noise_aware(SIZES, torch.full((3,), noise, dtype=torch.float64)) for noise in (1e-6, 1e6))
    assert little.tolist() == pytest.approx((SIZES / SIZES.sum()).tolist())
    assert much.tolist() == pytest.approx((SIZES.square() / SIZES.square().sum()).tolist(), rel=1e-3)


def test_the_noise_in_records_is_that_of_a_whole_run() -> None:
    """A client with so many records has, over all rounds, as much noise as a bound's length of signal."""
    plan = make_plan(
        replace(RECIPE, rounds=50).with_algorithm_settings(sampling="full"), federation=_unlike([500] * 3)
    )
    dim = plan.algorithm.work.model.dim
    target = Target(2.0, 1e-5)
    needed = noise_in_records(RECIPE, plan.federation, target, dim)
    each_round = calibrate_noise(
        lambda z: repeated(gaussian(z), 50), epsilon=2.0, delta=1e-5, adjacency=target.adjacency
    )
    over_all = each_round * np.sqrt(dim / 50)
    assert needed.tolist() == pytest.approx([over_all] * 3, rel=0.02)


def test_who_has_a_larger_budget_counts_more() -> None:
    federation = _unlike([40, 40, 40])
    recipe = replace(RECIPE, epsilon=[0.5, 2.0, 8.0], delta=[1e-5] * 3, weights="noise-aware")
    plan = make_plan(recipe, federation=federation)
    assert plan.federation.weights is not None
    first, second, third = plan.federation.weights.tolist()
    assert first < second < third


def test_sizes_that_set_weights_are_named_as_public() -> None:
    plan = make_plan(RECIPE, federation=_unlike([20, 400]))
    assert plan.recipe is not None
    assert plan.recipe.weights == "noise-aware"
    assert RECORD_COUNTS in plan.federation.peeks
    assert plan.federation.weights is not None
    assert float(plan.federation.weights[0]) < 20 / 210


def test_a_sum_and_a_run_without_privacy_count_every_record_the_same() -> None:
    federation = _unlike([20, 400, 60, 80, 100])
    for recipe in (replace(RECIPE, trust="sum"), replace(RECIPE, privacy="none", epsilon=None, delta=None)):
        plan = make_plan(recipe, federation=federation)
        assert plan.recipe is not None
        assert plan.recipe.weights == "records"
        said = make_plan(replace(recipe, weights="noise-aware"), federation=federation)
        assert said.federation.weights is not None
        assert plan.federation.weights is not None
        assert said.federation.weights.tolist() == pytest.approx(plan.federation.weights.tolist())


def test_many_tiny_clients_do_not_drown_a_large_one_in_noise() -> None:
    """Sixty clients with ten records each add sixty times the noise of the one that has 600."""
    federation = _unlike([600, *[10] * 60])

    def reached(weights: str | None, seed: int) -> float:
        plan = make_plan(replace(RECIPE, weights=weights, seed=seed, rounds=60), federation=federation)
        metric = tacit.simulate(plan, evaluate_every=60).last.test_metric
        assert metric is not None
        return metric

    by_records, aware = (mean(reached(weights, seed) for seed in range(3)) for weights in ("records", None))
    assert aware > by_records + 0.03


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(RequestError, match="weights must be 'noise-aware', 'records', 'equal' or a number"):
        make_plan(replace(RECIPE, weights="record"), federation=_unlike([20, 40]))
