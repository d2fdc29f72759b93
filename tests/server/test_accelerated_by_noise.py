"""Acceleration whose stages and curvature follow from the noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tacit.server.accelerated import Accelerated, Stage
from tacit.server.self_tuned import Prospect

QUIET = Prospect(dim=20, rounds=300, length=1.0, noise_std=1e-4, distance=15.0, score_range=30.0)


def _settled(noise_std: float) -> Accelerated:
    return Accelerated((Stage(),)).settled(replace(QUIET, noise_std=noise_std))


@pytest.mark.parametrize("noise_std", [0.01, 0.03, 0.1, 0.3, 3.0])
def test_the_stages_cover_the_travel_that_suits_the_noise(noise_std: float) -> None:
    """Along directions of full length, w_ag goes as far as the noise allows, up to the last, shorter stage."""
    update = _settled(noise_std)
    assert update.rounds == QUIET.rounds
    state, direction = update.init(torch.zeros(20)), torch.eye(20)[0]
    for r in range(QUIET.rounds):
        state = update.step(state, direction, r)
    travel = replace(QUIET, noise_std=noise_std).travel()
    assert -float(state["aggregate"][0]) == pytest.approx(travel, rel=0.1)
    assert min(stage.curvature or 0.0 for stage in update.stages) >= QUIET.curvature


def test_much_noise_restarts_every_round_and_little_noise_never() -> None:
    assert {stage.rounds for stage in _settled(3.0).stages} == {1}
    assert [stage.rounds for stage in _settled(1e-4).stages] == [QUIET.rounds]
    lengths = [_settled(noise_std).stages[0].rounds or 0 for noise_std in (0.003, 0.01, 0.03, 0.1, 0.3)]
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) == len(lengths)


def test_stages_that_are_given_are_kept_as_the_paper_has_them() -> None:
    given = Accelerated((Stage(100, 2.0), Stage(None, 3.0)))
    assert given.settled(QUIET) == Accelerated((Stage(100, 2.0), Stage(200, 3.0)))
    assert "average" not in given.settled(QUIET).init(torch.zeros(20))


def test_the_average_is_closer_than_the_last_point_of_a_noisy_quadratic() -> None:
    """The last point swings about the goal, with a variance that grows with the steps; its average does not."""
    noise_std, generator = 0.05, torch.Generator().manual_seed(0)
    averaged = _settled(noise_std)
    state, goal = averaged.init(torch.zeros(20)), torch.full((20,), 2.0)
    for r in range(QUIET.rounds):
        noise = noise_std * torch.randn(20, generator=generator)
        state = averaged.step(state, averaged.broadcast(state, r)["point"] - goal + noise, r)
    error, last = (float((point - goal).square().sum()) for point in (averaged.output(state), state["aggregate"]))
    assert error < last / 3
