"""The corrected Theorem 2 of Fed-SPA against recomputation, enumeration and runs."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.noise.randomness import Purpose, Randomness
from tacit.theory.fed_spa import Training, fed_spa_terms, longest_local_step

Array = npt.NDArray[np.float64]

PLAIN = Training(
    agents=10,
    dim=16,
    rounds=10_000,
    local_steps=4,
    ratio=0.5,
    local_step=1e-3,
    server_step=0.1,
    kappa=0.5,
    beta_2=0.99,
    noise_std=0.2,
    smoothness=1.0,
    gradient_bound=2.0,
    coordinate_bound=0.5,
    loss_gap=3.0,
)


def _messages(gradient: Array, noise_std: float, active: int, draws: int, steps: int = 1) -> Array:
    """Sums of S(g + b) over steps that share a support."""
    rng = Randomness(1).generator(Purpose.NOISE)
    dim = len(gradient)
    kept = np.argsort(rng.random((draws, dim)), axis=1) < active
    noise = noise_std * math.sqrt(steps) * rng.normal(size=(draws, dim))
    return np.where(kept, (steps * gradient + noise) * dim / active, 0.0)


def test_messages_of_one_support_vary_together() -> None:
    gradient, steps, ratio = np.full(16, 0.5), 10, 0.25
    sums = _messages(gradient, 0.0, 4, 2000, steps)
    variance = float(np.mean(np.sum((sums - steps * gradient) ** 2, axis=1)))
    assert variance == pytest.approx(steps**2 * (1 / ratio - 1) * 4, rel=0.02)
    assert variance > 2 * steps * 4 / ratio, "Lemma 11 adds them up as if supports were fresh"


def test_from_the_second_local_step_on_messages_are_biased() -> None:
    theta, h, active = np.array([1.0, -2.0, 3.0, 0.5]), 0.1, 2
    sent, gradients = np.zeros(4), np.zeros(4)
    supports = list(itertools.combinations(range(4), active))
    for support in supports:
        mask = np.isin(np.arange(4), support) / 0.5
        moved = theta - h * mask * theta
        sent += mask * moved / len(supports)
        gradients += moved / len(supports)
    assert sent == pytest.approx((1 - h / 0.5) * theta)
    assert gradients == pytest.approx((1 - h) * theta)


def _run(training: Training, anchors: Array, copies: int) -> tuple[float, Array]:
    """The mean over rounds and copies of ||grad f||^2, and the last v.

    f_i has a coordinate g sqrt(1 + (theta - a_i)^2), whose slope is at most g and its curvature too: L = g.
    """
    rng = Randomness(2).generator(Purpose.NOISE)
    t, g, dim = training, training.coordinate_bound, training.dim
    theta, v, total = np.zeros((copies, dim)), np.full((copies, dim), t.kappa**2), 0.0
    active = round(t.ratio * dim)

    def slopes(points: Array) -> Array:
        gap = points - anchors
        return np.asarray(g * gap / np.sqrt(1 + gap**2))

    for _ in range(t.rounds):
        start = np.repeat(theta[:, None, :], t.agents, axis=1)
        total += float(np.mean(np.sum(slopes(start).mean(axis=1) ** 2, axis=1)))
        kept = np.argsort(rng.random((copies, t.agents, dim)), axis=2) < active
        local = start.copy()
        for _ in range(t.local_steps):
            noisy = slopes(local) + t.noise_std * rng.normal(size=local.shape)
            local -= t.local_step * np.where(kept, noisy / t.ratio, 0.0)
        u = (local - start).mean(axis=1)
        v = t.beta_2 * v + (1 - t.beta_2) * u**2
        theta = theta + t.server_step * u / (np.sqrt(v) + t.kappa)
    return total / t.rounds, v


def _bound(training: Training) -> float:
    return sum(fed_spa_terms(training).values())


@pytest.mark.parametrize(("ratio", "local_steps"), [(1.0, 1), (0.5, 1), (0.25, 3)])
def test_the_corrected_bound_holds_for_a_run_and_is_not_idle(ratio: float, local_steps: int) -> None:
    anchors = 3 * Randomness(3).generator(Purpose.NOISE).normal(size=(4, 8))
    training = Training(
        agents=4,
        dim=8,
        rounds=1500,
        local_steps=local_steps,
        ratio=ratio,
        local_step=0.01 / local_steps,
        server_step=0.3,
        kappa=0.2,
        beta_2=0.9,
        noise_std=0.5,
        smoothness=0.5,
        gradient_bound=0.5 * math.sqrt(8),
        coordinate_bound=0.5,
        loss_gap=float(np.sum(0.5 * np.sqrt(1 + anchors**2).mean(axis=0) - 0.5)),
    )
    measured, v = _run(training, anchors, copies=3)
    assert _bound(training) / 1000 < measured < _bound(training)
    assert np.sqrt(training.beta_2 * v).max() < training.largest_root


def test_the_corrected_bound_is_that_worked_by_hand() -> None:
    h, tau, p, kappa, g, s = 1e-3, 4, 0.5, 0.5, 0.5, 0.2
    root = math.sqrt(0.99) * kappa
    drive = math.sqrt(0.01) * g + 0.05
    drift = 2 * h**2 / p * (4 * (0 + 1 + 4 + 9) + 16 * s**2 * (0 + 1 + 2 + 3))
    inside = 3 / (h * 0.1 * tau * 1e4) + drift / (2 * p * kappa * tau)
    inside += drive / kappa**2 * 2 * h / p * ((tau * 4 + 16 * s**2) / 10 + drift)
    assert _bound(PLAIN) == pytest.approx(4 * (root + kappa) * inside + 4 / 1e4)
    assert PLAIN.step_excess == pytest.approx(8 * h * tau * (root + kappa) * drive / kappa**2)


def test_the_largest_root_has_room_for_start_gradients_and_noise() -> None:
    # Nothing but noise on one agent's only step, in 16 coordinates and 500 rounds.
    training = replace(PLAIN, agents=1, local_steps=1, rounds=500, kappa=1e-6, noise_std=3.0)
    rng = Randomness(6).generator(Purpose.NOISE)
    kept = np.argsort(rng.random((500, 16)), axis=1) < 8
    messages = np.where(kept, 1e-3 * 3.0 * rng.normal(size=(500, 16)) / 0.5, 0.0)
    limit = training.largest_root / math.sqrt(training.beta_2)
    assert limit / 2 < np.abs(messages).max() < limit
    by_hand = 1e-3 / 0.5 * (0.5 + 3.0 * math.sqrt(2 * math.log(2 * 16 * 500**2)))
    assert limit == pytest.approx(by_hand)


@given(ratio=st.floats(0.05, 0.9), z=st.floats(0.01, 5), local_steps=st.integers(1, 6), gap=st.floats(0, 5))
def test_the_corrected_bound_is_best_without_sparsifying_and_grows_with_noise_and_gap(
    ratio: float, z: float, local_steps: int, gap: float
) -> None:
    def bound(ratio: float, z: float, gap: float) -> float:
        sigma = z * 2.0 * math.sqrt(ratio) / 10
        return _bound(replace(PLAIN, ratio=ratio, noise_std=sigma, local_steps=local_steps, loss_gap=gap))

    base = bound(ratio, z, gap)
    assert bound(1.0, z, gap) < base
    assert bound(ratio, 1.1 * z, gap) > base
    assert bound(ratio, z, gap + 1) > base


@given(step=st.floats(1e-6, 1e2), factor=st.floats(1.01, 10))
def test_a_longer_step_never_meets_the_condition_where_a_shorter_does_not(step: float, factor: float) -> None:
    short, long = replace(PLAIN, local_step=step), replace(PLAIN, local_step=factor * step)
    assert long.step_excess > short.step_excess
    if long.step_excess > 1.001:
        with pytest.raises(RequestError, match="too long for the bound"):
            _bound(long)
        allowed = replace(long, local_step=longest_local_step(long))
        assert 0.999 < allowed.step_excess <= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratio": 0.0}, "ratio must be above 0 and at most 1"),
        ({"beta_2": 1.0}, "beta_2 must be at least 0 and below 1"),
        ({"agents": 0}, "agents must be a whole number"),
        ({"noise_std": -1.0}, "noise_std must be a finite number of at least 0"),
    ],
)
def test_settings_outside_the_theorem_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        _bound(replace(PLAIN, **change))
