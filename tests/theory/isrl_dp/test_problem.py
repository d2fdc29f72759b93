"""A problem fills in the worst of what is left open, and refuses what cannot be."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from tacit.errors import RequestError
from tacit.theory.isrl_dp import ConvexProblem


def test_what_is_left_open_takes_the_worst_public_value(mnist: ConvexProblem) -> None:
    assert (mnist.reporting, mnist.phi, mnist.upsilon, mnist.gap) == (25.0, 2.0, 2.0, 20.0)
    told = dataclasses.replace(mnist, cohort=12.5, gradient_spread=0.5, heterogeneity=0.1, loss_gap=0.7)
    assert (told.reporting, told.phi, told.upsilon, told.gap) == (12.5, 0.5, 0.1, 0.7)
    assert told.absence == pytest.approx(12.5 / 24)
    assert dataclasses.replace(mnist, clients=1).absence == 0
    assert mnist.privacy_cost == pytest.approx(math.sqrt(51 * 2 * math.log(1238)) / (1238 * 3))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("clients", 0),
        ("records", 2.5),
        ("dim", -1),
        ("epsilon", 0.0),
        ("epsilon", math.nan),
        ("delta", 0.0),
        ("delta", 1.0),
        ("lipschitz", math.inf),
        ("diameter", -1.0),
        ("smoothness", 0.0),
        ("smoothness", math.nan),
        ("strong_convexity", -0.1),
        ("strong_convexity", 0.41),
        ("cohort", 0.5),
        ("cohort", 26),
        ("cohort", math.nan),
        ("gradient_spread", 2.1),
        ("heterogeneity", -1.0),
        ("heterogeneity", math.nan),
        ("loss_gap", 0.0),
    ],
)
def test_a_problem_names_the_setting_that_is_wrong(setting: str, value: Any, mnist: ConvexProblem) -> None:
    with pytest.raises(RequestError, match=setting):
        dataclasses.replace(mnist, **{setting: value})


def test_a_loss_is_at_least_as_smooth_as_it_is_curved(mnist: ConvexProblem) -> None:
    with pytest.raises(RequestError, match=r"smoothness must be at least strong_convexity = 0\.3"):
        dataclasses.replace(mnist, strong_convexity=0.3, smoothness=0.2)


def test_smooth_results_ask_for_smoothness(mnist: ConvexProblem) -> None:
    with pytest.raises(RequestError, match="smoothness must be given"):
        _ = dataclasses.replace(mnist, smoothness=None).smooth
    with pytest.raises(RequestError, match="strong_convexity"):
        _ = mnist.condition_number
