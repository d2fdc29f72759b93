"""One and two releases against direct integration of the two laws, which shares no code with the accountant."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, optimize, stats

from tacit.privacy import Adjacency, delta, events
from tacit.privacy.accountant.dominate import dominate
from tacit.privacy.accountant.grids import LogDeltaAt, worst
from tacit.privacy.accountant.groups import group_epsilon

Array = NDArray[np.float64]
Law = Callable[[Array], Array]

REPLACE, ADD_REMOVE = Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE


def mixture(weights: list[float], means: list[float]) -> Law:
    return lambda x: sum(w * stats.norm.pdf(x, m) for w, m in zip(weights, means, strict=True))


def hockey_stick(upper: Law, lower: Law, epsilon: float) -> float:
    """The integral of (P - exp(epsilon) Q)_+ by a fine trapezoidal rule."""
    x = np.linspace(-60.0, 60.0, 240_001)
    return float(integrate.trapezoid(np.maximum(upper(x) - math.exp(epsilon) * lower(x), 0.0), x))


def gaussian_delta(shift: float, epsilon: float) -> float:
    return float(
        stats.norm.cdf(shift / 2 - epsilon / shift)
        - math.exp(epsilon) * stats.norm.cdf(-shift / 2 - epsilon / shift)
    )


def assert_tight_upper_bound(found: float, true: float) -> None:
    assert true * (1 - 1e-6) <= found <= true * 1.02 + 1e-15


EPSILONS = [0.0, 0.05, 0.5, 2.0]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(
    ("rate", "noise", "inside", "outside"),
    [(0.01, 1.0, 1.0, 0.0), (0.3, 0.7, 1.0, 0.0), (0.1, 2.0, 1.9, 0.1), (0.5, 0.5, 1.5, 0.5)],
)
def test_poisson_and_two_level_releases_match_their_laws(
    epsilon: float, rate: float, noise: float, inside: float, outside: float
) -> None:
    weights, means = [1 - rate, rate], [outside / noise, inside / noise]
    here, mirrored = mixture(weights, means), mixture(weights, [-mean for mean in means])
    nobody = mixture([1.0], [0.0])
    event = events.two_level(rate, noise, inside, outside)
    replaced = hockey_stick(here, mirrored, epsilon)
    zeroed = max(hockey_stick(here, nobody, epsilon), hockey_stick(nobody, here, epsilon))
    assert_tight_upper_bound(delta(event, epsilon, REPLACE), replaced)
    assert_tight_upper_bound(delta(event, epsilon, ADD_REMOVE), zeroed)
    if outside == 0:
        assert_tight_upper_bound(delta(events.poisson(rate, noise), epsilon, REPLACE), replaced)
        assert_tight_upper_bound(delta(events.poisson(rate, noise), epsilon, ADD_REMOVE), zeroed)


def test_both_directions_of_removing_a_record_are_accounted_for() -> None:
    event = events.two_level(0.3, 0.9, 1.5, 0.1)
    here, nobody = mixture([0.7, 0.3], [0.1 / 0.9, 1.5 / 0.9]), mixture([1.0], [0.0])
    removed, added = dominate(event, ADD_REMOVE, log_tail=-30.0)
    for direction, upper, lower in ((removed, here, nobody), (added, nobody, here)):
        found = math.exp(worst([direction], -30.0, LogDeltaAt(0.2)))
        assert_tight_upper_bound(found, hockey_stick(upper, lower, 0.2))


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("records", "batch", "noise"), [(100, 1, 1.0), (100, 30, 0.8), (3256, 103, 2.0)])
def test_without_replacement_matches_its_closed_form(
    epsilon: float, records: int, batch: int, noise: float
) -> None:
    rate = batch / records
    inner = math.log1p(math.expm1(epsilon) / rate)
    true = rate * gaussian_delta(2 / noise, inner)
    assert_tight_upper_bound(delta(events.without_replacement(records, batch, noise), epsilon), true)


def hidden_draws(shifts: Array, weights: Array, epsilon: float) -> float:
    """Fact C by other means: the least of sum_j w_j E (W_j - t_j)_+ over the t_j, by Lagrange's dual.

    E (W_j - t)_+ + price t is least where Phi(-x) = price, or at t = g; the sum of the t_j is then paid back.
    """
    still, g = 1 - weights.sum(), math.exp(epsilon)

    def dual(x: float) -> float:
        price = stats.norm.sf(x)
        t = np.maximum(g, np.exp(shifts * x - shifts**2 / 2))
        deltas = [gaussian_delta(shift, math.log(level)) for shift, level in zip(shifts, t, strict=True)]
        return float(weights @ (deltas + price * t) - price * (g - still))

    return -float(optimize.minimize_scalar(lambda x: -dual(x), bounds=(-5, 40), method="bounded").fun)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("records", "batch", "noise"), [(100, 1, 1.0), (100, 30, 2.0), (50, 80, 5.0)])
def test_with_replacement_matches_its_dual(epsilon: float, records: int, batch: int, noise: float) -> None:
    draws = np.arange(1, min(batch, 15) + 1)
    true = hidden_draws(2 * draws / noise, stats.binom.pmf(draws, batch, 1 / records), epsilon)
    assert_tight_upper_bound(delta(events.with_replacement(records, batch, noise), epsilon), true)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    records=st.integers(2, 5),
    batch=st.integers(1, 3),
    replacement=st.booleans(),
    members=st.integers(1, 2),
    noise=st.floats(0.5, 4.0),
)
def test_no_real_batch_is_told_apart_better_than_fact_c_says(
    seed: int, records: int, batch: int, replacement: bool, members: int, noise: float
) -> None:
    """Any contributions in the unit disc, one or two records replaced, all batches enumerated, on a grid."""
    batch, members = min(batch, records), min(members, records)
    generator = np.random.default_rng(seed)
    angles, radii = generator.uniform(0, 2 * np.pi, records), generator.choice([0.5, 1.0, 1.0], records)
    if seed % 3 == 0:
        # The worst ones lie on a line.
        angles = np.pi * generator.integers(0, 2, records)
    here = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    there = here.copy()
    there[:members] *= -1
    axis = np.linspace(-14.0, 14.0, 161)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)

    def density(contributions: Array) -> Array:
        draws = (
            itertools.product(range(records), repeat=batch)
            if replacement
            else itertools.combinations(range(records), batch)
        )
        means = np.array([contributions[list(rows)].sum(0) for rows in draws]) / noise
        squares = ((points[:, None, :] - means) ** 2).sum(2)
        return np.exp(-squares / 2).mean(1) / (2 * np.pi)

    upper, lower = density(here), density(there)
    cell = (axis[1] - axis[0]) ** 2
    run = (events.with_replacement if replacement else events.without_replacement)(records, batch, noise)
    for level in (0.0, 0.3, 1.0, 2.5):
        true = float(np.maximum(upper - math.exp(level) * lower, 0.0).sum()) * cell
        # The grid is right to within two percent.
        if members == 1:
            assert 0.98 * true - 1e-5 <= delta(run, level)
        elif true > 1e-3:
            # What is charged at a delta that is a little smaller cannot be less.
            assert group_epsilon(run, members, 0.98 * true) >= level


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("outside", [0.0, 0.2])
def test_revealed_batches_average_the_gaussian_mechanism(outside: float, adjacency: Adjacency) -> None:
    rounds, rate, noise, inside = 30, 0.1, 4.0, 1.8
    sides = 2 if adjacency is REPLACE else 1
    true = sum(
        stats.binom.pmf(n, rounds, rate)
        * gaussian_delta(sides * math.sqrt(n * inside**2 + (rounds - n) * outside**2) / noise, 1.0)
        for n in range(rounds + 1)
        if n or outside
    )
    event = events.revealed_batches(rounds, rate, noise, inside, outside)
    assert_tight_upper_bound(delta(event, 1.0, adjacency), float(true))


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(
    ("clients", "expected", "noise"), [(5, 2.5, 3.0), (4, 0.5, 1.5), (6, 6.0, 5.0), (1, 0.3, 2.0)]
)
def test_shared_noise_averages_over_all_cohorts(
    clients: int, expected: float, noise: float, adjacency: Adjacency
) -> None:
    """All cohorts of three rounds, written out: whether the client is in, and how many others are."""
    rate, sides, rounds = expected / clients, 2 if adjacency is REPLACE else 1, 3
    cohorts = [(1 - rate, 0.0)] + [
        (rate * stats.binom.pmf(others, clients - 1, rate), max(others + 1, expected))
        for others in range(clients)
    ]
    event = events.repeated(events.shared_noise(clients, expected, noise), rounds)
    for epsilon in (0.5, 2.0):
        true = sum(
            math.prod(chance for chance, _ in run)
            * gaussian_delta(sides * math.sqrt(sum(size for _, size in run)) / noise, epsilon)
            for run in itertools.product(cohorts, repeat=rounds)
            if any(size for _, size in run)
        )
        assert_tight_upper_bound(delta(event, epsilon, adjacency), float(true))


def test_merged_cohorts_are_charged_as_the_largest() -> None:
    """With a thousand clients sizes are merged, and far ends are given up: both only upwards, and not far."""
    clients, expected, noise = 1000, 100.0, 30.0
    others = np.arange(clients)
    shifts = 2 * np.sqrt(np.maximum(others + 1, expected)) / noise
    chances = 0.1 * stats.binom.pmf(others, clients - 1, 0.1)
    true = sum(w * gaussian_delta(s, 1.0) for w, s in zip(chances, shifts, strict=True) if w > 1e-30)
    assert_tight_upper_bound(delta(events.shared_noise(clients, expected, noise), 1.0), float(true))


def two_releases(upper: Law, lower: Law, epsilon: float) -> float:
    """The integral over the first outcome of P(x) H_{epsilon - L(x)}(P || Q), by a product rule."""
    x = np.linspace(-12.0, 12.0, 1001)
    p, q = upper(x), lower(x)
    return float(
        integrate.trapezoid(
            integrate.trapezoid(np.maximum(np.outer(p, p) - math.exp(epsilon) * np.outer(q, q), 0.0), x, axis=1),
            x,
        )
    )


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_two_rounds_of_a_two_level_release_match_the_product_of_their_laws(epsilon: float) -> None:
    rate, noise, inside, outside = 0.2, 1.2, 1.8, 0.2
    weights, means = [1 - rate, rate], [outside / noise, inside / noise]
    here, mirrored = mixture(weights, means), mixture(weights, [-mean for mean in means])
    nobody = mixture([1.0], [0.0])
    event = events.repeated(events.two_level(rate, noise, inside, outside), 2)
    assert_tight_upper_bound(delta(event, epsilon, REPLACE), two_releases(here, mirrored, epsilon) * (1 - 1e-4))
    zeroed = max(two_releases(here, nobody, epsilon), two_releases(nobody, here, epsilon))
    assert_tight_upper_bound(delta(event, epsilon, ADD_REMOVE), zeroed * (1 - 1e-4))


def test_two_different_rounds_match_the_product_of_their_laws() -> None:
    x = np.linspace(-12.0, 12.0, 1001)
    first = [mixture([0.9, 0.1], [0.0, side / 0.9])(x) for side in (1, -1)]
    second = [mixture([1.0], [side / 3.0])(x) for side in (1, -1)]
    upper, lower = (np.outer(first[i], second[i]) for i in (0, 1))
    true = integrate.trapezoid(integrate.trapezoid(np.maximum(upper - math.exp(0.7) * lower, 0.0), x), x)
    event = events.composed([events.poisson(0.1, 0.9), events.gaussian(3.0)])
    assert_tight_upper_bound(delta(event, 0.7, REPLACE), float(true) * (1 - 1e-4))
