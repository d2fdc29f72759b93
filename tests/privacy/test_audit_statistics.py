"""The audit's statistics: never above the truth more often than they say, and close to it with many trials."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from tacit.errors import RequestError
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Adjacency, events
from tacit.privacy.accountant import gaussian
from tacit.privacy.audit import (
    AuditResult,
    Check,
    ClaimedPoint,
    Finding,
    Rehearsal,
    Shifts,
    best_rule,
    draws_check,
    freshness_check,
    law_check,
    mixed_attacks,
    noise_check,
    one_run_epsilon,
    one_run_finding,
    one_run_p_value,
    others_check,
    promised_shifts,
    rehearsed_attacks,
    repeated_runs_epsilon,
)
from tacit.privacy.audit.guesses import clopper_pearson_lower, repeated_runs_delta

Array = NDArray[np.float64]


def _generator(seed: int) -> np.random.Generator:
    return Randomness(seed).generator(Purpose.DATA)


def test_clopper_pearson_is_the_exact_limit() -> None:
    for k, n, confidence in [(1, 10, 0.95), (7, 20, 0.99), (50, 50, 0.9)]:
        limit = float(clopper_pearson_lower(k, n, confidence))
        assert stats.binom.sf(k - 1, n, limit) == pytest.approx(1 - confidence)
    assert float(clopper_pearson_lower(0, 10, 0.95)) == 0


@given(st.integers(1, 400), st.floats(0.5, 0.999), st.floats(0, 0.3), st.sampled_from([1, 2]))
def test_the_bounds_on_epsilon_and_on_delta_are_one_statement(
    guesses: int, accuracy: float, delta: float, sides: int
) -> None:
    right = round(accuracy * guesses)
    epsilon = float(repeated_runs_epsilon(right, guesses, 400, delta=delta, confidence=0.95, sides=sides))
    if epsilon > 0:
        back = repeated_runs_delta(right, guesses, 400, epsilon=epsilon, confidence=0.95, sides=sides)
        assert float(back) == pytest.approx(delta, abs=1e-9)


@settings(max_examples=30)
@given(st.integers(2, 300), st.floats(0.5, 1.0), st.floats(1e-9, 0.1))
def test_more_right_guesses_never_lower_the_bound(guesses: int, accuracy: float, delta: float) -> None:
    right = round(accuracy * (guesses - 1))
    less, more = (one_run_epsilon(guesses, guesses, k, delta=delta, confidence=0.95) for k in (right, right + 1))
    assert more >= less - 1e-6
    few, many = (
        float(repeated_runs_epsilon(k, guesses, guesses, delta=delta, confidence=0.95, sides=2))
        for k in (right, right + 1)
    )
    assert many >= few


def test_one_run_bound_equals_the_published_value() -> None:
    """Steinke, Nasr & Jagielski 2023, appendix D."""
    assert one_run_epsilon(1000, 100, 75, delta=1e-4, confidence=0.95) == pytest.approx(0.673, abs=1e-3)


def test_without_delta_the_one_run_p_value_is_binomial() -> None:
    exact = stats.binom.sf(74, 100, 1 / (1 + math.exp(-0.7)))
    assert one_run_p_value(1000, 100, 75, epsilon=0.7, delta=0.0) == pytest.approx(float(exact))
    assert one_run_p_value(1000, 100, 0, epsilon=0.7, delta=0.1) == 1.0


def test_one_run_p_value_is_valid_for_canaries_that_fall_together() -> None:
    """A mechanism that gives all canaries away with probability delta: the guesses depend on each other."""
    canaries, delta = 20, 0.01
    for right in range(11, 21):
        fair = float(stats.binom.sf(right - 1, canaries, 0.5))
        truth = delta + (1 - delta) * fair
        assert one_run_p_value(canaries, canaries, right, epsilon=0.0, delta=delta) >= truth


def test_wrong_counts_are_refused() -> None:
    with pytest.raises(RequestError, match="right <= guesses <= trials"):
        repeated_runs_epsilon(5, 4, 10, delta=0.0, confidence=0.95, sides=1)
    with pytest.raises(RequestError, match="confidence"):
        repeated_runs_epsilon(3, 4, 10, delta=0.0, confidence=1.0, sides=1)
    with pytest.raises(RequestError, match="delta"):
        one_run_p_value(10, 4, 3, epsilon=1.0, delta=-1e-5)


@pytest.mark.parametrize("delta", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("sides", [1, 2])
def test_repeated_runs_bound_exceeds_the_truth_as_often_as_it_may(delta: float, sides: int) -> None:
    """Randomised response that is given away with probability delta is exactly (1, delta)-private."""
    generator, repetitions, trials = _generator(1), 4000, 300
    honest = 1 / (1 + math.exp(-1.0))
    coins = generator.random((repetitions, trials)) < 0.5
    told = generator.random((repetitions, trials)) < delta
    answers = np.where(told, coins, coins == (generator.random((repetitions, trials)) < honest))
    guessed = answers if sides == 1 else np.ones_like(answers)
    right = (guessed & (coins == answers)).sum(1)
    bounds = repeated_runs_epsilon(right, guessed.sum(1), trials, delta=delta, confidence=0.95, sides=sides)
    assert (bounds > 1).mean() < 0.05
    assert np.median(bounds) > 0.4


def _gaussian_trials(trials: int, shift: float, seed: int) -> tuple[dict[str, Array], NDArray[np.bool_]]:
    """Two worlds, N(0, 1) and N(shift, 1): the score is the outcome."""
    generator = _generator(seed)
    present = generator.random(trials) < 0.5
    return {"outcome": generator.standard_normal(trials) + shift * present}, present


def test_a_rule_is_exact_about_the_gaussian_mechanism() -> None:
    """With many trials the bound on the curve comes close to the curve, and does not cross it."""
    shift = 1.0
    curve = [ClaimedPoint(e, math.exp(gaussian.log_delta([shift], [1.0], e))) for e in (0.1, 0.5, 1.0)]
    rule = best_rule(*_gaussian_trials(20_000, shift, 2), curve, confidence=0.999)
    guesses = rule.guess(*_gaussian_trials(200_000, shift, 3))
    found = rule.finding(guesses, confidence=0.95)
    assert found.claimed - 0.1 < found.lower_bound < found.claimed
    assert not found.violated


def test_a_rule_finds_a_shift_that_is_too_large() -> None:
    curve = [ClaimedPoint(e, math.exp(gaussian.log_delta([1.0], [1.0], e))) for e in (0.1, 0.5, 1.0)]
    rule = best_rule(*_gaussian_trials(1000, 1.6, 4), curve, confidence=0.999)
    assert rule.finding(rule.guess(*_gaussian_trials(2000, 1.6, 5)), confidence=0.999).violated


def _mixture(trials: int, seed: int, *, reused: bool = False) -> Rehearsal:
    """Four rounds in two dimensions; the canary shows along (1, 1) with probability 1/2 in each round."""
    generator = _generator(seed)
    present = generator.random(trials) < 0.5
    drawn = generator.random((trials, 4)) < 0.5
    turns = np.array([-1.0, 1.0, -1.0, 1.0])
    signals = (drawn * np.where(present, 1.0, -1.0)[:, None] * turns)[:, :, None] * np.full(2, 0.5**0.5)
    noise = generator.standard_normal((trials, 1 if reused else 4, 2))
    return Rehearsal(signals + noise, signals, present)


def test_attacks_learn_the_likelihood_ratio() -> None:
    rehearsal, fresh = _mixture(4000, 6), _mixture(4000, 7)
    along = fresh.views @ np.full(2, 0.5**0.5) * np.array([-1.0, 1.0, -1.0, 1.0])
    exact = np.log1p(np.exp(along - 0.5)) - np.log1p(np.exp(-along - 0.5))
    for name, attack in rehearsed_attacks(rehearsal, np.full(2, 0.5**0.5)).items():
        assert np.corrcoef(attack(fresh.views), exact.sum(1))[0, 1] > 0.97, name


def test_attacks_make_do_with_the_coordinates_that_were_seen() -> None:
    rehearsal, fresh = _mixture(2000, 8), _mixture(2000, 9)
    views = fresh.views.copy()
    views[:, :, 0] = np.nan
    for name, attack in rehearsed_attacks(rehearsal, np.full(2, 0.5**0.5)).items():
        half, all_of_it = (((attack(seen) > 0) == fresh.present).mean() for seen in (views, fresh.views))
        assert 0.7 < half < 0.78 < all_of_it, name


def test_noise_that_is_used_twice_gives_everything_away() -> None:
    attacks = rehearsed_attacks(_mixture(500, 10, reused=True), np.full(2, 0.5**0.5))
    fresh = _mixture(500, 11, reused=True)
    right = (attacks["likelihood of the whole path"](fresh.views) > 0) == fresh.present
    assert right.mean() > 0.85


def test_one_run_finding_takes_the_best_number_of_guesses() -> None:
    scores, present = _gaussian_trials(2000, 2.0, 12)
    found = one_run_finding(
        scores["outcome"] - 1.0, present, ClaimedPoint(0.5, 1e-6), confidence=0.95, attack="outcome"
    )
    assert found.violated
    assert found.guesses < 2000
    # Five numbers of guesses were tried, so each has a fifth of the error.
    alone = one_run_epsilon(2000, found.guesses, found.right, delta=1e-6, confidence=0.99)
    assert found.lower_bound == pytest.approx(alone)


def test_a_result_says_what_it_found() -> None:
    fine = Finding(2.0, 1e-5, 1.0, 0.95, 100, 50, 40, "a")
    torn = Finding(0.5, 0.1, 0.7, 0.999, 100, 50, 40, "a")
    result = AuditResult("repeated runs", "gd", "game", Adjacency.REPLACE_ONE, 3, 5, 1.0, fine, torn, 3.0)
    assert result.violated
    assert result.to_dict()["verdict"] == "violation"
    assert result.to_dict()["epsilon_lower_bound"] == 1.0
    same = AuditResult("one run", "gd", "game", Adjacency.REPLACE_ONE, 3, 5, 1.0, fine)
    assert same.verdict == "no violation found"


# What can be measured


def _noise(trials: int, rounds: int, dim: int, seed: int) -> Array:
    return _generator(seed).standard_normal((trials, rounds, dim))


def _moved(noise: Array, movement: float, allowed: float) -> Check:
    shape = noise.shape[:2]
    return noise_check(np.full(shape, movement), np.full(shape, allowed), noise, np.zeros(shape, dtype=np.int64))


def test_noise_is_measured_to_a_few_percent() -> None:
    noise = _noise(500, 2, 4, 13)
    fair = _moved(noise, 0.5, 0.5)
    assert not fair.violated
    assert fair.measured == pytest.approx(0.5, rel=0.05)
    assert _moved(0.9 * noise, 0.5, 0.5).violated
    assert _moved(noise, 0.55, 0.5).violated
    # A movement where none is allowed is always too much; none is never.
    assert _moved(noise, 0.5, 0.0).violated
    assert not _moved(noise, 0.0, 0.0).violated
    mixed = noise_check(np.array([[0.5, 0.1]]), np.array([[0.5, 0.0]]), noise, np.zeros((500, 2), dtype=np.int64))
    assert mixed.violated


def test_noise_and_movements_may_shrink_together_from_round_to_round() -> None:
    """As with steps that become shorter; less noise in a single round is found."""
    noise, scales = _noise(400, 5, 4, 21), 0.5 ** np.arange(5)
    moved, allowed, groups = np.tile(0.5 * scales, (400, 1)), np.full((400, 5), 0.5), np.zeros((400, 5), np.int64)
    shrinking = noise * scales[:, None]
    assert not noise_check(moved, allowed, shrinking, groups).violated
    assert not law_check(shrinking, shrinking).violated
    assert not freshness_check(shrinking).violated
    shrinking[:, 3] *= 0.8
    assert noise_check(moved, allowed, shrinking, groups).violated
    shrinking[:, 3] = 0.0
    assert noise_check(moved, allowed, shrinking, groups).violated
    assert law_check(shrinking, shrinking).violated


def test_noise_that_depends_on_the_data_is_measured_where_it_is_least() -> None:
    noise = _noise(1000, 1, 4, 14)
    groups = (np.arange(1000) % 2)[:, None]
    some = np.where(groups[..., None] == 1, noise, 0.5 * noise)
    movements, allowed = np.full((1000, 1), 0.5), np.full((1000, 1), 0.7)
    assert not noise_check(movements, allowed, some, np.zeros_like(groups)).violated
    assert noise_check(movements, allowed, some, groups).violated


def test_checks_raise_false_alarms_as_seldom_as_they_may() -> None:
    """One in a thousand each: in 400 repetitions at the limit, hardly ever more than three."""
    alarms = dict.fromkeys(("noise", "law", "freshness", "draws", "others"), 0)
    for seed in range(400):
        generator = _generator(100 + seed)
        noise = generator.standard_normal((60, 3, 4))
        draws = (generator.random((60, 3)) < 0.3).astype(np.int64)
        base = generator.binomial(9, 0.3, (60, 3)).astype(float)
        found = [
            _moved(noise, 0.5, 0.5),
            law_check(noise, noise),
            freshness_check(noise),
            draws_check(draws, chance=0.3, most=None),
            others_check(base, draws),
        ]
        for check in found:
            alarms[check.name] += check.violated
    assert max(alarms.values()) <= 3, alarms


def test_the_law_of_noise_is_looked_at() -> None:
    generator = _generator(15)
    uniform = generator.uniform(-1, 1, (2000, 1, 4)) * 3**0.5
    assert law_check(uniform, uniform).violated
    laplace = generator.laplace(size=(2000, 1, 4)) / 2**0.5
    assert law_check(laplace, laplace).violated
    heads = generator.binomial(200, 0.5, (2000, 1, 4)) - 100.0
    assert not law_check(heads, heads + 7).violated
    assert law_check(np.zeros((50, 1, 1)), np.zeros((50, 1, 1))).violated


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_noise_that_is_shared_is_found_along_every_axis(axis: int) -> None:
    noise = _noise(40, 6, 5, 16)
    assert not freshness_check(noise).violated
    shared = np.broadcast_to(noise.take([0], axis), noise.shape)
    found = freshness_check(0.5**0.5 * (noise + shared))
    assert found.violated
    assert ("clients", "rounds", "coordinates")[axis] in found.finding
    cancelling = noise - noise.mean(axis, keepdims=True)
    assert freshness_check(cancelling).violated


def test_noise_of_numbers_that_were_not_sent_is_left_out() -> None:
    noise = _noise(400, 2, 4, 17)
    noise[:, :, ::2] = np.nan
    assert not law_check(noise, noise).violated
    assert not freshness_check(noise).violated
    assert not _moved(noise, 0.5, 0.5).violated
    assert _moved(0.5 * noise, 0.5, 0.5).violated


def test_draws_are_counted() -> None:
    draws = (_generator(18).random((500, 4)) < 0.4).astype(np.int64)
    assert not draws_check(draws, chance=0.4, most=None).violated
    assert draws_check(draws, chance=0.3, most=None).violated
    assert not draws_check(draws, chance=0.5, most=4).violated
    assert draws_check(draws, chance=0.5, most=1).violated


def test_batches_of_fixed_size_are_told_from_coins() -> None:
    generator = _generator(19)
    order = generator.random((500, 2, 6)).argsort(2)
    drawn = order < 3
    assert others_check(drawn[..., 1:].sum(2).astype(float), drawn[..., 0].astype(np.int64)).violated


def test_events_say_how_far_a_record_may_move_a_release() -> None:
    assert promised_shifts(events.repeated(events.gaussian(4.0), 3)) == Shifts(0.25)
    before = events.one_pass(1.0, 3)
    training = events.repeated(events.without_replacement(10, 2, 5.0), 3)
    inexact = events.inexact_noise(1e-9, 1e-20)
    assert promised_shifts(events.composed([before, training, inexact])) == Shifts(0.2)
    assert promised_shifts(events.coin_sum(4, 25, 4, 3.0)) == Shifts(0.3)
    svrg = events.fixed_size_two_level(10, 2, False, 2.0, 2.0, 0.2)
    assert promised_shifts(svrg).drawn == pytest.approx(1.1)
    with pytest.raises(RequestError, match="releases nothing"):
        promised_shifts(events.nothing())


def test_mixed_messages_are_told_apart_as_well_as_can_be() -> None:
    """Against the exact likelihood ratio of one client among five."""
    generator = _generator(20)

    def trials(number: int) -> Rehearsal:
        present = generator.random(number) < 0.5
        signals = np.zeros((number, 1, 5, 1))
        signals[:, 0, 0, 0] = np.where(present, 2.0, -2.0)
        return Rehearsal(signals + generator.standard_normal(signals.shape), signals, present)

    told, fresh = trials(2000), trials(2000)
    exact = np.log(np.exp(2 * fresh.views).sum((1, 2, 3))) - np.log(np.exp(-2 * fresh.views).sum((1, 2, 3)))
    (attack,) = mixed_attacks(told).values()
    mixed = generator.permuted(fresh.views, axis=2)
    assert np.corrcoef(attack(mixed), exact)[0, 1] > 0.99
    assert ((attack(mixed) > 0) == fresh.present).mean() > 0.8
