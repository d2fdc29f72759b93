"""What rounds cost: from bare numbers, by both accountants."""

from __future__ import annotations

import json
import math

import pytest

from tacit.errors import RequestError
from tacit.privacy import Adjacency, epsilon, events, rdp_epsilon
from tacit.privacy.accountant import composition
from tacit.privacy.accountant.cost import SAMPLINGS, cost_of, over, release_of

NUMBERS = {"records": 200, "batch": 20}


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_scheme_has_a_cost(sampling: str) -> None:
    numbers = {"records": 200, "batch": 200} if sampling == "full" else NUMBERS
    release = release_of(sampling, 8.0, rounds=10, **numbers)  # type: ignore[arg-type]
    cost = cost_of(release, 10, 1e-5)
    assert cost.epsilon == epsilon(cost.event, 1e-5)
    assert cost.rdp_epsilon == rdp_epsilon(cost.event, 1e-5)
    assert cost.epsilon <= cost.rdp_epsilon
    values = [value for _, value in cost.by_rounds]
    assert values == sorted(values)
    assert values[0] == cost.first_round
    assert values[-1] == cost.epsilon
    assert cost.last_round >= 0
    falling = [value for _, value in cost.by_delta]
    assert falling == sorted(falling)
    assert dict(cost.by_delta)[1e-5] == cost.epsilon
    assert json.loads(json.dumps(cost.to_dict()))["epsilon"] == cost.epsilon


def test_a_rate_is_records_and_batch() -> None:
    assert release_of("poisson", 2.0, rounds=1, rate=0.1) == release_of("poisson", 2.0, rounds=1, **NUMBERS)
    assert release_of("full", 2.0, rounds=1) == events.gaussian(2.0)


def test_one_pass_costs_once_and_repeats_cost_every_time() -> None:
    assert cost_of(release_of("one-pass", 2.0, rounds=10), 10, 1e-5).last_round == 0
    pair = events.composed([events.one_pass(2.0, 1), events.inexact_noise(1e-9, 1e-40)])
    assert over(pair, 5) == events.composed(
        [events.one_pass(2.0, 5), events.repeated(events.inexact_noise(1e-9, 1e-40), 5)]
    )
    assert over(events.revealed_batches(1, 0.1, 2.0, 1.0, 0.0), 5) == events.revealed_batches(
        5, 0.1, 2.0, 1.0, 0.0
    )
    twice = events.repeated(events.one_pass(2.0, 1), 2)
    assert epsilon(over(twice, 1), 1e-5) > epsilon(events.one_pass(2.0, 1), 1e-5)


def test_what_is_not_private_has_no_number() -> None:
    cost = cost_of(events.non_private(), 3, 1e-5)
    assert cost.epsilon == math.inf
    assert cost.to_dict()["epsilon"] is None
    assert cost.to_dict()["cost_per_round"] == {"mean": None, "first": None, "last": 0.0}


def test_deltas_without_an_answer_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    release = events.poisson(0.123, 5.0)
    whole = cost_of(release, 7, 1e-5)
    composed = composition.ComposedLoss.near

    def picky(self: composition.ComposedLoss, tilt: float) -> composition.TiltedSum:
        if tilt > 35:
            raise composition.CannotAnswerError("for a test")
        return composed(self, tilt)

    monkeypatch.setattr(composition.ComposedLoss, "near", picky)
    fewer = cost_of(events.poisson(0.1231, 5.0), 7, 1e-5)
    assert 0 < len(fewer.by_delta) < len(whole.by_delta)


@pytest.mark.parametrize(
    ("sampling", "noise", "numbers", "message"),
    [
        ("poison", 1.0, {"rate": 0.1}, "did you mean 'poisson'"),
        ("poisson", 1.0, {}, "needs a rate, or records and batch"),
        ("poisson", 1.0, {"records": 10}, "needs a rate"),
        ("poisson", 1.0, {"rate": 1.5}, "rate must be"),
        ("poisson", 1.0, {"rate": 0.0}, "rate must be"),
        ("poisson", 1.0, {"rate": math.nan}, "rate must be"),
        ("poisson", math.nan, {"rate": 0.1}, "noise_multiplier must be"),
        ("poisson", 0.0, {"rate": 0.1}, "noise_multiplier must be"),
        ("poisson", 1.0, {"records": 10, "batch": 20}, "batch must be at most the 10 records"),
        ("poisson", 1.0, {"records": 100, "batch": 10, "rate": 0.2}, "contradicts"),
        ("without-replacement", 1.0, {"rate": 0.1}, "needs records and batch"),
        ("with-replacement", 1.0, {"rate": 0.1, "records": 10}, "needs records and batch"),
        ("full", 1.0, {"rate": 0.5}, "leave it out"),
        ("one-pass", 1.0, {"records": 10, "batch": 5}, "has only 2"),
    ],
)
def test_wrong_numbers(sampling: str, noise: float, numbers: dict[str, float], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        release_of(sampling, noise, rounds=3, **numbers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rounds", "delta", "message"),
    [(0, 1e-5, "rounds"), (-1, 1e-5, "rounds"), (2, 0.0, "delta"), (2, 1.0, "delta")],
)
def test_wrong_rounds_and_deltas(rounds: int, delta: float, message: str) -> None:
    with pytest.raises(RequestError, match=f"{message} must be"):
        cost_of(events.gaussian(1.0), rounds, delta)


def test_fixed_sizes_and_add_remove_do_not_meet() -> None:
    with pytest.raises(RequestError, match="cannot be used with fixed-size"):
        cost_of(release_of("without-replacement", 1.0, rounds=3, **NUMBERS), 3, 1e-5, Adjacency.ADD_REMOVE)
