"""The price of choosing: above the exact one where that can be computed, refused where nothing is proved."""

from __future__ import annotations

import math
from functools import partial

import dp_accounting
import numpy as np
import pytest
from scipy.special import logsumexp

from tacit.errors import RequestError
from tacit.privacy import Adjacency, calibrate_noise
from tacit.privacy.accounting import epsilon
from tacit.privacy.events import InexactNoiseDpEvent, composed, gaussian, poisson, repeated
from tacit.privacy.rdp import rdp_epsilon, renyi_divergence
from tacit.privacy.selection import RandomTrials, run_epsilon, selection_divergence, selection_epsilon


def divergence(p: np.ndarray, q: np.ndarray, order: float) -> float:
    return float(logsumexp(order * np.log(p) + (1 - order) * np.log(q))) / (order - 1)


def best_of(q: np.ndarray, stop: float) -> np.ndarray:
    """The law of the best of K draws from {0 < 1 < ...}: E[F^K] is log(1 - (1 - g) F) / log(g)."""
    below = np.log1p(-(1 - stop) * np.minimum(np.cumsum(q), 1.0)) / math.log(stop)
    return np.diff(below, prepend=0.0)


@pytest.mark.parametrize("mean", [1.5, 4.0, 30.0])
@pytest.mark.parametrize("loss", [0.1, 1.0, 3.0])
def test_the_bound_holds_where_the_truth_can_be_computed(mean: float, loss: float) -> None:
    trials = RandomTrials(mean)
    # Three outcomes; the neighbour makes the rare best one exp(loss) times as likely.
    one = np.array([0.0, 0.3, 0.01])
    two = np.array([0.0, 0.3, 0.01 * math.exp(loss)])
    one[0], two[0] = 1 - one.sum(), 1 - two.sum()
    for p, q in ((one, two), (two, one)):
        base = partial(divergence, p, q)
        other = partial(divergence, q, p)
        for order in (1.5, 2.0, 8.0, 40.0):
            worst = selection_divergence(lambda a: max(base(a), other(a)), order, trials)  # noqa: B023  # used at once
            assert divergence(best_of(p, trials.stop), best_of(q, trials.stop), order) <= worst


def test_the_number_of_trials_has_the_law_that_the_theorem_needs() -> None:
    trials = RandomTrials(5.0)
    drawn = np.array([trials.draw(np.random.default_rng(seed)) for seed in range(20_000)])
    assert drawn.min() == 1
    assert abs(drawn.mean() - 5.0) < 4 * drawn.std() / math.sqrt(len(drawn))
    alone = (1 - trials.stop) / math.log(1 / trials.stop)
    assert abs((drawn == 1).mean() - alone) < 4 * math.sqrt(alone * (1 - alone) / len(drawn))


def test_choosing_costs_more_than_one_run_and_less_than_all() -> None:
    run = repeated(gaussian(20.0), 10)
    alone = epsilon(run, 1e-5)
    chosen = [selection_epsilon(run, RandomTrials(mean), 1e-5) for mean in (2.0, 20.0, 200.0)]
    assert alone < chosen[0] < chosen[1] < chosen[2] < epsilon(repeated(run, 200), 1e-5)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_curve_is_that_of_the_second_accountant(adjacency: Adjacency) -> None:
    event, delta = repeated(poisson(0.1, 2.0), 50), 1e-5
    orders = np.linspace(1.5, 60.0, 200)
    best = min(
        renyi_divergence(event, a, adjacency) + math.log(1 - 1 / a) - math.log(a * delta) / (a - 1)
        for a in orders
    )
    assert best == pytest.approx(rdp_epsilon(event, delta, adjacency), rel=1e-2)


def test_what_has_no_curve_is_refused() -> None:
    inexact = composed([gaussian(3.0), InexactNoiseDpEvent(1e-6, 1e-30)])
    for event in (inexact, dp_accounting.NonPrivateDpEvent()):
        with pytest.raises(RequestError, match="no Renyi curve"):
            selection_epsilon(event, RandomTrials(3.0), 1e-5)
    with pytest.raises(RequestError, match="above 1"):
        RandomTrials(1.0)
    with pytest.raises(RequestError, match="order above 1"):
        renyi_divergence(gaussian(1.0), 1.0)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("rate", [0.05, 1.0])
@pytest.mark.parametrize("asked", [0.3, 5.0])
def test_runs_with_the_epsilon_that_is_left_keep_the_promise(
    adjacency: Adjacency, rate: float, asked: float
) -> None:
    def run(noise: float) -> dp_accounting.DpEvent:
        return repeated(poisson(rate, noise) if rate < 1 else gaussian(noise), 20)

    def noise_for(wanted: float) -> float:
        return calibrate_noise(run, epsilon=wanted, delta=1e-5, adjacency=adjacency)

    trials = RandomTrials(7.0)
    left = run_epsilon(run(noise_for(asked)), trials, asked, 1e-5, adjacency)
    assert 0 < left < asked
    price = selection_epsilon(run(noise_for(left)), trials, 1e-5, adjacency)
    assert 0.99 * asked < price <= asked
    assert selection_epsilon(run(noise_for(1.05 * left)), trials, 1e-5, adjacency) > asked, "no more is left"


def test_a_choice_that_no_noise_makes_private_enough_is_refused() -> None:
    with pytest.raises(RequestError, match="epsilon"):
        run_epsilon(gaussian(1.0), RandomTrials(10.0), 1e-3, 1e-5)
    quiet = repeated(gaussian(300.0), 2)
    assert run_epsilon(quiet, RandomTrials(10.0), 5.0, 1e-5) == epsilon(quiet, 1e-5), "nothing to give up"


def test_the_number_of_trials_is_rarely_above_its_quantile() -> None:
    trials = RandomTrials(5.0)
    drawn = np.array([trials.draw(np.random.default_rng(seed)) for seed in range(20_000)])
    assert (drawn > trials.quantile(0.01)).mean() <= 0.0125
    assert trials.quantile(1e-5) > trials.quantile(1e-2) > 5
