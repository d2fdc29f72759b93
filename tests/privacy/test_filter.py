"""The filter charges at least what is true, and not much more."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import DpEvent
from numpy.typing import NDArray
from scipy import optimize, stats

from tacit.errors import RequestError
from tacit.privacy import Adjacency, Guarantee, Target, calibrate_noise, rdp_epsilon
from tacit.privacy.accountant import accounting
from tacit.privacy.accountant import filter as privacy_filter
from tacit.privacy.accountant.composition import CannotAnswerError
from tacit.privacy.accountant.filter import (
    MOST_DIFFERENT_RUNS,
    MOST_RUNS,
    SLACK,
    chosen_epsilon,
    dominating_shift,
    least_epsilon,
    room,
)
from tacit.privacy.events import (
    chosen_runs,
    coin_sum,
    composed,
    fixed_size_two_level,
    from_dict,
    gaussian,
    inexact_noise,
    non_private,
    nothing,
    poisson,
    repeated,
    shuffled,
    to_dict,
    two_level,
    without_replacement,
)
from tacit.privacy.events.runs import ChosenRunsDpEvent

DELTA = 1e-5
CHANCE = 2.5e-7


def _poisson_divergence(rate: float, noise_multiplier: float, factor: float) -> float:
    """H_g of one Poisson-sampled release under replace-one: the loss grows with the outcome."""
    shift = 1 / noise_multiplier

    def loss(x: float) -> float:
        upper, lower = (
            np.logaddexp(math.log1p(-rate), math.log(rate) + s * x - s * s / 2) for s in (shift, -shift)
        )
        return float(upper - lower)

    threshold = optimize.brentq(lambda x: loss(x) - math.log(factor), -60.0, 60.0, xtol=1e-14)

    def above(centre: float) -> float:
        return float((1 - rate) * stats.norm.sf(threshold) + rate * stats.norm.sf(threshold, centre))

    return above(shift) - factor * above(-shift)


def _gaussian_divergence(shift: float, factor: float) -> float:
    epsilon = math.log(factor)
    return float(
        stats.norm.cdf(shift / 2 - epsilon / shift) - factor * stats.norm.cdf(-shift / 2 - epsilon / shift)
    )


@pytest.mark.parametrize(("rate", "noise_multiplier"), [(0.3, 2.0), (0.02, 0.7), (0.001, 0.4), (0.9, 5.0)])
def test_the_shift_dominates_between_the_points_of_its_profile_too_and_none_smaller_does(
    rate: float, noise_multiplier: float
) -> None:
    shift = dominating_shift(poisson(rate, noise_multiplier), CHANCE)
    generator = np.random.default_rng(1)
    top = accounting.epsilon(poisson(rate, noise_multiplier), CHANCE)
    epsilons = np.concatenate(([0.0], generator.uniform(0, 1.1 * top, 60)))

    def margins(candidate: float) -> list[float]:
        return [
            CHANCE + (1 - CHANCE) * _gaussian_divergence(candidate, factor)
            - _poisson_divergence(rate, noise_multiplier, factor)
            for factor in np.exp(epsilons)
        ]  # fmt: skip

    assert min(margins(shift)) >= -1e-12
    assert min(margins(0.97 * shift)) < 0


def test_the_space_between_two_points_is_looked_at() -> None:
    """A chord that touches the curve at both ends cuts it in between."""
    epsilons: NDArray[np.float64] = np.array([0.0, 2.0])
    ends = np.array([_gaussian_divergence(1.0, math.exp(e)) for e in epsilons])
    assert not privacy_filter._dominates(1.0, epsilons, ends, 1e-12)
    low, high = 1.0, 3.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (low, middle) if privacy_filter._dominates(middle, epsilons, ends, 1e-12) else (middle, high)
    factors = np.linspace(1.0, math.exp(2.0), 5001)
    chord = ends[0] + (ends[1] - ends[0]) * (factors - 1) / (factors[-1] - 1)
    gap = min(_gaussian_divergence(high, factor) - at for factor, at in zip(factors, chord, strict=True))
    assert abs(gap) < 1e-6


@pytest.mark.parametrize(
    "event",
    [
        repeated(two_level(0.05, 6.0, 1.95, 0.05), 200),
        repeated(without_replacement(1000, 50, 5.0), 200),
        composed([repeated(poisson(0.05, 2.8), 200), inexact_noise(1e-7, 1e-16)]),
        composed([repeated(gaussian(20.0), 50), inexact_noise(1e-7, 1e-16)]),
        repeated(shuffled(1000, 50, 50, 20.0), 10),
        composed([repeated(poisson(0.05, 4.0), 100), repeated(gaussian(30.0), 10)]),
    ],
)
def test_what_a_run_is_charged_for_is_hardly_more_than_it_costs(event: DpEvent) -> None:
    """As a Gaussian release, at the delta of the policy; and never less, at any delta above the chance."""
    release = gaussian(2 / dominating_shift(event, CHANCE))
    assert accounting.epsilon(release, DELTA) < 1.01 * accounting.epsilon(event, DELTA)
    for delta in (1e-2, 1e-4, DELTA, 1e-6):
        # The chance stands in for what the release lacks; accountants agree to within half a percent.
        assert accounting.epsilon(release, delta - CHANCE) > 0.99 * accounting.epsilon(event, delta)


def test_other_kinds_of_events_are_charged_or_refused() -> None:
    assert dominating_shift(nothing(), CHANCE) == 0
    assert dominating_shift(repeated(gaussian(8.0), 16), CHANCE) == 1.0
    assert dominating_shift(repeated(gaussian(8.0), 16), CHANCE, Adjacency.ADD_REMOVE) == 0.5
    assert dominating_shift(non_private(), CHANCE) == math.inf
    coins = repeated(coin_sum(20, 100, 3000, 2.0), 10)
    assert 0 < dominating_shift(coins, CHANCE) < 1
    assert accounting.epsilon(coins, DELTA) < least_epsilon([coins, coins], DELTA) < 2
    assert dominating_shift(fixed_size_two_level(100, 10, False, 30.0, 2.0, 0.1), CHANCE) > 0
    with pytest.raises(RequestError):
        dominating_shift(composed([coins, gaussian(5.0)]), CHANCE)


def _job(epsilon: float, rate: float = 0.05, rounds: int = 200) -> DpEvent:
    noise = calibrate_noise(lambda z: repeated(poisson(rate, z), rounds), epsilon=epsilon, delta=DELTA)
    return repeated(poisson(rate, noise), rounds)


def test_one_run_costs_what_it_costs() -> None:
    job = _job(2.0)
    assert least_epsilon([job], DELTA) == accounting.epsilon(job, DELTA) <= 2.0


@pytest.mark.parametrize("runs", [2, 3])
def test_several_runs_in_a_row_still_fit(runs: int) -> None:
    """Against a plain composition, which holds only if nobody chooses, half a percent of epsilon is lost."""
    job = _job(2.0)
    needed, plain = least_epsilon([job] * runs, DELTA), accounting.epsilon(repeated(job, runs), DELTA)
    assert plain < needed < 1.01 * plain
    assert needed < 8.0
    assert room([job] * runs, Target(8.0, DELTA)) > 4.0


def test_runs_of_any_kind_fit_in_any_order() -> None:
    jobs = [_job(2.0), repeated(gaussian(40.0), 50), _job(1.0, 0.3, 40)]
    plain = accounting.epsilon(composed(jobs), DELTA)
    for order in (jobs, jobs[::-1]):
        assert plain < least_epsilon(order, DELTA) < 1.02 * plain


def test_what_there_is_room_for_fits_and_more_does_not() -> None:
    job = _job(2.0)
    target = Target(4.0, DELTA)
    left = room([job], target)

    def fits(epsilon: float) -> bool:
        more = gaussian(calibrate_noise(gaussian, epsilon=epsilon, delta=DELTA))
        return least_epsilon([job, more], DELTA) <= 4.0

    assert fits(0.99 * left)
    assert not fits(1.02 * left)
    assert room([], target) == 4.0
    assert room([_job(4.0)], target) == 0.0
    assert room([job, non_private()], target) == 0.0


def test_later_runs_share_a_part_of_delta_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[DpEvent, float]] = []

    def shift(event: DpEvent, chance: float, adjacency: Adjacency) -> float:
        seen.append((event, chance / (SLACK * DELTA)))
        return 0.1

    monkeypatch.setattr(privacy_filter, "dominating_shift", shift)
    different = [gaussian(10.0 + i) for i in range(6)]
    least_epsilon(different, DELTA)
    assert [event for event, _ in seen] == different[1:]
    assert [chance for _, chance in seen] == [1 / 2, 1 / 8, 1 / 16, 1 / 32, 1 / 32]
    assert all(chance <= 1 / (i * (i + 1)) for i, (_, chance) in enumerate(seen, 1))
    assert sum(1 / (i * (i + 1)) for i in range(1, 10_000)) <= 1
    # Runs that are alike need few answers, and none of them is forgotten.
    seen.clear()
    found = least_epsilon([gaussian(10.0)] * 1000, DELTA)
    assert len(seen) == 19
    assert found == accounting.epsilon(
        composed([gaussian(10.0), gaussian(2 / (0.1 * math.sqrt(999)))]), (1 - SLACK) * DELTA
    )


def test_more_different_runs_than_anyone_has_are_refused() -> None:
    runs = [gaussian(1000.0 + i) for i in range(MOST_DIFFERENT_RUNS + 1)]
    assert least_epsilon(runs, DELTA) > 0
    with pytest.raises(CannotAnswerError, match="different runs"):
        least_epsilon([*runs, gaussian(999.0)], DELTA)
    with pytest.raises(CannotAnswerError, match="more than 1000 runs"):
        least_epsilon(runs[:1] * (MOST_RUNS + 1), DELTA)


def test_of_several_runs_the_policy_is_what_is_promised() -> None:
    job = _job(1.0)
    one, two = chosen_runs([job], 8.0), chosen_runs([job, job], 8.0)
    assert accounting.epsilon(one, DELTA) == accounting.epsilon(job, DELTA)
    assert accounting.epsilon(two, DELTA) == 8.0
    # A policy that was lowered under what it had let in does not make it cheaper.
    assert accounting.epsilon(chosen_runs([job, job], 0.5), DELTA) == least_epsilon([job, job], DELTA) > 1.0
    assert accounting.epsilon(chosen_runs([], 8.0), DELTA) == 0.0
    sentence = Guarantee((two,), delta=DELTA).sentence()
    assert "whatever all 2 runs under the policy show them" in sentence
    assert "epsilon = 8," in sentence
    assert "whatever the whole run shows them" in Guarantee((one,), delta=DELTA).sentence()
    assert isinstance(two, ChosenRunsDpEvent)
    assert chosen_epsilon(two, DELTA) == 8.0


def test_chosen_runs_are_read_back_and_taken_for_no_composition() -> None:
    event = chosen_runs([_job(1.0), gaussian(3.0)], 4.0)
    assert to_dict(from_dict(to_dict(event))) == to_dict(event)
    with pytest.raises(RequestError):
        chosen_runs([event], 4.0)
    with pytest.raises(RequestError):
        from_dict({"kind": "chosen-runs", "runs": 3, "epsilon": 1.0})
    # Whoever does not know that runs were chosen must not add them up as if they were not.
    for account in (
        rdp_epsilon,
        lambda e, d: accounting.delta(e, 1.0),
        lambda e, d: accounting.epsilon(composed([e]), d),
    ):
        with pytest.raises(RequestError):
            account(event, DELTA)
