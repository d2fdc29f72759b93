"""Noise from a computer costs a little more than ideal noise, and exactly as much as proved."""

from __future__ import annotations

import math

import pytest
from dp_accounting import DpEvent

from tacit.errors import RequestError
from tacit.privacy import calibrate_noise, delta, epsilon, rdp_epsilon
from tacit.privacy.accountant.composition import CannotAnswerError
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


def test_noise_that_is_cut_early_keeps_less_than_a_large_epsilon() -> None:
    """Beyond what the cut allows, the least noise is that of the largest epsilon which can be kept at all."""

    def real(z: float) -> DpEvent:
        return composed([repeated(poisson(0.1, z), 5), inexact_noise(2e-18, 1e-18)])

    kept = []
    for asked in (20.0, 36.0, 200.0):
        noise = calibrate_noise(real, epsilon=asked, delta=1e-5)
        kept.append(epsilon(real(noise), 1e-5))
        assert kept[-1] <= asked
        # Less noise keeps nothing, or more than was asked for.
        try:
            assert epsilon(real(0.98 * noise), 1e-5) > asked
        except CannotAnswerError:
            assert asked > 20
    # ln(delta / 1000) - ln(cut)
    assert kept[0] == pytest.approx(20.0, rel=5e-3)
    assert kept[1] == kept[2] == pytest.approx(math.log(1e-8 / 1e-18), rel=5e-3)


def test_it_survives_the_ledger_and_refuses_nonsense() -> None:
    real = composed([IDEAL, inexact_noise(1e-6, 1e-45)])
    assert to_dict(from_dict(to_dict(real))) == to_dict(real)
    for values in ((0.0, 1e-45), (1e-6, 0.0), (math.nan, 1e-45)):
        with pytest.raises(RequestError):
            inexact_noise(*values)
    with pytest.raises(RequestError, match="truncated tails"):
        epsilon(composed([repeated(gaussian(0.05), 30), inexact_noise(1e-6, 1e-45)]), 1e-5)


def test_a_large_epsilon_beside_a_costly_release_is_not_called_too_small() -> None:
    """No noise helps, because the other release alone costs more than noise that is cut early can prove."""

    def real(z: float) -> DpEvent:
        return composed([repeated(gaussian(z), 5), gaussian(0.1), inexact_noise(2e-18, 1e-18)])

    with pytest.raises(RequestError, match=r"epsilon = 500 is too large .* ask for at most epsilon = 23"):
        calibrate_noise(real, epsilon=500.0, delta=1e-5)
