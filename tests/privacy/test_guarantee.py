"""Promises: computed from events, worded so that they can be repeated."""

from __future__ import annotations

import dataclasses
import math
import re
import time

import pytest

from tacit.errors import DataError, RequestError
from tacit.privacy import Adjacency, Adversary, Guarantee, Target, Unit, epsilon, events


def test_the_worst_client_counts_and_every_client_can_look_up_its_own() -> None:
    small, large = events.repeated(events.poisson(0.2, 3.0), 10), events.repeated(events.poisson(0.02, 3.0), 10)
    promise = Guarantee((small, large, large, small, large), delta=1e-5)
    assert promise.epsilon == epsilon(small, 1e-5)
    assert promise.epsilons == tuple(epsilon(event, 1e-5) for event in (small, large, large, small, large))
    assert [group.clients for group in promise.groups] == [2, 3]
    assert promise.groups[0].event == small


def test_a_hundred_thousand_clients_cost_one_computation() -> None:
    began = time.process_time()
    promise = Guarantee((events.repeated(events.poisson(0.0371, 3.3), 70),) * 100_000, delta=1e-5)
    assert len(promise.groups) == 1
    assert promise.groups[0].clients == 100_000
    # One takes a second; a hundred thousand would take a day.
    assert time.process_time() - began < 60


def test_compositions_are_recognised_as_equal() -> None:
    def run() -> object:
        return events.composed([events.gaussian(3.0), events.repeated(events.poisson(0.1, 3.0), 2)])

    assert len(Guarantee((run(), run(), events.gaussian(3.0)), delta=1e-5).groups) == 2


def test_no_number_can_be_typed_in() -> None:
    with pytest.raises(TypeError):
        Guarantee((events.gaussian(1.0),), delta=1e-5, epsilon=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Guarantee((events.gaussian(1.0),), delta=1e-5, groups=())  # type: ignore[call-arg]
    promise = Guarantee((events.gaussian(1.0),), delta=1e-5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        promise.delta = 1e-9  # type: ignore[misc]
    assert dataclasses.replace(promise, delta=1e-9).epsilon > promise.epsilon


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("adversary", list(Adversary))
def test_the_sentence_says_everything_that_matters(
    adjacency: Adjacency, unit: Unit, adversary: Adversary
) -> None:
    promise = Guarantee(
        (events.gaussian(7.0), events.gaussian(9.0)),
        delta=1e-5,
        adjacency=adjacency,
        unit=unit,
        adversary=adversary,
        public=("the number of records", "the scaling of the features"),
    )
    said = promise.sentence()
    for part in (
        adversary.description,
        f"per {unit}",
        str(adjacency),
        "delta = 1e-05",
        "each of 2 clients",
        "the number of records; the scaling of the features",
    ):
        assert part in said
    numbers = [float(number) for number in re.findall(r"epsilon = ([\d.]+)", said)]
    assert len(numbers) == 2, "once in everyday words, once formally"
    assert all(promise.epsilon <= printed <= promise.epsilon * 1.01 for printed in numbers)
    assert ("was used" in said or "were used" in said) == (adjacency is Adjacency.ADD_REMOVE)


def test_the_sentence_does_not_hide_the_lack_of_a_guarantee() -> None:
    promise = Guarantee((events.gaussian(7.0), events.non_private()), delta=1e-5)
    assert promise.epsilon == math.inf
    assert "no guarantee" in promise.sentence()


def test_words_are_read_from_text() -> None:
    promise = Guarantee((events.gaussian(5.0),), 1e-5, "add-remove", "client", "sum")  # type: ignore[arg-type]
    assert promise.adjacency is Adjacency.ADD_REMOVE
    assert promise.unit is Unit.CLIENT
    assert promise.adversary is Adversary.SUM
    assert Target(1.0, 1e-5, "add-remove").adjacency is Adjacency.ADD_REMOVE  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Target(0.0, 1e-5), "epsilon must be"),
        (lambda: Target(math.inf, 1e-5), "epsilon must be"),
        (lambda: Target(1.0, 1.0), "delta must be"),
        (lambda: Target(1.0, 1e-5, "both"), "unknown adjacency 'both'"),
        (lambda: Guarantee((events.gaussian(1.0),), 0.0), "delta must be"),
        (lambda: Guarantee((events.gaussian(1.0),), 1e-5, unit="person"), "unknown unit 'person'"),
        (lambda: Guarantee((events.gaussian(1.0),), 1e-5, adversary="nsa"), "unknown adversary 'nsa'"),
    ],
)
def test_bad_input_is_refused(make: object, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        make()  # type: ignore[operator]


def test_a_guarantee_needs_clients() -> None:
    with pytest.raises(DataError, match="no clients"):
        Guarantee((), delta=1e-5)
