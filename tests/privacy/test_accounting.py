"""The accountant against other accountants, and against what must be true of every accountant."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.errors import RequestError
from tacit.privacy import Adjacency, delta, epsilon, events
from tacit.privacy.accountant import accounting, composition, gaussian
from tacit.privacy.accountant.dominate import Direction, dominate
from tacit.privacy.accountant.grids import EpsilonAt, worst
from tacit.privacy.accountant.pairs import MixturePair

REPLACE, ADD_REMOVE = Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE
RELATIONS = {
    REPLACE: dp_accounting.NeighboringRelation.REPLACE_ONE,
    ADD_REMOVE: dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
}

SETTINGS = [
    (0.01, 1.0, 300, 1e-5, 1e-3),
    (0.1, 2.0, 100, 1e-5, 1e-3),
    (0.5, 5.0, 25, 1e-3, 1e-3),
    (0.02, 0.5, 40, 1e-6, 1e-2),
    pytest.param(0.01, 1.0, 300, 1e-5, 2e-4, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(("rate", "noise", "rounds", "at_delta", "interval"), SETTINGS)
def test_poisson_lies_between_the_bounds_of_dp_accounting(
    rate: float, noise: float, rounds: int, at_delta: float, interval: float, adjacency: Adjacency
) -> None:
    def bound(pessimistic: bool) -> float:
        one = pld.from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            value_discretization_interval=interval,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            neighboring_relation=RELATIONS[adjacency],
        )
        return float(one.self_compose(rounds).get_epsilon_for_delta(at_delta))

    found = epsilon(events.repeated(events.poisson(rate, noise), rounds), at_delta, adjacency)
    assert bound(pessimistic=False) - 1e-6 <= found <= bound(pessimistic=True) * 1.005


@pytest.mark.parametrize("shift", [1e-3, 0.1, 1.0, 20.0])
@pytest.mark.parametrize("rounds", [1, 7, 10_000])
@pytest.mark.parametrize("at_delta", [0.3, 1e-3, 1e-9, 1e-30, 1e-200])
def test_the_numerical_route_finds_the_closed_form_of_the_gaussian(
    shift: float, rounds: int, at_delta: float
) -> None:
    true = gaussian.epsilon([shift * math.sqrt(rounds)], [1.0], math.log(at_delta))
    direction = Direction(0.0, ((MixturePair((1.0,), (shift,), (1.0,), (0.0,)), rounds),))
    found = worst([direction], math.log(at_delta) - 9, EpsilonAt(at_delta))
    assert true <= found <= true * 1.005 + 5e-5


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_sampling_everything_is_the_gaussian_mechanism(adjacency: Adjacency) -> None:
    full = epsilon(events.repeated(events.gaussian(8.0), 20), 1e-5, adjacency)
    assert epsilon(events.repeated(events.poisson(1.0, 8.0), 20), 1e-5, adjacency) == full
    assert epsilon(events.repeated(events.two_level(1.0, 8.0, 1.0, 0.3), 20), 1e-5, adjacency) == full
    almost = epsilon(events.repeated(events.poisson(1 - 1e-7, 8.0), 20), 1e-5, adjacency)
    assert almost == pytest.approx(full, rel=5e-3)
    if adjacency is REPLACE:
        assert epsilon(events.repeated(events.without_replacement(9, 9, 8.0), 20), 1e-5) == full
        nearly = epsilon(events.repeated(events.without_replacement(10**7, 10**7 - 1, 8.0), 20), 1e-5)
        assert nearly == pytest.approx(full, rel=5e-3)


def test_replacing_moves_the_gaussian_twice_as_far() -> None:
    assert epsilon(events.gaussian(4.0), 1e-5, REPLACE) == epsilon(events.gaussian(2.0), 1e-5, ADD_REMOVE)
    assert epsilon(events.gaussian(2.0), 1e-5, REPLACE) == pytest.approx(4.377, abs=1e-3)


def test_one_pass_costs_one_release_however_many_rounds() -> None:
    for adjacency in Adjacency:
        once = epsilon(events.gaussian(3.0), 1e-5, adjacency)
        assert epsilon(events.one_pass(3.0, 500), 1e-5, adjacency) == once


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_two_levels_reduce_to_what_they_generalise(adjacency: Adjacency) -> None:
    plain = epsilon(events.repeated(events.poisson(0.05, 1.5), 50), 1e-5, adjacency)
    assert epsilon(events.repeated(events.two_level(0.05, 1.5, 1.0, 0.0), 50), 1e-5, adjacency) == plain
    scaled = epsilon(events.repeated(events.two_level(0.05, 3.0, 2.0, 0.0), 50), 1e-5, adjacency)
    assert scaled == pytest.approx(plain, rel=1e-9)
    everyone = epsilon(events.repeated(events.two_level(0.05, 3.0, 2.0, 2.0), 50), 1e-5, adjacency)
    full = epsilon(events.repeated(events.gaussian(1.5), 50), 1e-5, adjacency)
    assert everyone == pytest.approx(full, rel=1e-9)


def test_counting_outside_the_batch_costs_and_beats_splitting_the_noise() -> None:
    """Theorem B against the papers' division of the noise in two halves (privacy notes, SoteriaFL)."""
    rate, noise, rounds = 0.03, 4.0, 100
    together = epsilon(events.repeated(events.two_level(rate, noise, 2 - rate, rate), rounds), 1e-3, ADD_REMOVE)
    inside_only = epsilon(events.repeated(events.poisson(rate, noise / (2 - rate)), rounds), 1e-3, ADD_REMOVE)
    half = noise / math.sqrt(2)
    apart = events.composed([events.poisson(rate, half / 2), events.gaussian(half / rate)])
    assert inside_only < together < epsilon(events.repeated(apart, rounds), 1e-3, ADD_REMOVE)


@pytest.mark.parametrize(("noise", "rounds", "at_delta"), [(0.8, 1, 1e-4), (1.5, 60, 1e-5), (0.3, 25, 1e-3)])
def test_without_replacement_is_at_least_what_an_attack_attains(
    noise: float, rounds: int, at_delta: float
) -> None:
    """Fact C: if all others contribute -C, replacing C by -C is exactly Poisson's pair at twice the shift."""
    attained = epsilon(events.repeated(events.poisson(0.04, noise / 2), rounds), at_delta, ADD_REMOVE)
    found = epsilon(events.repeated(events.without_replacement(500, 20, noise), rounds), at_delta)
    assert found >= attained * (1 - 3e-3)
    if rounds == 1:
        assert found == pytest.approx(attained, rel=5e-3)


@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 1), (1.5, 60)])
def test_with_replacement_is_at_least_what_an_attack_attains(noise: float, rounds: int) -> None:
    records, batch, at_delta = 500, 20, 1e-5
    draws = tuple(range(12))
    chances = tuple(float(w) for w in stats.binom.pmf(draws, batch, 1 / records))
    drawn = (chances, tuple(2 * j / noise for j in draws))
    nobody = ((1.0,), (0.0,))
    pairs = [MixturePair(*drawn, *nobody), MixturePair(*nobody, *drawn)]
    directions = [Direction(0.0, ((pair, rounds),)) for pair in pairs]
    attained = worst(directions, math.log(at_delta) - 9, EpsilonAt(at_delta))
    found = epsilon(events.repeated(events.with_replacement(records, batch, noise), rounds), at_delta)
    without = epsilon(events.repeated(events.without_replacement(records, batch, noise), rounds), at_delta)
    assert found >= attained * (1 - 3e-3)
    assert found > without
    # An adversary who is not told how often the record was drawn attains what is charged for one round.
    assert found <= attained * (1.005 if rounds == 1 else 1.25)


@pytest.mark.parametrize("replacement", [False, True])
def test_fixed_size_two_levels_use_a_good_split_of_the_noise(replacement: bool) -> None:
    """Without replacement there is a bound that splits no noise: it is below the best split."""
    records, batch, noise, rounds = 1000, 50, 6.0, 100
    sample = events.with_replacement if replacement else events.without_replacement
    two_level = events.fixed_size_two_level(records, batch, replacement, noise, 2.0, 0.05)
    found = epsilon(events.repeated(two_level, rounds), 1e-5)

    def split(share: float) -> float:
        drawn = sample(records, batch, noise * math.sqrt(1 - share) / 2.0)
        rest = events.gaussian(noise * math.sqrt(share) / 0.05)
        return epsilon(events.repeated(events.composed([drawn, rest]), rounds), 1e-5)

    splits = [split(share) for share in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)]
    assert found <= 1.01 * min(splits)
    assert (0.97 * min(splits) <= found) == replacement
    assert found > epsilon(events.repeated(sample(records, batch, noise / 2.0), rounds), 1e-5)


def test_compositions_add_up() -> None:
    one, other = events.poisson(0.05, 1.5), events.two_level(0.1, 4.0, 1.9, 0.1)
    for adjacency in Adjacency:
        apart = events.composed([events.repeated(one, 30), events.nothing(), events.repeated(one, 20)])
        together = epsilon(events.repeated(one, 50), 1e-5, adjacency)
        assert epsilon(apart, 1e-5, adjacency) == together
        nested = events.repeated(events.repeated(one, 5), 10)
        assert epsilon(nested, 1e-5, adjacency) == together
        mixed = epsilon(events.composed([events.repeated(one, 50), other]), 1e-5, adjacency)
        swapped = epsilon(events.composed([other, events.repeated(one, 50)]), 1e-5, adjacency)
        assert together < mixed
        assert mixed == pytest.approx(swapped, rel=1e-9)


def test_a_gaussian_beside_a_negligible_release_keeps_its_closed_form() -> None:
    mixed = events.composed([events.repeated(events.gaussian(30.0), 40), events.poisson(1e-4, 50.0)])
    alone = epsilon(events.repeated(events.gaussian(30.0), 40), 1e-6)
    assert alone * (1 - 1e-6) <= epsilon(mixed, 1e-6) <= alone * 1.005


def test_revealed_batches_compose_with_other_releases() -> None:
    revealed = events.revealed_batches(20, 0.2, 6.0, 1.8, 0.2)
    twice = epsilon(events.repeated(revealed, 2), 1e-5)
    longer = epsilon(events.revealed_batches(40, 0.2, 6.0, 1.8, 0.2), 1e-5)
    assert twice == pytest.approx(longer, rel=5e-3)
    beside = epsilon(events.composed([revealed, events.gaussian(9.0)]), 1e-5)
    assert epsilon(revealed, 1e-5) < beside < twice * 2


def test_no_privacy_and_no_release() -> None:
    broken = events.composed([events.gaussian(100.0), events.non_private()])
    assert epsilon(broken, 1e-5) == math.inf
    assert delta(broken, 5.0) == 1.0
    assert epsilon(events.nothing(), 1e-5) == epsilon(events.composed([]), 1e-5) == 0.0
    assert delta(events.nothing(), 0.0) < 1e-299


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_delta_inverts_epsilon(adjacency: Adjacency) -> None:
    for event in (
        events.repeated(events.poisson(0.05, 1.0), 30),
        events.repeated(events.two_level(0.1, 3.0, 1.9, 0.1), 200),
        events.repeated(events.gaussian(5.0), 10),
        events.revealed_batches(30, 0.1, 5.0, 2.0, 0.1),
    ):
        for at_delta in (1e-2, 1e-6, 1e-20):
            at_epsilon = epsilon(event, at_delta, adjacency)
            assert delta(event, at_epsilon, adjacency) == pytest.approx(at_delta, rel=0.1)


def test_a_large_delta_needs_no_epsilon() -> None:
    event = events.repeated(events.poisson(1e-4, 1.0), 3)
    assert epsilon(event, 1e-3) == 0.0
    assert 0 < epsilon(event, 1e-5) < epsilon(event, 1e-7)


@pytest.mark.parametrize(
    ("event", "at_delta"),
    [
        (events.repeated(events.poisson(1e-6, 1.0), 100_000), 1e-6),
        (events.repeated(events.poisson(1e-3, 0.6), 100_000), 1e-6),
        (events.repeated(events.without_replacement(6000, 128, 0.3), 1000), 1e-3),
        (events.repeated(events.poisson(0.5, 0.3), 60), 1e-9),
    ],
)
def test_extreme_settings_have_an_answer(event: object, at_delta: float) -> None:
    found = epsilon(event, at_delta)
    assert 0 < found < 1000
    assert found <= epsilon(event, at_delta / 10)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1e-5, 2.0, math.nan, math.inf, True])
def test_bad_deltas_are_refused(bad: float) -> None:
    with pytest.raises(RequestError, match="delta must be"):
        epsilon(events.gaussian(1.0), bad)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, True])
def test_bad_epsilons_are_refused(bad: float) -> None:
    with pytest.raises(RequestError, match="epsilon must be"):
        delta(events.gaussian(1.0), bad)


@pytest.mark.parametrize(
    "event",
    [
        events.without_replacement(10, 2, 1.0),
        events.with_replacement(10, 2, 1.0),
        events.fixed_size_two_level(10, 2, False, 1.0, 2.0, 0.1),
    ],
)
def test_fixed_size_batches_need_replace_one(event: object) -> None:
    with pytest.raises(RequestError, match="'add-remove' cannot be used with fixed-size batches"):
        epsilon(event, 1e-5, ADD_REMOVE)


def test_unknown_adjacency_is_refused() -> None:
    with pytest.raises(RequestError, match="unknown adjacency 'remove'"):
        epsilon(events.gaussian(1.0), 1e-5, "remove")  # type: ignore[arg-type]
    assert epsilon(events.gaussian(1.0), 1e-5, "add-remove") > 0  # type: ignore[arg-type]


def test_the_accountant_says_so_when_it_cannot_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "_MOST_POINTS", 1000)
    with pytest.raises(RequestError, match="cannot answer"):
        epsilon(events.repeated(events.poisson(0.0123, 0.987), 777), 1e-7)


rates = st.floats(1e-4, 0.9)
noises = st.floats(0.4, 30.0)
rounds = st.integers(1, 2000)
deltas = st.floats(-9.0, -2.0).map(lambda power: 10.0**power)
makers = st.sampled_from(
    [
        lambda q, z: events.poisson(q, z),
        lambda q, z: events.two_level(q, z, 1.5, 0.3),
        lambda q, z: events.without_replacement(10_000, max(1, round(10_000 * q)), z),
    ]
)


@settings(max_examples=25)
@given(makers, rates, noises, rounds, deltas, st.floats(1.05, 2.0))
def test_less_noise_more_rounds_larger_batches_and_smaller_deltas_never_cost_less(
    make: object, rate: float, noise: float, times: int, at_delta: float, factor: float
) -> None:
    def cost(q: float, z: float, t: int, d: float) -> float:
        return epsilon(events.repeated(make(q, z), t), d)  # type: ignore[operator]

    here = cost(rate, noise, times, at_delta) * (1 - 5e-3) - 5e-5
    assert cost(rate, noise / factor, times, at_delta) >= here
    assert cost(rate, noise, math.ceil(times * factor), at_delta) >= here
    assert cost(min(1.0, rate * factor), noise, times, at_delta) >= here
    assert cost(rate, noise, times, at_delta / factor) >= here


@settings(max_examples=25)
@given(rates, noises, rounds, deltas)
def test_replacing_is_never_cheaper_than_removing(rate: float, noise: float, times: int, at_delta: float) -> None:
    event = events.repeated(events.poisson(rate, noise), times)
    removed = epsilon(event, at_delta, ADD_REMOVE)
    assert removed * (1 - 5e-3) - 5e-5 <= epsilon(event, at_delta, REPLACE)
    assert (
        epsilon(event, at_delta, REPLACE)
        <= epsilon(events.repeated(events.gaussian(noise), times), at_delta) * 1.005
    )


def test_no_mass_of_a_loss_is_below_zero() -> None:
    """The two expm1 of NumPy and of Python may round differently: a share of 1 + 2e-16 left less than nothing."""
    steps = np.geomspace(2e-3, 0.3, 20_000)
    steps = np.array([s for s in steps if (np.expm1(np.array([-s])) / math.expm1(-s))[0] > 1])
    direction, *_ = dominate(events.two_level(0.5, 0.3, 1.0, 0.5, 0.5), REPLACE, log_tail=-9.0)
    pair, _ = direction.pairs[0]
    for step in steps[:: max(1, len(steps) // 60)]:
        law = composition.discretise(pair, float(step), -9.0)
        assert not np.isnan(law.log_masses).any()


def test_what_is_not_a_number_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "worst", lambda *args, **kwargs: math.nan)
    with pytest.raises(composition.CannotAnswerError, match="out of range"):
        epsilon(events.repeated(events.poisson(0.123, 1.0), 7), 1e-5)
    with pytest.raises(composition.CannotAnswerError, match="out of range"):
        accounting.log_delta(events.repeated(events.poisson(0.123, 1.0), 7), 1.0, REPLACE, log_floor=-20.0)


@pytest.mark.parametrize(
    "event",
    [
        events.coin_sum(3, 100, 3, 1e300),
        events.fixed_size_two_level(3, 3, True, 1e300, 1e300, 1e-300, 1e300),
    ],
)
def test_numbers_out_of_range_are_refused_as_they_should_be(event: dp_accounting.DpEvent) -> None:
    with pytest.raises(RequestError):
        epsilon(events.repeated(event, 2), 1e-5)
