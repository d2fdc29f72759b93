"""Noise from a computer costs a little more than ideal noise, and exactly as much as proved."""

from __future__ import annotations

import math

import pytest

from tacit.errors import RequestError
from tacit.privacy import calibrate_noise, delta, epsilon, rdp_epsilon
from tacit.privacy.events import composed, from_dict, gaussian, inexact_noise, poisson, repeated, to_dict

IDEAL = repeated(poisson(0.1, 2.0), 50)


def test_the_surcharge_is_added_and_small_for_a_real_sampler() -> None:
    real = composed([IDEAL, inexact_noise(1e-6, 1e-45)])
    assert epsilon(IDEAL, 1e-5) + 1e-6 <= epsilon(real, 1e-5) <= epsilon(IDEAL, 1e-5) * 1.002
    assert rdp_epsilon(real, 1e-5) >= rdp_epsilon(IDEAL, 1e-5) + 1e-6
    large = composed([IDEAL, inexact_noise(0.5, 1e-45)])
    assert epsilon(large, 1e-5) >= epsilon(IDEAL, 1e-5 * math.exp(-0.25)) + 0.5 - 1e-9


def test_delta_and_epsilon_agree() -> None:
    real = composed([repeated(gaussian(20.0), 30), inexact_noise(0.01, 1e-45)])
    at = epsilon(real, 1e-5)
    assert delta(real, at) <= 1e-5
    assert delta(real, 0.99 * at) > 1e-5
    assert delta(real, 0.005) == 1.0


def test_calibration_pays_for_it() -> None:
    def event(z: float):  # type: ignore[no-untyped-def]
        return composed([repeated(gaussian(z), 30), inexact_noise(0.1, 1e-45)])

    z = calibrate_noise(event, epsilon=1.0, delta=1e-5)
    assert epsilon(event(z), 1e-5) <= 1.0
    assert z > calibrate_noise(lambda z: repeated(gaussian(z), 30), epsilon=0.91, delta=1e-5)


def test_it_survives_the_ledger_and_refuses_nonsense() -> None:
    real = composed([IDEAL, inexact_noise(1e-6, 1e-45)])
    assert to_dict(from_dict(to_dict(real))) == to_dict(real)
    for values in ((0.0, 1e-45), (1e-6, 0.0), (math.nan, 1e-45)):
        with pytest.raises(RequestError):
            inexact_noise(*values)
    with pytest.raises(RequestError, match="cut at its far ends"):
        epsilon(composed([repeated(gaussian(0.05), 30), inexact_noise(1e-6, 1e-45)]), 1e-5)
