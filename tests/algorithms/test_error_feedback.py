"""EF21-SGDM: charged as minibatch gradients are, learns from few coordinates, refuses nothing but nonsense."""

from __future__ import annotations

import dp_accounting
import pytest
from dp_accounting import pld

from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.simulate import simulate
from tacit.errors import RequestError

RECIPE = Recipe(
    data="breast-cancer", algorithm="ef21-sgdm", clients=4, rounds=40, epsilon=8.0, delta=1e-5,
    adjacency="add-remove", algorithm_settings={"sampling": "poisson", "batch": 0.3, "step": 0.5},
)  # fmt: skip


def test_its_promise_is_that_of_noisy_minibatches() -> None:
    """What comes after the noise (average, top-k, memory) is neither paid for nor earns anything."""
    plan = make_plan(RECIPE)
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
    noise = dp_accounting.GaussianDpEvent(float(plan.calibration.noise_multipliers[0]))
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.3, noise), 40)
    assert plan.guarantee is not None
    assert plan.guarantee.epsilon <= 8.0
    assert accountant.get_epsilon(1e-5) == pytest.approx(plan.guarantee.epsilon, rel=2e-3)


def test_it_learns_from_a_tenth_of_the_coordinates() -> None:
    plan = make_plan(RECIPE.with_algorithm_settings(compressor="top-k:0.1"))
    history = simulate(plan, evaluate_every=40).history
    assert history[-1].train_loss < 0.5 * history[0].train_loss
    # An envelope of six bytes, three floats, and three positions below 31 in 9 + 7 bits and less.
    assert history[-1].uplink_bits_total == 40 * 4 * 8 * plan.algorithm.uplink.compressor.message_bytes(31)
    assert plan.algorithm.uplink.compressor.message_bytes(31) == 6 + 3 * 4 + 3


def test_its_own_steps_do_not_overshoot_where_noise_would_permit_long_ones() -> None:
    """Directions are means of ten rounds and more: with long steps, the loss grew to 50 million."""
    recipe = Recipe(
        data="diabetes",
        algorithm="ef21-sgdm",
        clients=5,
        epsilon=50.0,
        delta=1e-5,
        target_bound=350.0,
        rounds=150,
    )
    history = simulate(make_plan(recipe), evaluate_every=150).history
    assert history[-1].train_loss < 0.2 * history[0].train_loss


@pytest.mark.parametrize("algorithm", ["soteriafl-sgd", "cdp-sgd", "dp-scaffold", "fed-spa"])
def test_where_theory_wants_an_unbiased_compressor_top_k_is_refused(algorithm: str) -> None:
    recipe = Recipe(
        data="breast-cancer", algorithm=algorithm, clients=4, rounds=4, epsilon=8.0, delta=1e-5,
        algorithm_settings={"compressor": "top-k:0.1"},
    )  # fmt: skip
    with pytest.raises(RequestError, match=r"biased|must be rand-k"):
        make_plan(recipe)
