"""Steps that nobody tunes: they suit the noise, follow the signal, and do not depend on units."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tacit.errors import RequestError
from tacit.server.self_tuned import Prospect, SelfTuned, average_in

KNOWN = Prospect(dim=20, rounds=100, length=1.0, noise_std=0.02, distance=10.0, score_range=30.0)


def _walk(known: Prospect, optimum: Tensor, *, unit: float = 1.0, seed: int = 0) -> Tensor:
    """The model after all rounds on ||x - optimum||^2 / 2, clipped to the length of directions."""
    server, rng = SelfTuned(prospect=known), np.random.default_rng(seed)
    state = server.init(torch.zeros(known.dim))
    for t in range(known.rounds):
        gradient = unit * (server.broadcast(state, t)["point"] - optimum) / 10
        gradient = gradient * min(1.0, known.length / max(1e-12, float(gradient.norm())))
        noise = torch.from_numpy(rng.standard_normal(known.dim)).float() * known.noise_std
        state = server.step(state, gradient + noise, t)
    return server.output(state)


def test_it_comes_close_without_a_setting_wherever_the_optimum_is() -> None:
    for far in (0.3, 3.0, 30.0):
        optimum = torch.full((20,), far / math.sqrt(20))
        start, end = far, float((_walk(KNOWN, optimum) - optimum).norm())
        assert end < 0.4 * start + 0.3, (far, end)


def test_a_model_that_is_much_farther_away_than_expected_is_reached_if_that_is_possible() -> None:
    """Where the size of targets is not known, directions of full length lead ever farther."""
    optimum = torch.full((20,), 5000 / math.sqrt(20))
    known = replace(KNOWN, rounds=300)
    ends = [
        float((_walk(replace(known, open_ended=is_open), optimum, unit=0.001) - optimum).norm())
        for is_open in (False, True)
    ]
    assert ends[0] > 2500
    assert ends[1] < 500


def test_directions_that_lag_are_followed_in_short_steps_without_more_momentum() -> None:
    quiet = replace(KNOWN, noise_std=1e-4)
    lagging = replace(quiet, lagging=True)
    assert quiet.momentum == 0.8
    assert lagging.travel() == pytest.approx(0.15 * 100 * 10.0)
    assert lagging.momentum == 0.0
    assert replace(KNOWN, lagging=True, noise_std=0.2).travel() == replace(KNOWN, noise_std=0.2).travel()


def test_units_do_not_matter() -> None:
    """Directions, their bound and their noise a thousand times larger give the same points."""
    optimum = torch.full((20,), 0.5)
    scaled = replace(KNOWN, length=1000 * KNOWN.length, noise_std=1000 * KNOWN.noise_std)
    assert torch.allclose(_walk(KNOWN, optimum), _walk(scaled, optimum, unit=1000.0), atol=1e-4)


def test_more_noise_means_less_travel_and_more_loss() -> None:
    noisy = replace(KNOWN, noise_std=8 * KNOWN.noise_std)
    assert noisy.travel() == pytest.approx(KNOWN.travel() / 8**1.2)
    assert noisy.excess() == pytest.approx(4 * KNOWN.excess())
    silent = replace(KNOWN, noise_std=0.0)
    assert silent.travel() == replace(KNOWN, noise_std=1e-9).travel() == 5 * KNOWN.rounds * KNOWN.distance
    assert silent.excess() == 0.0


def test_the_excess_loss_is_the_least_sum_of_what_is_left_and_what_noise_costs() -> None:
    curvature, noise = KNOWN.score_range / KNOWN.distance, KNOWN.unit_noise

    def loss(travel: float) -> float:
        return KNOWN.distance**2 / (2 * travel) + curvature * (noise * travel) ** 2 / 2

    least = min(loss(travel) for travel in np.geomspace(0.01, 1e5, 10_000))
    assert KNOWN.excess() == pytest.approx(least * curvature, rel=1e-4)


def test_where_directions_say_nothing_steps_shrink() -> None:
    """But only once it is certain: noise hides much in the first rounds."""
    known = replace(KNOWN, dim=5, noise_std=0.01)
    server, rng = SelfTuned(prospect=known), np.random.default_rng(1)
    state, steps = server.init(torch.zeros(5)), []
    for t in range(100):
        before = float(state["wander"])
        state = server.step(state, torch.from_numpy(rng.standard_normal(5) * 0.01).float(), t)
        steps.append(math.sqrt(float(state["wander"]) - before))
    assert np.mean(steps[-20:]) < 0.7 * np.mean(steps[:20])


def test_the_average_weighs_late_points_most() -> None:
    average, weights = torch.zeros(1, dtype=torch.float64), []
    for t in range(50):
        point = torch.tensor([1.0 if t >= 40 else 0.0])
        average = average_in(average, point, t)
        weights.append((t + 1.0) * (t + 2) * (t + 3))
    assert float(average) == pytest.approx(sum(weights[40:]) / sum(weights))


def test_without_a_plan_it_says_what_to_do() -> None:
    with pytest.raises(RequestError, match=r"tacit\.plan"):
        SelfTuned().init(torch.zeros(3))


@pytest.mark.parametrize("bad", [{"rounds": 0}, {"length": 0.0}, {"noise_std": -1.0}, {"distance": math.inf}])
def test_what_is_known_must_make_sense(bad: dict[str, float]) -> None:
    with pytest.raises(RequestError):
        replace(KNOWN, **bad)
