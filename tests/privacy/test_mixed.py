"""Shuffled releases as events: drawn batches, other releases beside them, and what is left without the crowd."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import settings as sizes
from hypothesis import strategies as st
from scipy import stats
from tests.privacy.pure_scores import PureScores

from tacit.errors import RequestError
from tacit.privacy import Adjacency, Adversary, Guarantee, calibrate_noise, epsilon, events, rdp_epsilon
from tacit.privacy.accountant import accounting
from tacit.privacy.accountant.clones import clone_pair
from tacit.privacy.accountant.composition import CannotAnswerError
from tacit.privacy.accountant.cost import cost_of, over
from tacit.privacy.accountant.groups import epsilon_between, group_epsilon
from tacit.privacy.accountant.mixed import EpsilonAtAtoms, composed_answer
from tacit.privacy.events.crowds import alone
from tacit.privacy.promises.protection import protection


@sizes(max_examples=25)
@given(st.floats(0.1, 2.0), st.integers(0, 30), st.floats(0.01, 1.0), st.floats(0.0, 2.0))
def test_a_drawn_pair_has_the_amplified_profile(local: float, others: int, rate: float, epsilon: float) -> None:
    pair = clone_pair(PureScores(local), others, math.exp(-local))
    amplified = math.log1p(rate * math.expm1(epsilon))
    # What is given up in every round is not amplified.
    assert pair.drawn(rate).delta(amplified) == pytest.approx(rate * pair.delta(epsilon), abs=1e-13, rel=1e-7)


def test_a_drawn_pair_is_a_pair_of_laws() -> None:
    pair = clone_pair(PureScores(1.0), 20, math.exp(-1.0)).drawn(0.2)
    for sign in (1, -1):
        assert (pair.masses * (1 + sign * pair.scores)).sum() + pair.atom == pytest.approx(1.0, abs=1e-9)


def test_drawn_rounds_agree_with_another_accountant() -> None:
    pair, rounds = clone_pair(PureScores(1.0), 6, math.exp(-1.0)).drawn(0.3), 8
    upper = np.append(pair.masses * (1 + pair.scores), pair.atom)
    lower = np.append(pair.masses * (1 - pair.scores), pair.atom)
    kept = (upper > 0) & (lower > 0)
    other = privacy_loss_distribution.from_two_probability_mass_functions(
        dict(enumerate(np.log(lower[kept]).tolist())),
        dict(enumerate(np.log(upper[kept]).tolist())),
        value_discretization_interval=1e-3,
    ).self_compose(rounds)
    found = composed_answer([(pair, rounds)], 1e-4, EpsilonAtAtoms(1e-4))
    assert found == pytest.approx(other.get_epsilon_for_delta(1e-4), rel=1e-2)


@pytest.mark.parametrize("other", [-1.0, 1.0])
def test_three_clients_who_draw_one_of_two_records_are_within_the_bound(other: float) -> None:
    noise, delta = 8.0, 1e-2
    found = epsilon(events.shuffled(3, 2, 1, noise), delta)
    assert found < epsilon(events.without_replacement(2, 1, noise), delta)
    y = np.linspace(-5.5 * noise, 5.5 * noise, 61)

    def law(*records: float) -> np.ndarray:
        return np.asarray(np.mean([stats.norm.pdf(y, x, noise) for x in records], axis=0) * (y[1] - y[0]))

    def shuffled(*first: float) -> np.ndarray:
        laws = (law(*first), law(other, other), law(-other, other))
        return np.asarray(sum(np.einsum("i,j,k->ijk", *order) for order in itertools.permutations(laws))) / 6

    for here, there in ((-1.0, 1.0), (1.0, -1.0)):
        for second in (-1.0, 1.0):
            gap = shuffled(here, second) - math.exp(found) * shuffled(there, second)
            assert np.maximum(gap, 0.0).sum() <= delta


def test_never_above_the_local_bound_and_equal_to_it_without_a_crowd() -> None:
    local = epsilon(events.repeated(events.without_replacement(50, 5, 2.0), 10), 1e-5)
    for clients in (1, 2, 25):
        assert epsilon(events.repeated(events.shuffled(clients, 50, 5, 2.0), 10), 1e-5) == local
    assert epsilon(events.shuffled(9, 7, 7, 0.5), 1e-5) == epsilon(events.gaussian(0.5), 1e-5)


def test_smaller_batches_of_more_records_and_more_clients_cost_less() -> None:
    by_records = [epsilon(events.repeated(events.shuffled(300, n, 1, 4.0), 5), 1e-5) for n in (1, 2, 8, 64)]
    assert by_records == sorted(by_records, reverse=True)
    assert by_records[-1] < by_records[0] / 4
    by_clients = [epsilon(events.repeated(events.shuffled(n, 8, 1, 4.0), 5), 1e-5) for n in (2, 60, 300, 3000)]
    assert by_clients == sorted(by_clients, reverse=True)


def test_delta_and_epsilon_belong_together() -> None:
    run = events.repeated(events.shuffled(200, 4, 1, 4.0), 6)
    at = epsilon(run, 1e-5)
    assert accounting.log_delta(run, at, Adjacency.REPLACE_ONE, log_floor=math.log(1e-5)) <= math.log(1.1e-5)
    assert accounting.delta(run, 0.5 * at) > 1e-5


def test_calibrated_noise_keeps_the_target_and_is_far_below_the_local_one() -> None:
    noise = calibrate_noise(lambda z: events.repeated(events.shuffled(300, 3, 1, z), 10), epsilon=1.0, delta=1e-5)
    assert epsilon(events.repeated(events.shuffled(300, 3, 1, noise), 10), 1e-5) <= 1.0
    assert epsilon(events.repeated(events.shuffled(300, 3, 1, 0.98 * noise), 10), 1e-5) > 1.0
    alone_noise = calibrate_noise(
        lambda z: events.repeated(events.without_replacement(3, 1, z), 10), epsilon=1.0, delta=1e-5
    )
    assert noise < alone_noise / 2


def test_other_releases_compose_with_shuffled_ones() -> None:
    mixed, plain = events.repeated(events.shuffled(500, 1, 1, 6.0), 4), events.poisson(0.1, 3.0)
    both = epsilon(events.composed([mixed, plain]), 1e-5)
    parts = [epsilon(one, 1e-5 / 2) for one in (mixed, plain)]
    assert max(epsilon(mixed, 1e-5), epsilon(plain, 1e-5)) < both < sum(parts)
    assert both < epsilon(events.composed([alone(mixed), plain]), 1e-5)


def test_sums_with_coins_add_up_with_everything_else() -> None:
    coins = events.repeated(events.coin_sum(10, 100, 50, 10.0), 3)
    both = epsilon(events.composed([coins, events.gaussian(5.0)]), 1e-5)
    assert both == pytest.approx(epsilon(coins, 5e-6) + epsilon(events.gaussian(5.0), 5e-6))
    with pytest.raises(CannotAnswerError):
        accounting.delta(events.composed([coins, events.gaussian(5.0)]), 1.0)
    assert rdp_epsilon(coins, 1e-5) == epsilon(coins, 1e-5)


def test_a_second_opinion_is_never_below() -> None:
    run = events.repeated(events.shuffled(300, 3, 1, 4.0), 10)
    assert rdp_epsilon(run, 1e-5) >= epsilon(alone(run), 1e-5) > epsilon(run, 1e-5)


def test_one_pass_stays_one_pass() -> None:
    for one in (events.shuffled(100, 4, 4, 20.0), events.coin_sum(10, 100, 50, 10.0)):
        run = over(events.once(one, 1), 30)
        assert run == events.once(one, 30)
        assert epsilon(run, 1e-5) == epsilon(one, 1e-5) < epsilon(over(one, 30), 1e-5)
    assert cost_of(events.once(one, 1), 5, 1e-5).last_round == 0
    with pytest.raises(RequestError, match="once is for"):
        events.once(events.gaussian(1.0), 3)


def test_groups_cost_more_and_a_whole_client_is_a_client() -> None:
    run = events.repeated(events.shuffled(200, 8, 8, 200.0), 2)
    costs = [group_epsilon(run, size, 1e-5) for size in (1, 2)]
    assert costs[0] < costs[1] < group_epsilon(alone(run), 2, 1e-5)
    drawn = events.shuffled(2, 8, 2, 4.0)
    # More records than the event says: at most all of a batch is theirs.
    assert group_epsilon(drawn, 9, 1e-5) == group_epsilon(drawn, 8, 1e-5) == epsilon(events.gaussian(2.0), 1e-5)
    coins = events.coin_sum(10, 100, 50, 1.0)
    assert group_epsilon(coins, 3, 1e-5) == epsilon(events.coin_sum(10, 100, 50, 3.0), 1e-5)
    passed = group_epsilon(events.once(coins, 2), 3, 1e-5)
    assert passed == epsilon(events.repeated(events.coin_sum(10, 100, 50, 3.0), 2), 1e-5)


def test_adjacency() -> None:
    full, drawn = events.shuffled(100, 5, 5, 30.0), events.shuffled(100, 5, 1, 30.0)
    assert epsilon(full, 1e-5, Adjacency.ADD_REMOVE) < epsilon(full, 1e-5)
    with pytest.raises(RequestError, match="cannot be used with fixed-size batches"):
        epsilon(drawn, 1e-5, Adjacency.ADD_REMOVE)
    assert epsilon_between(drawn, 1e-5, Adjacency.ADD_REMOVE) == epsilon(drawn, 1e-5)
    coins = events.coin_sum(10, 100, 50, 10.0)
    halved = events.coin_sum(10, 100, 50, 5.0)
    assert epsilon(coins, 1e-5, Adjacency.ADD_REMOVE) == epsilon(halved, 1e-5)


def test_the_table_says_what_is_left_without_the_shuffler() -> None:
    crowd = events.repeated(events.shuffled(300, 3, 1, 4.0), 10)
    rows = protection(Guarantee((crowd,), delta=1e-5, adversary=Adversary.SHUFFLER), groups=())
    assert [row.adversary for row in rows[:2]] == [
        "the server behind the shuffler",
        "the server and all other parties",
    ]
    assert rows[1].epsilon == epsilon(alone(crowd), 1e-5) > 2 * rows[0].epsilon
    lonely = events.repeated(events.shuffled(12, 50, 5, 2.0), 10)
    rows = protection(Guarantee((lonely,), delta=1e-5, adversary=Adversary.SHUFFLER), groups=())
    assert rows[1].adversary.endswith("(the shuffler gains nothing)")
    assert "too few clients" in rows[1].sentence
    assert rows[1].epsilon == rows[0].epsilon


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: events.shuffled(0, 5, 1, 1.0),
        lambda: events.shuffled(5, 5, 6, 1.0),
        lambda: events.shuffled(5, 5, 1, 0.0),
        lambda: events.coin_sum(0, 1, 1, 1.0),
        lambda: events.coin_sum(1, 1, 0, 1.0),
        lambda: events.coin_sum(1, 1, 1, math.inf),
        lambda: events.once(events.shuffled(5, 5, 1, 1.0), 0),
        lambda: events.from_dict({"kind": "once", "rounds": 3}),
    ],
)
def test_wrong_events_are_refused(wrong: object) -> None:
    with pytest.raises(RequestError):
        wrong()  # type: ignore[operator]
