"""Server updates and participation."""

from __future__ import annotations

import pytest
import torch

from tacit.errors import RequestError
from tacit.noise.randomness import Randomness
from tacit.server.participation import Everyone, FixedNumber
from tacit.server.update import Descent


def test_descent_steps_against_the_direction() -> None:
    update = Descent(0.5)
    state = update.init(torch.tensor([1.0, 2.0]))
    state = update.step(state, torch.tensor([1.0, -1.0]), 0)
    assert update.broadcast(state, 1)["point"].tolist() == [0.5, 2.5]
    assert update.output(state).tolist() == [0.5, 2.5]
    with pytest.raises(RequestError, match="step"):
        Descent(0.0)


def test_everyone_takes_part_every_round() -> None:
    assert Everyone().cohort(4, 9, Randomness(0)).tolist() == [0, 1, 2, 3]


def test_a_fixed_number_is_uniform_and_follows_from_public_coins() -> None:
    participation, randomness = FixedNumber(2), Randomness(3)
    cohorts = [tuple(participation.cohort(4, t, randomness).tolist()) for t in range(1200)]
    assert cohorts == [tuple(participation.cohort(4, t, randomness).tolist()) for t in range(1200)]
    assert len(set(cohorts)) == 6
    for pair in set(cohorts):
        assert abs(cohorts.count(pair) - 200) < 4.5 * (1200 / 6 * 5 / 6) ** 0.5
    with pytest.raises(RequestError, match="cohort = 5"):
        FixedNumber(5).cohort(4, 0, randomness)
    with pytest.raises(RequestError, match="cohort"):
        FixedNumber(0)
