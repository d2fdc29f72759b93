"""Clones: exact where they can be enumerated, never below the truth elsewhere."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats
from tests.privacy.pure_scores import PureScores

from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import epsilon, events
from tacit.privacy.clones import GaussianScores, Scores, clone_pair
from tacit.privacy.mixed import EpsilonAtAtoms, composed_answer

Law = dict[tuple[int, ...], float]

_LARGEST_USEFUL_SHIFT = 1.5
"""Beyond this no feasible number of clients leaves a clone, and the scores need not be fine."""


def hockey_stick(p: Law, q: Law, at: float) -> float:
    return sum(max(0.0, mass - math.exp(at) * q.get(outcome, 0.0)) for outcome, mass in p.items())


def clone_laws(local_epsilon: float, clients: int) -> tuple[Law, Law]:
    """The two laws of Fact F, outcome by outcome."""
    laws: tuple[Law, Law] = (defaultdict(float), defaultdict(float))
    keep = math.exp(local_epsilon) / (1 + math.exp(local_epsilon))
    for c in range(clients):
        for a in range(c + 1):
            weight = stats.binom.pmf(c, clients - 1, math.exp(-local_epsilon)) * stats.binom.pmf(a, c, 0.5)
            for d, chance in ((1, keep), (0, 1 - keep)):
                laws[0][a + d, c - a + 1 - d] += weight * chance
                laws[1][c - a + 1 - d, a + d] += weight * chance
    return laws


@pytest.mark.parametrize(("local", "clients"), [(1.0, 2), (0.3, 40), (2.0, 60)])
@pytest.mark.parametrize("part", [0.0, 0.2, 0.6])
def test_the_collected_pair_is_hardly_above_the_exact_one(local: float, clients: int, part: float) -> None:
    exact = hockey_stick(*clone_laws(local, clients), part * local)
    pair = clone_pair(PureScores(local), clients - 1, math.exp(-local))
    assert pair.delta(part * local) >= exact * (1 - 1e-9)
    assert pair.delta(1.01 * part * local) <= exact * 1.01 + 1e-13


def test_rounds_agree_with_another_accountant() -> None:
    local, clients, rounds, delta = 1.0, 12, 6, 1e-4
    upper, lower = clone_laws(local, clients)
    outcomes = sorted(upper)
    other = privacy_loss_distribution.from_two_probability_mass_functions(
        {i: math.log(lower[o]) for i, o in enumerate(outcomes)},
        {i: math.log(upper[o]) for i, o in enumerate(outcomes)},
        value_discretization_interval=1e-4,
    ).self_compose(rounds)
    pair = clone_pair(PureScores(local), clients - 1, math.exp(-local))
    found = composed_answer([(pair, rounds)], delta, EpsilonAtAtoms(delta))
    assert found == pytest.approx(other.get_epsilon_for_delta(delta), rel=5e-3)


@pytest.mark.parametrize(("local", "clients", "delta"), [(1.0, 12, 1e-4), (0.4, 9, 1e-3), (2.5, 12, 1e-2)])
def test_three_rounds_are_not_below_the_enumerated_ones(local: float, clients: int, delta: float) -> None:
    upper, lower = clone_laws(local, clients)
    p = np.array([upper[outcome] for outcome in sorted(upper)])
    q = np.array([lower[outcome] for outcome in sorted(upper)])
    p, q = (np.einsum("i,j,k->ijk", law, law, law) for law in (p, q))
    pair = clone_pair(PureScores(local), clients - 1, math.exp(-local))
    found = composed_answer([(pair, 3)], delta, EpsilonAtAtoms(delta))
    assert np.maximum(p - math.exp(found) * q, 0.0).sum() <= delta
    assert np.maximum(p - math.exp(0.99 * found) * q, 0.0).sum() > delta


@pytest.mark.parametrize("scores", [PureScores(0.7), GaussianScores(0.2), GaussianScores(1.0)])
def test_laws_of_means_are_laws_and_centred(scores: Scores) -> None:
    for values, masses in scores.means([1, 2, 37, 1000]):
        assert masses.sum() == pytest.approx(1.0, abs=1e-9)
        assert (masses * values).sum() == pytest.approx(0.0, abs=1e-9)
        assert np.abs(values).max() <= scores.reach <= 1


@pytest.mark.parametrize("shift", [0.05, 0.4, 1.2, 4.0])
def test_a_single_gaussian_message_is_the_gaussian_mechanism(shift: float) -> None:
    pair = clone_pair(GaussianScores(shift), 0, 1.0)
    for at in (0.0, 0.5 * shift, 2 * shift):
        exact = stats.norm.cdf(shift / 2 - at / shift) - math.exp(at) * stats.norm.cdf(-shift / 2 - at / shift)
        assert exact <= pair.delta(at)
        assert pair.delta(1.02 * at) <= exact * 1.01 or shift > _LARGEST_USEFUL_SHIFT


def test_gaussian_scores_agree_with_a_sample() -> None:
    shift, others, rate, at, draws = 0.8, 9, 0.6, 0.25, 200_000
    generator = Randomness(5).generator(Purpose.NOISE)
    sizes_drawn = 1 + generator.binomial(others, rate, draws)
    signs = generator.choice([-1.0, 1.0], (draws, others + 1))
    losses = shift * (signs * shift / 2 + generator.standard_normal((draws, others + 1)))
    used = np.arange(others + 1) < sizes_drawn[:, None]
    means = (np.tanh(losses / 2) * used).sum(1) / sizes_drawn
    values = (1 + math.exp(at)) * np.maximum(means - math.tanh(at / 2), 0.0)
    error = values.std() / math.sqrt(draws)
    found = clone_pair(GaussianScores(shift), others, rate).delta(at)
    assert abs(found - values.mean()) <= 4 * error + 0.01 * found


@pytest.mark.parametrize("other", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("noise", [6.0, 15.0])
def test_three_shuffled_gaussians_are_within_the_bound(noise: float, other: float) -> None:
    delta = 1e-2
    found = epsilon(events.shuffled(3, 1, 1, noise), delta)
    assert found < epsilon(events.gaussian(noise), delta)
    y = np.linspace(-6 * noise, 6 * noise, 81)
    density = {x: stats.norm.pdf(y, x, noise) * (y[1] - y[0]) for x in (-1.0, 1.0, other)}

    def shuffled(x: float) -> np.ndarray:
        orders = itertools.permutations((x, other, -other))
        laws = {-other: stats.norm.pdf(y, -other, noise) * (y[1] - y[0]), **density}
        return np.asarray(sum(np.einsum("i,j,k->ijk", *(laws[v] for v in order)) for order in orders)) / 6

    for here, there in ((-1.0, 1.0), (1.0, -1.0)):
        gap = shuffled(here) - math.exp(found) * shuffled(there)
        assert np.maximum(gap, 0.0).sum() <= delta


def test_the_range_of_losses_leaves_little_outside() -> None:
    pair = clone_pair(GaussianScores(0.5), 30, 0.3)
    low, high = pair.loss_range(math.log(1e-6))
    masses = np.exp(pair.log_cells(np.array([low, high]))[0])
    assert masses[0] <= 1e-6
    assert masses[-1] <= 1e-6
    assert masses.sum() == pytest.approx(1.0, abs=1e-9)


def test_a_hundred_thousand_clients() -> None:
    assert 0 < epsilon(events.shuffled(100_000, 1, 1, 4.0), 1e-6) < 0.03
