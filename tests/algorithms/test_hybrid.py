"""Records and whole clients at once: both promises hold, and neither costs more noise than the larger need."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import tacit
from tacit.algorithms.calibrate import calibrate
from tacit.algorithms.hybrid import protect_clients
from tacit.algorithms.isrl_dp import noisy_mb_sgd
from tacit.client.sampling import Full, OnePass, Poisson, Sampling
from tacit.engine.account import account_recipe
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models import logistic_regression
from tacit.privacy import Adjacency, Target
from tacit.privacy.groups import group_epsilon, log_geometric
from tacit.privacy.protection import protection
from tacit.server.projection import Everywhere

SIZES = [8, 8, 20]
RECIPE = Recipe(
    algorithm="noisy-mb-sgd",
    data="breast-cancer",
    clients=5,
    epsilon=2.0,
    rounds=4,
    algorithm_settings={"step": 0.1, "sampling": "full"},
)


def _for_each_record(user: Target, records: int) -> Target:
    """The textbook target of each record: (e/n, d / (1 + exp(e/n) + ... + exp((n-1) e/n)))."""
    each = user.epsilon / records
    return Target(each, user.delta * math.exp(-log_geometric(each, records)), user.adjacency)


def federation() -> Federation:
    x = np.random.default_rng(0).standard_normal((sum(SIZES), 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    return Federation.from_arrays(x, y, clients=np.repeat(np.arange(3), SIZES))


def algorithm(sampling: Sampling) -> tacit.Algorithm:
    return noisy_mb_sgd(
        logistic_regression(features=3),
        bound=tacit.ClipNorm(1.0),
        sampling=sampling,
        step=0.1,
        projection=Everywhere(),
    )


@pytest.mark.parametrize("sampling", [Full(), Poisson(0.5), OnePass(2)])
def test_both_promises_hold_and_hardly_more(sampling: Sampling) -> None:
    records, whole, made = Target(1.0, 1e-5), Target(3.0, 1e-4), algorithm(sampling)
    both = protect_clients(made, federation(), releases=3, privacy=records, clients=whole)
    found = calibrate(made, federation(), releases=3, privacy=both)
    before = calibrate(made, federation(), releases=3, privacy=records)
    assert found.guarantee is not None
    assert max(found.guarantee.epsilons) <= 1.0
    spent = [group_epsilon(event, size, 1e-4) for event, size in zip(found.guarantee.events, SIZES, strict=True)]
    assert max(spent) <= 3.0
    # Each client needs one of the two, and its noise is close to that.
    for cost, own, noise, least in zip(
        spent, found.guarantee.epsilons, found.noise_multipliers, before.noise_multipliers, strict=True
    ):
        assert cost > 0.98 * 3.0 or own > 0.98
        assert float(noise) >= 0.999 * float(least)


def test_less_noise_than_the_paper_asks_for() -> None:
    made, whole = algorithm(Full()), Target(1.0, 1e-5)
    both = protect_clients(made, federation(), releases=3, privacy=Target(1.0, 1e-5), clients=whole)
    ours = calibrate(made, federation(), releases=3, privacy=both).noise_multipliers
    theirs = calibrate(
        made, federation(), releases=3, privacy=[_for_each_record(whole, size) for size in SIZES]
    ).noise_multipliers
    assert bool((ours < theirs).all())
    assert bool((ours > theirs / 2).all())


def test_a_loose_promise_changes_nothing() -> None:
    target = Target(1.0, 1e-5)
    same = protect_clients(
        algorithm(Full()), federation(), releases=3, privacy=target, clients=Target(200.0, 1e-5)
    )
    assert same == target


def test_a_recipe_asks_for_both_and_the_account_shows_both() -> None:
    asked = replace(RECIPE, client_epsilon=5.0, client_delta=1e-4)
    plan = make_plan(asked)
    assert plan.recipe.client_epsilon == 5.0
    assert plan.recipe.epsilon == 2.0
    found = account_recipe(asked)
    rows = {row.protected: row for row in protection(found.guarantee, records=found.records, groups=())[:-1]}
    assert rows["one record"].epsilon < 0.2
    # At the stricter delta of the records; at its own it is kept by construction.
    assert rows["all records of a client"].epsilon < 7.0
    assert Recipe.from_toml(plan.recipe.to_toml()) == plan.recipe
    assert make_plan(plan.recipe).privacy == plan.privacy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"privacy": "none"}, "privacy = 'none'"),
        ({"algorithm": "dp-fedavg"}, "client_epsilon is for algorithms that protect records"),
        ({"client_epsilon": 0.0}, "epsilon must be a finite number above 0"),
        ({"client_delta": 0.0}, "delta must be a number above 0"),
        ({"delta": [1e-5] * 5}, "needs a client_delta"),
    ],
)
def test_wrong_requests(change: dict[str, object], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        make_plan(
            RECIPE.with_settings({"client_epsilon": 5.0, **change}).for_algorithm(
                change.get("algorithm", "noisy-mb-sgd")
            )
        )


def test_the_two_targets_are_about_the_same_neighbours() -> None:
    with pytest.raises(RequestError, match="same adjacency"):
        protect_clients(
            algorithm(Full()),
            federation(),
            releases=1,
            privacy=Target(1.0, 1e-5),
            clients=Target(1.0, 1e-5, Adjacency.ADD_REMOVE),
        )
