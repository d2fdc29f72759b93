"""Amplification by shuffling: exact where it can be enumerated, never below the truth elsewhere."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import settings as sizes
from hypothesis import strategies as st
from scipy import stats

from tacit.errors import RequestError
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Adjacency
from tacit.privacy.clones import GaussianScores, PureScores, Scores, clone_pair
from tacit.privacy.shuffling import (
    ShuffledGaussian,
    one_round_delta,
    shuffled_epsilon,
    shuffled_gaussian_epsilon,
    shuffled_noise_multiplier,
)

Law = dict[tuple[int, ...], float]

_LARGEST_USEFUL_SHIFT = 1.5
"""Beyond this no feasible number of clients leaves a clone, and the scores need not be fine."""


def hockey_stick(p: Law, q: Law, epsilon: float) -> float:
    return sum(max(0.0, mass - math.exp(epsilon) * q.get(outcome, 0.0)) for outcome, mass in p.items())


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


@pytest.mark.parametrize(("clients", "epsilon"), [(25, 1.0), (100, 0.64), (1000, 0.18)])
def test_known_values(clients: int, epsilon: float) -> None:
    assert shuffled_epsilon(1.0, clients, 1e-6) == pytest.approx(epsilon, abs=0.005)


@given(st.floats(0.05, 4.0), st.integers(1, 9), st.floats(0.0, 1.2))
def test_one_round_is_the_enumerated_hockey_stick(local: float, clients: int, part: float) -> None:
    epsilon = part * local
    exact = hockey_stick(*clone_laws(local, clients), epsilon)
    assert one_round_delta(local, clients, epsilon) == pytest.approx(exact, rel=1e-9, abs=1e-12)


@sizes(max_examples=20)
@given(st.floats(0.2, 3.0), st.integers(2, 4), st.integers(2, 3), st.floats(0.0, 0.9))
def test_real_randomised_response_is_within_the_bound(
    local: float, clients: int, answers: int, part: float
) -> None:
    def response(value: int) -> list[float]:
        other = 1 / (math.exp(local) + answers - 1)
        return [math.exp(local) * other if answer == value else other for answer in range(answers)]

    def shuffled(values: tuple[int, ...]) -> Law:
        law: Law = defaultdict(float)
        for messages in itertools.product(range(answers), repeat=clients):
            counts = tuple(messages.count(answer) for answer in range(answers))
            law[counts] += math.prod(response(v)[m] for v, m in zip(values, messages, strict=True))
        return law

    bound = one_round_delta(local, clients, part * local)
    for others in itertools.combinations_with_replacement(range(answers), clients - 1):
        assert hockey_stick(shuffled((0, *others)), shuffled((1, *others)), part * local) <= bound + 1e-12


@pytest.mark.parametrize("others", [(0, 0), (0, 1), (1, 1)])
def test_randomisers_that_sometimes_tell_are_within_the_bound(others: tuple[int, ...]) -> None:
    local, local_delta, delta = 0.5, 1e-3, 2e-2
    keep = math.exp(local) / (1 + math.exp(local))
    # Answers 2 and 3 give away who was asked: 0 or 1.
    response = [
        [(1 - local_delta) * keep, (1 - local_delta) * (1 - keep), local_delta, 0.0],
        [(1 - local_delta) * (1 - keep), (1 - local_delta) * keep, 0.0, local_delta],
    ]

    def shuffled(value: int) -> Law:
        law: Law = defaultdict(float)
        for messages in itertools.product(range(4), repeat=3):
            chances = (response[v][m] for v, m in zip((value, *others), messages, strict=True))
            law[tuple(map(messages.count, range(4)))] += math.prod(chances)
        return law

    found = shuffled_epsilon(local, 3, delta, local_delta=local_delta)
    assert found < local
    assert hockey_stick(shuffled(0), shuffled(1), found) <= delta
    assert hockey_stick(shuffled(1), shuffled(0), found) <= delta


def test_more_clients_less_noise_and_more_rounds_are_ordered() -> None:
    by_clients = [shuffled_epsilon(1.0, clients, 1e-6) for clients in (1, 2, 10, 30, 100, 300, 10_000, 100_000)]
    assert by_clients == sorted(by_clients, reverse=True)
    assert by_clients[-1] < 0.02
    by_local = [shuffled_epsilon(local, 1000, 1e-6) for local in (0.01, 0.5, 1.0, 2.0, 6.0, 40.0, 800.0)]
    assert by_local == sorted(by_local)
    by_rounds = [shuffled_epsilon(0.5, 300, 1e-6, rounds=rounds) for rounds in (1, 2, 8, 64)]
    assert by_rounds == sorted(by_rounds)


@given(st.floats(1e-9, 50.0), st.integers(1, 400), st.floats(1e-12, 0.5), st.floats(0.0, 1e-3))
def test_never_above_the_local_epsilon(local: float, clients: int, delta: float, local_delta: float) -> None:
    found = shuffled_epsilon(local, clients, delta, local_delta=local_delta)
    assert found <= local if local_delta < delta else found == math.inf


@pytest.mark.parametrize(("local", "clients"), [(1.0, 2), (0.3, 40), (2.0, 500)])
@pytest.mark.parametrize("part", [0.0, 0.2, 0.6])
def test_the_collected_pair_is_hardly_above_the_exact_one(local: float, clients: int, part: float) -> None:
    exact = one_round_delta(local, clients, part * local)
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
    found = shuffled_epsilon(local, clients, delta, rounds=rounds)
    assert found == pytest.approx(other.get_epsilon_for_delta(delta), rel=5e-3)


@pytest.mark.parametrize(("local", "clients", "delta"), [(1.0, 12, 1e-4), (0.4, 9, 1e-3), (2.5, 12, 1e-2)])
def test_three_rounds_are_not_below_the_enumerated_ones(local: float, clients: int, delta: float) -> None:
    upper, lower = clone_laws(local, clients)
    p = np.array([upper[outcome] for outcome in sorted(upper)])
    q = np.array([lower[outcome] for outcome in sorted(upper)])
    p, q = (np.einsum("i,j,k->ijk", law, law, law) for law in (p, q))
    found = shuffled_epsilon(local, clients, delta, rounds=3)
    assert np.maximum(p - math.exp(found) * q, 0.0).sum() <= delta
    assert np.maximum(p - math.exp(0.99 * found) * q, 0.0).sum() > delta


def test_a_local_delta_costs_less_than_published_and_is_not_free() -> None:
    local, clients, delta, local_delta = 1.0, 1000, 1e-6, 1e-10
    found = shuffled_epsilon(local, clients, delta, local_delta=local_delta)
    assert found > shuffled_epsilon(local, clients, delta)
    moved = local_delta / (1 + math.exp(local))
    slip = moved + (clients - 1) * math.exp(-local) * (local_delta + moved)
    assert one_round_delta(local, clients, found) + (1 + math.exp(found)) * slip == pytest.approx(delta, rel=1e-4)
    published = (1 + math.exp(found)) * (1 + math.exp(-local) / 2) * clients * local_delta
    assert one_round_delta(local, clients, found) + published > delta
    assert shuffled_epsilon(local, clients, delta, local_delta=delta) == math.inf
    pure, leaky = (shuffled_epsilon(local, clients, delta, local_delta=d, rounds=50) for d in (0.0, 1e-12))
    assert pure < leaky < 1.02 * pure
    assert shuffled_epsilon(9.0, 3, delta, local_delta=1e-9, rounds=5) <= 5 * 9.0


@pytest.mark.parametrize("scores", [PureScores(0.7), GaussianScores(0.2), GaussianScores(1.0)])
def test_laws_of_means_are_laws_and_centred(scores: Scores) -> None:
    for values, masses in scores.means([1, 2, 37, 1000]):
        assert masses.sum() == pytest.approx(1.0, abs=1e-9)
        assert (masses * values).sum() == pytest.approx(0.0, abs=1e-9)
        assert np.abs(values).max() <= scores.reach <= 1


@pytest.mark.parametrize("shift", [0.05, 0.4, 1.2, 4.0])
def test_a_single_gaussian_message_is_the_gaussian_mechanism(shift: float) -> None:
    pair = clone_pair(GaussianScores(shift), 0, 1.0)
    for epsilon in (0.0, 0.5 * shift, 2 * shift):
        exact = stats.norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * stats.norm.cdf(
            -shift / 2 - epsilon / shift
        )
        assert exact <= pair.delta(epsilon)
        assert pair.delta(1.02 * epsilon) <= exact * 1.01 or shift > _LARGEST_USEFUL_SHIFT


def test_gaussian_scores_agree_with_a_sample() -> None:
    shift, others, rate, epsilon, draws = 0.8, 9, 0.6, 0.25, 200_000
    generator = Randomness(5).generator(Purpose.NOISE)
    sizes_drawn = 1 + generator.binomial(others, rate, draws)
    signs = generator.choice([-1.0, 1.0], (draws, others + 1))
    losses = shift * (signs * shift / 2 + generator.standard_normal((draws, others + 1)))
    used = np.arange(others + 1) < sizes_drawn[:, None]
    means = (np.tanh(losses / 2) * used).sum(1) / sizes_drawn
    values = (1 + math.exp(epsilon)) * np.maximum(means - math.tanh(epsilon / 2), 0.0)
    error = values.std() / math.sqrt(draws)
    found = clone_pair(GaussianScores(shift), others, rate).delta(epsilon)
    assert abs(found - values.mean()) <= 4 * error + 0.01 * found


@pytest.mark.parametrize("other", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("noise", [6.0, 15.0])
def test_three_shuffled_gaussians_are_within_the_bound(noise: float, other: float) -> None:
    delta = 1e-2
    found = shuffled_gaussian_epsilon(noise, clients=3, rounds=1, delta=delta)
    assert found < ShuffledGaussian(noise, clients=3).local_epsilon(delta)
    y = np.linspace(-6 * noise, 6 * noise, 81)
    density = {x: stats.norm.pdf(y, x, noise) * (y[1] - y[0]) for x in (-1.0, 1.0, other)}

    def shuffled(x: float) -> np.ndarray:
        orders = itertools.permutations((x, other, -other))
        laws = {-other: stats.norm.pdf(y, -other, noise) * (y[1] - y[0]), **density}
        return np.asarray(sum(np.einsum("i,j,k->ijk", *(laws[v] for v in order)) for order in orders)) / 6

    for here, there in ((-1.0, 1.0), (1.0, -1.0)):
        gap = shuffled(here) - math.exp(found) * shuffled(there)
        assert np.maximum(gap, 0.0).sum() <= delta


def test_gaussian_runs_are_ordered_and_bounded_by_the_local_epsilon() -> None:
    by_clients = [shuffled_gaussian_epsilon(8.0, clients, 3, 1e-5) for clients in (1, 10, 100, 1000)]
    assert by_clients == sorted(by_clients, reverse=True)
    assert by_clients[0] == ShuffledGaussian(8.0, 1, 3).local_epsilon(1e-5)
    by_rounds = [shuffled_gaussian_epsilon(8.0, 100, rounds, 1e-5) for rounds in (1, 4, 16)]
    assert by_rounds == sorted(by_rounds)
    by_noise = [shuffled_gaussian_epsilon(noise, 100, 2, 1e-5) for noise in (0.5, 2.0, 4.0, 8.0, 100.0, 1e6)]
    assert by_noise == sorted(by_noise, reverse=True)
    zeroed = shuffled_gaussian_epsilon(8.0, 100, 2, 1e-5, Adjacency.ADD_REMOVE)
    assert zeroed < shuffled_gaussian_epsilon(8.0, 100, 2, 1e-5)


def test_noise_for_one_of_many_records_leaves_no_clones() -> None:
    run = ShuffledGaussian(8.0, clients=1000, records=100)
    assert run.epsilon(1e-6) == run.local_epsilon(1e-6)
    assert ShuffledGaussian(8.0, clients=1000).epsilon(1e-6) < run.epsilon(1e-6) / 4


def test_one_gaussian_round_is_what_its_pair_says() -> None:
    # The slip can only add: the pair of the same clones alone has a smaller delta.
    found = shuffled_gaussian_epsilon(10.0, 200, 1, 1e-5)
    everyone = clone_pair(GaussianScores(0.2), 199, 1.0)
    assert everyone.delta(found) < 1e-5


@pytest.mark.slow
def test_calibrated_noise_keeps_the_target_and_little_less_does_not() -> None:
    for clients, rounds, records in ((100, 1, 1), (1000, 20, 1), (50, 5, 20)):
        noise = shuffled_noise_multiplier(1.0, 1e-5, clients, rounds, records=records)
        assert shuffled_gaussian_epsilon(noise, clients, rounds, 1e-5, records=records) <= 1.0
        assert shuffled_gaussian_epsilon(0.98 * noise, clients, rounds, 1e-5, records=records) > 1.0


def test_calibrated_noise_is_on_the_safe_side() -> None:
    noise = shuffled_noise_multiplier(0.5, 1e-5, clients=100, rounds=1)
    assert shuffled_gaussian_epsilon(noise, 100, 1, 1e-5) <= 0.5
    assert ShuffledGaussian(noise, 100).local_epsilon(1e-5) > 1.0


def test_the_range_of_losses_leaves_little_outside() -> None:
    pair = clone_pair(GaussianScores(0.5), 30, 0.3)
    low, high = pair.loss_range(math.log(1e-6))
    masses = np.exp(pair.log_cells(np.array([low, high]))[0])
    assert masses[0] <= 1e-6
    assert masses[-1] <= 1e-6
    assert masses.sum() == pytest.approx(1.0, abs=1e-9)


def test_a_hundred_thousand_clients() -> None:
    assert 0 < shuffled_gaussian_epsilon(4.0, 100_000, 1, 1e-6) < 0.03


def test_equal_runs_are_equal() -> None:
    assert ShuffledGaussian(2.0, 10, 3, adjacency=Adjacency("replace-one")) == ShuffledGaussian(2.0, 10, 3)
    assert hash(ShuffledGaussian(2.0, 10)) == hash(ShuffledGaussian(2.0, 10))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: shuffled_epsilon(0.0, 10, 1e-5),
        lambda: shuffled_epsilon(math.nan, 10, 1e-5),
        lambda: shuffled_epsilon(1.0, 0, 1e-5),
        lambda: shuffled_epsilon(1.0, 10, 0.0),
        lambda: shuffled_epsilon(1.0, 10, 1e-5, rounds=0),
        lambda: shuffled_epsilon(1.0, 10, 1e-5, local_delta=-1e-9),
        lambda: shuffled_epsilon(1.0, 10, 1e-5, local_delta=math.nan),
        lambda: ShuffledGaussian(math.inf, 10),
        lambda: ShuffledGaussian(1.0, 2.5),  # type: ignore[arg-type]
        lambda: ShuffledGaussian(1.0, 10).epsilon(2.0),
        lambda: shuffled_gaussian_epsilon(1.0, 10, 1, 1e-5, "either"),  # type: ignore[arg-type]
        lambda: shuffled_noise_multiplier(-1.0, 1e-5, 10, 1),
        lambda: shuffled_noise_multiplier(1.0, 1e-5, 10, 0),
    ],
)
def test_wrong_requests_are_refused(wrong: object) -> None:
    with pytest.raises(RequestError):
        wrong()  # type: ignore[operator]
