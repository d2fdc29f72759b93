"""The price of choosing: above the exact one where that can be computed, refused where nothing is proved."""

from __future__ import annotations

import math
from itertools import product

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from tacit.errors import RequestError
from tacit.privacy import Adjacency, calibrate_noise
from tacit.privacy.accountant.accounting import epsilon
from tacit.privacy.accountant.selection import RandomTrials, run_epsilon, selection_epsilon
from tacit.privacy.events import InexactNoiseDpEvent, composed, gaussian, poisson, repeated


def best_of(q: np.ndarray, stop: float) -> np.ndarray:
    """The law of the best of K draws, the best outcome first: E[F^K] is log(1 - (1 - g) F) / log(g)."""
    better = np.minimum(np.cumsum(q) - q, 1.0)
    return np.log1p((1 - stop) * q / (stop + (1 - stop) * better)) / -math.log(stop)


def gaussian_cells(shift: float) -> tuple[np.ndarray, np.ndarray]:
    """A run of Gaussian releases on two neighbouring data sets, in small cells."""
    edges = np.concatenate(([-np.inf], np.linspace(-7.0, 7.0 + shift, 600), [np.inf]))
    return np.diff(stats.norm.cdf(edges - shift)), np.diff(stats.norm.cdf(edges))


@pytest.mark.parametrize("mean", [1.5, 10.0, 100.0])
@pytest.mark.parametrize("shift", [0.2, 1.0, 3.0])
def test_no_order_of_the_outcomes_tells_more_than_the_bound(mean: float, shift: float) -> None:
    """Whatever makes a run better, from the order of the loss to none at all; and one nearly attains it."""
    trials, delta = RandomTrials(mean), 1e-4
    found = selection_epsilon(gaussian(2 / shift), trials, delta)
    here, there = gaussian_cells(shift)
    place, generator = np.arange(len(here)), np.random.default_rng(0)
    orders = [place, place[::-1], generator.permutation(len(here))]
    # The outcomes that speak for the other data set first, up to some cell; then those that speak for this one.
    orders += [np.append(place[:few], place[:few:-1]) for few in range(60, 500, 4)]
    largest = 0.0
    for order in orders:
        p, q = (best_of(law[order], trials.stop) for law in (here, there))
        for one, other in ((p, q), (q, p)):
            assert np.maximum(one - math.exp(found) * other, 0.0).sum() <= delta
            largest = max(largest, np.maximum(one - math.exp(0.92 * found) * other, 0.0).sum())
    assert largest > delta


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


def test_real_noise_can_be_chosen_among_and_no_noise_cannot() -> None:
    trials = RandomTrials(3.0)
    inexact = composed([gaussian(3.0), InexactNoiseDpEvent(1e-6, 1e-30)])
    ideal, real = (selection_epsilon(event, trials, 1e-5) for event in (gaussian(3.0), inexact))
    assert ideal < real < 1.001 * ideal
    assert selection_epsilon(dp_accounting.NonPrivateDpEvent(), trials, 1e-5) == math.inf
    with pytest.raises(RequestError, match="above 1"):
        RandomTrials(1.0)


@pytest.mark.parametrize(
    ("rate", "asked", "adjacency"),
    [
        *product([1.0], [0.3, 5.0], Adjacency),
        (0.05, 0.3, Adjacency.REPLACE_ONE),
        (0.05, 5.0, Adjacency.ADD_REMOVE),
    ],
)
def test_runs_with_the_epsilon_that_is_left_keep_the_promise(
    rate: float, asked: float, adjacency: Adjacency
) -> None:
    """All that have a closed form; of batches, which take seconds each, every epsilon and adjacency once."""

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
