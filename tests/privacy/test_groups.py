"""Groups of records and other neighbours, against events of which the answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import DpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from tacit.errors import RequestError
from tacit.privacy import Adjacency, delta, epsilon, events
from tacit.privacy.accountant.dominate import Direction
from tacit.privacy.accountant.grids import EpsilonAt, worst
from tacit.privacy.accountant.groups import epsilon_between, group_epsilon
from tacit.privacy.accountant.pairs import MixturePair

ADD_REMOVE = Adjacency.ADD_REMOVE
RUNS = {
    "poisson": events.repeated(events.poisson(0.1, 4.0), 30),
    "two-level": events.repeated(events.two_level(0.1, 8.0, 1.9, 0.1), 30),
    "full": events.repeated(events.gaussian(30.0), 30),
    "one-pass": events.one_pass(6.0, 10),
    "without": events.repeated(events.without_replacement(100, 10, 4.0), 30),
    "with": events.repeated(events.with_replacement(100, 10, 4.0), 30),
    "fixed-two-level": events.repeated(events.fixed_size_two_level(100, 10, False, 12.0, 2.0, 0.1), 30),
    "revealed": events.revealed_batches(30, 0.1, 8.0, 1.9, 0.1),
    "composed": events.composed([events.gaussian(20.0), events.repeated(events.poisson(0.2, 8.0), 10)]),
}


@pytest.mark.parametrize("name", RUNS)
def test_groups_cost_more_and_never_more_than_one_after_the_other(name: str) -> None:
    run = RUNS[name]
    alone, pair, many = (group_epsilon(run, size, 1e-5) for size in (1, 2, 5))
    assert alone == epsilon(run, 1e-5)
    assert alone < pair < many
    # Any point of the curve of one record, converted, is a bound for two.
    each = 1.3 * alone
    assert delta(run, each) * (1 + math.exp(each)) > 1e-5 or pair <= 2 * each * 1.01


def test_a_group_in_full_batches_is_a_record_with_a_larger_bound() -> None:
    full = epsilon(events.repeated(events.gaussian(10.0), 30), 1e-5)
    assert group_epsilon(RUNS["full"], 3, 1e-5) == full
    for run in (events.poisson(1.0, 30.0), events.without_replacement(100, 100, 30.0)):
        assert group_epsilon(events.repeated(run, 30), 3, 1e-5) == pytest.approx(full, rel=0.006)
    assert group_epsilon(RUNS["one-pass"], 3, 1e-5) == epsilon(events.gaussian(2.0), 1e-5)


@pytest.mark.parametrize(
    ("event", "bound"),
    [
        (events.two_level(1.0, 60.0, 1.5, 0.5), 4.5),
        (events.two_level(1e-12, 60.0, 1.5, 0.5), 1.5),
        (events.revealed_batches(1, 1.0, 60.0, 1.5, 0.5), 4.5),
        (events.revealed_batches(1, 1e-12, 60.0, 1.5, 0.5), 1.5),
        (events.fixed_size_two_level(50, 50, False, 60.0, 1.5, 0.5), 6.0),
        (events.with_replacement(3, 2, 60.0), 2.0),
    ],
)
def test_a_group_counts_drawn_or_not(event: DpEvent, bound: float) -> None:
    """Three records, all of them drawn or none."""
    assert group_epsilon(event, 3, 1e-5) == pytest.approx(epsilon(events.gaussian(60.0 / bound), 1e-5), rel=0.006)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_poisson_groups_against_an_integral(adjacency: Adjacency) -> None:
    """One round, two records, by quadrature: sum_j Bin(2, q)(j) N(j/z) against its mirror image, or N(0)."""
    rate, noise = 0.3, 0.8
    chances = stats.binom(2, rate).pmf([0, 1, 2])
    found = group_epsilon(events.poisson(rate, noise), 2, 1e-3, adjacency)

    def density(x: float, sign: float) -> float:
        return float(np.dot(chances, stats.norm.pdf(x - sign * np.arange(3) / noise)))

    def at(level: float) -> float:
        lower = (lambda x: density(x, -1.0)) if adjacency is Adjacency.REPLACE_ONE else stats.norm.pdf
        ways = [(lambda x: density(x, 1.0), lower), (lower, lambda x: density(x, 1.0))]
        integrals = [
            quad(lambda x, p=p, q=q: max(p(x) - math.exp(level) * q(x), 0.0), -15, 15, limit=500, points=[0.0])[0]
            for p, q in ways
        ]
        return max(integrals)

    assert at(found) <= 1e-3 * (1 + 1e-6)
    assert at(found * 0.99) > 1e-3


def test_fixed_size_groups_cost_little_more_than_an_attack_attains() -> None:
    """If all others contribute -C, members that change from -C to C shift the sum by 2C for each one drawn."""
    for size, rounds in ((4, 1), (2, 30)):
        run = events.repeated(events.without_replacement(50, 10, 3.0), rounds)
        members = np.arange(size + 1)
        chances = tuple(map(float, stats.hypergeom(50, size, 10).pmf(members)))
        attack = MixturePair(chances, tuple(map(float, 2 * members / 3.0)), (1.0,), (0.0,))
        attained = worst([Direction(0.0, ((attack, rounds),))], math.log(1e-5) - 9, EpsilonAt(1e-5))
        found = group_epsilon(run, size, 1e-5)
        assert attained * (1 - 5e-3) <= found <= 1.1 * attained


def test_a_group_of_all_records_is_always_drawn() -> None:
    run = events.without_replacement(50, 10, 3.0)
    assert group_epsilon(run, 50, 1e-5) == pytest.approx(epsilon(events.gaussian(0.3), 1e-5), rel=1e-6)
    # Others that belong to the group are in no batch of this release.
    assert group_epsilon(run, 51, 1e-5) == group_epsilon(run, 50, 1e-5)


@settings(max_examples=15)
@given(st.floats(0.01, 1.0), st.integers(2, 300), st.floats(2.0, 50.0))
def test_poisson_groups_lie_between_what_is_likely_and_what_is_possible(
    rate: float, size: int, noise: float
) -> None:
    run = events.repeated(events.poisson(rate, noise), 5)
    found = group_epsilon(run, size, 1e-5)
    assert found <= epsilon(events.repeated(events.gaussian(noise / size), 5), 1e-5) * 1.006
    assert found >= epsilon(run, 1e-5) * 0.99


def test_every_event_has_an_epsilon_for_both_adjacencies() -> None:
    for run in RUNS.values():
        removed, replaced = (
            epsilon_between(run, 1e-5, adjacency) for adjacency in (ADD_REMOVE, Adjacency.REPLACE_ONE)
        )
        assert 0 < removed <= replaced
    assert epsilon_between(RUNS["poisson"], 1e-5, ADD_REMOVE) == epsilon(RUNS["poisson"], 1e-5, ADD_REMOVE)


@pytest.mark.parametrize(
    ("event", "size", "at_delta", "message"),
    [
        (RUNS["poisson"], 0, 1e-5, "size must be"),
        (RUNS["poisson"], 2, 1.0, "delta must be"),
        (RUNS["without"], 2, 0.0, "delta must be"),
    ],
)
def test_wrong_groups_are_refused(event: DpEvent, size: int, at_delta: float, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        group_epsilon(event, size, at_delta)


def test_fixed_sizes_have_no_group_under_add_remove() -> None:
    with pytest.raises(RequestError, match="cannot be used with fixed-size"):
        group_epsilon(RUNS["without"], 2, 1e-5, ADD_REMOVE)


def test_no_protection_is_none_for_groups() -> None:
    assert group_epsilon(events.non_private(), 2, 1e-5) == math.inf
    assert group_epsilon(events.nothing(), 2, 1e-5) == 0


def test_inexact_noise_is_charged_to_groups_too() -> None:
    charged = events.composed([RUNS["poisson"], events.inexact_noise(1e-3, 1e-30)])
    ideal = group_epsilon(RUNS["poisson"], 3, 1e-5)
    assert ideal + 1e-3 <= group_epsilon(charged, 3, 1e-5) <= ideal + 5e-3
