"""Theorems 6 and 7 of DP-NormFedAvg against enumeration and runs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from tacit.errors import RequestError
from tacit.noise.randomness import Purpose, Randomness
from tacit.theory.norm_fedavg import LocalRuns, clipping_terms, normalising_terms

Array = npt.NDArray[np.float64]

RUNS: dict[str, Any] = {
    "clients": 10,
    "participants": 5,
    "dim": 2,
    "rounds": 3,
    "local_steps": 2,
    "step": 0.1,
    "clip_norm": 2.0,
    "noise_std": 1.0,
    "smoothness": 1.0,
    "distance": 1.0,
}


@pytest.mark.parametrize("participants", [0.5, 1.0, 2.5, 4.0])
def test_the_square_of_a_sampled_mean_by_enumeration(participants: float) -> None:
    rate, c = participants / 4, LocalRuns(**{**RUNS, "clients": 4, "participants": participants}).crowding

    def mean_square(x: Array) -> float:
        total = 0.0
        for coins in itertools.product([0, 1], repeat=4):
            chance = math.prod(rate if coin else 1 - rate for coin in coins)
            total += chance * float(np.sum((np.array(coins) @ x / participants) ** 2))
        return total

    rng = Randomness(1).generator(Purpose.NOISE)
    for x in rng.normal(size=(20, 4, 3)):
        assert mean_square(x) <= c * float(np.mean(np.sum(x**2, axis=1))) * (1 + 1e-12)
    same = np.ones((4, 3))
    assert mean_square(same) == pytest.approx(3 * c)
    assert (c > 1) == (participants < 4), "eq. 12 of the paper has 1, which is exceeded"


def _clients(n: int, dim: int, spread: float) -> tuple[Array, Array]:
    """f_i(w) = sqrt(1 + <x_i, w - a_i>^2) with ||x_i|| = 1: convex, L = 1, G = 1, min f_i = 1."""
    rng = Randomness(2).generator(Purpose.NOISE)
    x = rng.normal(size=(n, dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True), spread * rng.normal(size=n)


def _run(runs: LocalRuns, x: Array, offsets: Array, start: Array, normalise: bool) -> tuple[Array, Array]:
    """f_i(w_k) and C/||u_i||, both (rounds, clients), of Algorithm 1; offsets are <x_i, a_i>."""
    rng = Randomness(3).generator(Purpose.NOISE)
    rate, w = runs.participants / runs.clients, start.copy()
    losses, weights = [], []
    for _ in range(runs.rounds):
        local = np.tile(w, (runs.clients, 1))
        for _ in range(runs.local_steps):
            gap = np.sum(x * local, axis=1) - offsets
            local -= runs.step * (gap / np.sqrt(1 + gap**2))[:, None] * x
        updates = (w - local) / runs.step
        lengths = np.linalg.norm(updates, axis=1)
        scale = runs.clip_norm / lengths if normalise else np.minimum(1.0, runs.clip_norm / lengths)
        losses.append(np.sqrt(1 + (x @ w - offsets) ** 2))
        weights.append(runs.clip_norm / lengths)
        coins = rng.random(runs.clients) < rate
        # Shares of the noise from those who come, as in Algorithm 1: their variance is right on average.
        noise = runs.noise_std * math.sqrt(coins.sum() / runs.participants) * rng.normal(size=runs.dim)
        w -= runs.step * ((coins * scale) @ updates / runs.participants + noise)
    return np.array(losses), np.array(weights)


@pytest.mark.parametrize("spread", [0.0, 0.5])
@pytest.mark.parametrize("local_steps", [1, 4])
@pytest.mark.parametrize("participants", [2.0, 12.0])
def test_both_bounds_hold_for_a_run_and_are_not_idle(
    spread: float, local_steps: int, participants: float
) -> None:
    n, dim = 12, 3
    x, offsets = _clients(n, dim, spread)
    best = optimize.minimize(lambda w: np.sqrt(1 + (x @ w - offsets) ** 2).mean(), np.zeros(dim), tol=1e-12)
    gaps = np.sqrt(1 + (x @ best.x - offsets) ** 2) - 1
    assert (gaps.max() > 0.01) == (spread > 0)
    start = best.x + 2.0
    runs = LocalRuns(
        clients=n,
        participants=participants,
        dim=dim,
        rounds=1000,
        local_steps=local_steps,
        step=0.05,
        clip_norm=float(local_steps),
        noise_std=1.0,
        smoothness=1.0,
        distance=2 * math.sqrt(dim),
    )
    losses, _ = _run(runs, x, offsets, start, normalise=False)
    measured = float(losses.mean() - best.fun)
    bound = sum(clipping_terms(runs, gap=float(gaps.mean())).values())
    assert bound / 50 < measured < bound
    losses, weights = _run(runs, x, offsets, start, normalise=True)
    weighted = float((weights * (losses - 1 - gaps)).mean())
    bound = sum(normalising_terms(runs, gap=float((weights * gaps).mean())).values())
    assert weighted < bound
    if spread == 0:
        assert weighted > bound / 50
        assert losses.mean() - best.fun <= weighted, "without gaps it bounds the loss itself"
    else:
        assert weighted < 0 < losses.mean() - best.fun, "with gaps it says nothing about the loss"


def test_with_few_clients_a_round_the_printed_bound_is_broken_by_a_run() -> None:
    """Nobody comes in four rounds of five; f_i = min(w^2/2, |w| - 1/2) for all, E = 1, no noise."""
    step, rounds, clients, rate = 0.25, 4_000, 10, 0.02
    rng = Randomness(4).generator(Purpose.NOISE)
    coming = rng.binomial(clients, rate, size=(rounds, 200))
    w, total = np.linspace(0.01, 1.24, 200), 0.0
    for come in coming:
        size = np.abs(w)
        total += float(np.where(size <= 1, size / 2, size - 0.5).mean())
        w = w - step * np.sign(w) * come / (rate * clients)

    def bound(participants: float) -> float:
        runs = LocalRuns(
            clients=clients,
            participants=participants,
            dim=1,
            rounds=rounds,
            local_steps=1,
            step=step,
            clip_norm=1.0,
            noise_std=0.0,
            smoothness=1.0,
            distance=1.24,
        )
        return sum(normalising_terms(runs).values())

    # f_i (C/||u_i||) is |w|/2 where the loss is curved and |w| - 1/2 where it is straight.
    assert 2 * bound(clients) < total / rounds < bound(rate * clients)


def test_normalising_finds_the_median_where_clients_differ() -> None:
    anchors = np.array([0.0, 0.0, 1.0])
    best = optimize.minimize_scalar(lambda w: np.sqrt(1 + (w - anchors) ** 2).mean())
    assert best.x == pytest.approx(0.30, abs=0.005)
    w, step = 0.5, 1e-3
    for _ in range(3000):
        w -= step * float(np.sign(w - anchors).mean())
    assert abs(w) < 2 * step
    assert np.sqrt(1 + anchors**2).mean() - best.fun > 0.03


@given(participants=st.floats(2, 99), noise=st.floats(0, 5), gap=st.floats(0, 5), travel=st.floats(0.01, 0.2))
def test_bounds_grow_with_noise_distance_and_gaps_and_fall_with_participants(
    participants: float, noise: float, gap: float, travel: float
) -> None:
    def both(participants: float, noise: float, gap: float, distance: float) -> tuple[float, float]:
        runs = LocalRuns(
            clients=100,
            participants=participants,
            dim=7,
            rounds=50,
            local_steps=2,
            step=travel / 2,
            clip_norm=2.0,
            noise_std=noise,
            smoothness=1.0,
            distance=distance,
        )
        return (
            sum(clipping_terms(runs, gap=gap).values()),
            sum(normalising_terms(runs, gap=gap).values()),
        )

    base = both(participants, noise, gap, 1.0)
    for worse in [
        both(participants, noise + 1, gap, 1.0),
        both(participants, noise, gap + 1, 1.0),
        both(participants, noise, gap, 2.0),
        both(participants / 2, noise, gap, 1.0),
    ]:
        assert worse[0] > base[0]
        assert worse[1] > base[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": 0.13}, r"at most 1/\(4 smoothness local_steps\) = 0\.125"),
        ({"participants": 11}, "at most the 10 clients"),
        ({"participants": 0}, "participants must be a finite number above 0"),
        ({"noise_std": -1.0}, "noise_std must be a finite number of at least 0"),
        ({"participants": 0.1}, "too few for step"),
    ],
)
def test_settings_outside_the_theorems_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        clipping_terms(LocalRuns(**{**RUNS, **change}))
