"""The second opinion: right by itself, and never below the first."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.privacy import Adjacency, epsilon, events, rdp_epsilon
from tacit.privacy.accountant.pairs import FixedSizePair, MixturePair, RevealedPair
from tacit.privacy.accountant.rdp import log_moment

ADD_REMOVE = Adjacency.ADD_REMOVE


def test_moments_of_the_gaussian_are_its_closed_form() -> None:
    for pair in (MixturePair((1.0,), (0.7,), (1.0,), (0.0,)), RevealedPair((1.0,), (0.7,))):
        for order in (1.3, 2.0, 17.0, 300.0):
            assert log_moment(pair, order) == pytest.approx(order * (order - 1) * 0.49 / 2, rel=1e-9)
    split = MixturePair((1.0,), (0.3,), (1.0,), (0.4,))
    assert log_moment(split, 5.0) == pytest.approx(20 * 0.49 / 2, rel=1e-9)


@pytest.mark.parametrize("order", [1.5, 3.0, 20.0])
def test_moments_near_order_one_conserve_mass(order: float) -> None:
    """E_P exp(-L) is Q's mass and E_P 1 is P's: the moment at orders 0 and 1 is zero for every pair."""
    pairs = [
        MixturePair((0.8, 0.2), (0.1, 1.3), (0.8, 0.2), (0.1, 1.3)),
        FixedSizePair((1.3,), (0.2,), 0.2),
        FixedSizePair((0.7, 1.4, 2.1), (0.2, 0.05, 0.01), 0.26),
        RevealedPair((0.6, 0.3), (0.5, 2.0), atom=0.1),
    ]
    for pair in pairs:
        # Where the loss has kinks, the integrals are less precise.
        precision = 1e-6 if isinstance(pair, FixedSizePair) else 1e-9
        assert log_moment(pair, 1.0) == pytest.approx(0.0, abs=precision)
        assert log_moment(pair, 0.0) == pytest.approx(0.0, abs=precision)
        assert log_moment(pair, order) > 0


@pytest.mark.parametrize(("first", "last"), [(-50, 80), (-80, 50), (-1, 1), (-40, 40)])
def test_the_cells_of_one_side_serve_the_other(first: int, last: int) -> None:
    for pair in (FixedSizePair((0.7,), (0.04,), 0.04), FixedSizePair((0.3, 0.6), (0.04, 8e-4), 0.0408)):
        losses = 0.02 * np.arange(first, last + 1)
        upper, lower = pair.log_cells(losses)
        zero = -first
        np.testing.assert_allclose(
            (upper[zero + 1 :], lower[zero + 1 :]), pair._log_positive_cells(losses[zero:])
        )
        mirrored = pair._log_positive_cells(-losses[: zero + 1][::-1])
        np.testing.assert_allclose((lower[: zero + 1][::-1], upper[: zero + 1][::-1]), mirrored)


@pytest.mark.parametrize(("rate", "noise", "rounds"), [(0.01, 1.0, 1000), (0.1, 2.0, 100), (0.02, 0.5, 40)])
def test_poisson_matches_the_moments_of_dp_accounting(rate: float, noise: float, rounds: int) -> None:
    event = events.repeated(events.poisson(rate, noise), rounds)
    theirs = RdpAccountant(orders=[1 + i / 10 for i in range(5, 400)]).compose(event).get_epsilon(1e-5)
    assert rdp_epsilon(event, 1e-5, ADD_REMOVE) == pytest.approx(theirs, rel=2e-3)


def test_replace_one_doubles_the_gaussian_where_dp_accounting_does_not() -> None:
    event = events.gaussian(2.0)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    undoubled = RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(1e-5)
    assert undoubled < epsilon(event, 1e-5) < rdp_epsilon(event, 1e-5)


rates, noises = st.floats(1e-3, 0.9), st.floats(0.5, 20.0)
cases = st.one_of(
    st.builds(events.gaussian, noises),
    st.builds(events.poisson, rates, noises),
    st.builds(events.two_level, rates, noises, st.just(1.7), st.floats(0.0, 0.5)),
    st.builds(events.without_replacement, st.just(500), st.integers(1, 500), noises),
    st.builds(events.with_replacement, st.just(500), st.integers(1, 60), noises),
    st.builds(events.shared_noise, st.just(50), st.floats(0.5, 50.0), noises),
    st.builds(events.revealed_batches, st.integers(1, 50), rates, noises, st.just(1.7), st.floats(0.0, 0.5)),
)


@settings(max_examples=25)
@given(cases, st.integers(1, 500), st.floats(-8.0, -2.0), st.sampled_from(list(Adjacency)))
def test_never_below_the_first_opinion(event: object, times: int, power: float, adjacency: Adjacency) -> None:
    run = events.repeated(event, times)
    try:
        first = epsilon(run, 10**power, adjacency)
    except RequestError:
        assert adjacency is ADD_REMOVE
        with pytest.raises(RequestError):
            rdp_epsilon(run, 10**power, adjacency)
        return
    assert rdp_epsilon(run, 10**power, adjacency) >= first * (1 - 5e-3) - 5e-5


def test_fixed_size_two_levels_and_compositions_have_one_too() -> None:
    two_level = events.repeated(events.fixed_size_two_level(500, 25, False, 6.0, 2.0, 0.05), 40)
    assert epsilon(two_level, 1e-5) <= rdp_epsilon(two_level, 1e-5) < 2 * epsilon(two_level, 1e-5)
    mixed = events.composed([two_level, events.gaussian(20.0), events.poisson(0.2, 3.0)])
    assert epsilon(mixed, 1e-5) <= rdp_epsilon(mixed, 1e-5) < 2 * epsilon(mixed, 1e-5)


def test_no_privacy_and_bad_deltas() -> None:
    assert rdp_epsilon(events.non_private(), 1e-5) == math.inf
    with pytest.raises(RequestError, match="delta must be"):
        rdp_epsilon(events.gaussian(1.0), 0.0)
