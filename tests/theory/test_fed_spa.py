"""Theorems 1 and 2 of Fed-SPA, printed and corrected, against recomputation, enumeration and runs."""

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
from scipy import integrate, optimize, stats

from tacit.errors import RequestError
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Adjacency, epsilon
from tacit.privacy.events import repeated, without_replacement
from tacit.theory import fed_spa as theory
from tacit.theory.fed_spa import Training

Array = npt.NDArray[np.float64]

MNIST: dict[str, Any] = {"records": 600, "batch": 10, "steps": 1500, "delta": 1e-3}
CIFAR: dict[str, Any] = {"records": 500, "batch": 50, "steps": 1000, "delta": 1e-3}

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
    loss_gap=3.0,
)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_sensitivity_is_attained_and_the_printed_one_exceeded(adjacency: Adjacency) -> None:
    dim, active, batch, bound = 8, 2, 5, 3.0
    corner = np.full(active, bound / math.sqrt(dim))
    other = -corner if adjacency is Adjacency.REPLACE_ONE else np.zeros(active)
    moved = float(np.sum(((corner - other) / batch) ** 2))
    setting: dict[str, Any] = {"gradient_bound": bound, "batch": batch, "ratio": active / dim}
    assert theory.squared_sensitivity(**setting, adjacency=adjacency) == pytest.approx(moved)
    printed = theory.printed_squared_sensitivity(**setting)
    assert printed == pytest.approx(2 * active / dim * bound**2 / batch**2)
    assert (moved > printed) == (adjacency is Adjacency.REPLACE_ONE)


def _gaussian_delta(shift: float, at: float) -> float:
    upper = stats.norm.cdf(shift / 2 - at / shift)
    return float(upper - math.exp(at) * stats.norm.cdf(-shift / 2 - at / shift))


def _attained_epsilon(rate: float, shift: float, delta: float) -> float:
    """One step of two real data sets: all other records at one end, the record there or at the other end."""
    inner = optimize.brentq(lambda e: rate * _gaussian_delta(shift, e) - delta, 0.0, 50.0)
    return math.log1p(rate * math.expm1(inner))


def test_with_sigma_for_sigma_prime_theorem_1_would_be_false() -> None:
    rate, spread, delta, order = 0.01, 0.7, 1e-6, 57
    assert rate * order * (1 + spread) < 1, "the logarithm is positive, and sigma^2 as large as gradients make it"
    claimed = theory.closed_form_rdp(order, rate=rate, spread=spread) - math.log(delta) / (order - 1)
    truth = _attained_epsilon(rate, 1 / math.sqrt(spread), delta)
    assert claimed == pytest.approx(0.27, abs=0.01)
    assert truth == pytest.approx(0.74, abs=0.01)


def test_the_closed_form_bounds_the_sum_wherever_the_condition_holds() -> None:
    held = 0
    for rate, spread, order in itertools.product(
        [1e-5, 1e-4, 1e-3, 1e-2], [0.7, 1.0, 4.0, 30.0, 300.0], [2, 3, 5, 9, 17, 33]
    ):
        # As printed, the squared sensitivity is two squared bounds.
        if theory.condition(math.sqrt(2 * spread), order, rate=rate).holds:
            held += 1
            summed = theory.subsampled_rdp(order, rate=rate, spread=spread)
            assert summed <= theory.closed_form_rdp(order, rate=rate, spread=spread)
    assert held > 30
    assert not theory.condition(math.sqrt(2 * 0.69), 2.0, rate=1e-6).holds


@pytest.mark.parametrize(("rate", "spread"), [(0.05, 1.0), (0.2, 4.0)])
def test_lemma_5_is_above_the_divergence_of_an_attained_pair(rate: float, spread: float) -> None:
    shift = 1 / math.sqrt(spread)

    def moment(order: int) -> float:
        def integrand(x: float) -> float:
            ratio = math.log1p(rate * math.expm1(shift * x - shift**2 / 2))
            return math.exp(order * ratio - x**2 / 2) / math.sqrt(2 * math.pi)

        return math.log(integrate.quad(integrand, -12, order * shift + 12, limit=200)[0]) / (order - 1)

    for order in (2, 3, 6):
        bound = theory.subsampled_rdp(order, rate=rate, spread=spread)
        assert bound / 10 < moment(order) < bound


@given(order=st.integers(2, 40), rate=st.floats(1e-4, 0.3), spread=st.floats(0.5, 50))
def test_lemma_5_grows_with_rate_and_falls_with_noise(order: int, rate: float, spread: float) -> None:
    base = theory.subsampled_rdp(order, rate=rate, spread=spread)
    assert theory.subsampled_rdp(order, rate=1.1 * rate, spread=spread) >= base
    assert theory.subsampled_rdp(order, rate=rate, spread=1.1 * spread) <= base


def test_theorem_1_does_not_prove_its_labels_but_its_noise_keeps_them() -> None:
    for setting, proved in [(MNIST, 1.38), (CIFAR, 4.57)]:
        z = theory.theorem_1_noise_multiplier(epsilon=1.0, **setting)
        assert not theory.feasible(epsilon=1.0, **setting).holds
        assert theory.rdp_epsilon(z, **setting) == pytest.approx(proved, abs=0.01)
        exact = epsilon(
            repeated(without_replacement(setting["records"], setting["batch"], z), setting["steps"]), 1e-3
        )
        assert exact < 0.34
        needed = theory.exact_noise_multiplier(epsilon=1.0, **setting)
        assert 2 < z / needed < 3
    assert theory.rdp_epsilon(1e6, **CIFAR) > 4.4, "no noise is enough for Lemma 5 here"


def test_the_condition_can_hold_in_other_settings_and_then_both_constants_work() -> None:
    big: dict[str, Any] = {"records": 100_000, "batch": 10, "steps": 20_000_000, "delta": 1e-3}
    found = theory.feasible(epsilon=1.0, constant=theory.CORRECTED, **big)
    assert found.holds
    z = theory.theorem_1_noise_multiplier(epsilon=1.0, constant=theory.CORRECTED, **big)
    assert found.spread == pytest.approx(z**2 / 4)
    assert theory.rdp_epsilon(z, **big) <= 1.0


@given(z=st.floats(0.5, 50), ratio=st.floats(0.01, 1), bound=st.floats(0.1, 10), alpha=st.floats(1.5, 100))
def test_the_compression_ratio_drops_out_of_theorem_1(z: float, ratio: float, bound: float, alpha: float) -> None:
    sigma = theory.noise_std(z, gradient_bound=bound, batch=10, ratio=ratio)
    q, steps = 10 / 600, 1500
    printed = 7 * q**2 * steps * alpha * ratio * bound**2 / (100 * sigma**2) + math.log(1e3) / (alpha - 1)
    assert theory.theorem_1_epsilon(z, alpha, **MNIST) == pytest.approx(printed)
    spread = sigma**2 * 100 / (2 * ratio * bound**2)
    assert theory.condition(z, alpha, rate=q).spread == pytest.approx(spread)
    squared = theory.squared_sensitivity(gradient_bound=bound, batch=10, ratio=ratio)
    corrected = theory.condition(z, alpha, rate=q, constant=theory.CORRECTED)
    assert corrected.spread == pytest.approx(sigma**2 / squared)


def test_exact_noise_by_poisson_batches_of_all_records_is_that_of_the_gaussian_mechanism() -> None:
    found = theory.exact_noise_multiplier(
        records=50, batch=50, steps=20, epsilon=1.0, delta=1e-5, sampling="poisson"
    )
    shift = optimize.brentq(lambda s: _gaussian_delta(s, 1.0) - 1e-5, 0.01, 5)
    least = 2 * math.sqrt(20) / shift
    assert least <= found <= 1.005 * least


def _messages(gradient: Array, noise_std: float, active: int, draws: int, steps: int = 1) -> Array:
    """Sums of S(g + b) over steps that share a support."""
    rng = Randomness(1).generator(Purpose.NOISE)
    dim = len(gradient)
    kept = np.argsort(rng.random((draws, dim)), axis=1) < active
    noise = noise_std * math.sqrt(steps) * rng.normal(size=(draws, dim))
    return np.where(kept, (steps * gradient + noise) * dim / active, 0.0)


def test_the_energy_of_a_message_is_not_the_printed_one() -> None:
    training = replace(PLAIN, ratio=0.25, noise_std=1.0)
    gradient = np.full(16, 0.5)
    assert np.linalg.norm(gradient) == training.gradient_bound
    measured = float(np.mean(np.sum(_messages(gradient, 1.0, 4, 20_000) ** 2, axis=1)))
    assert measured == pytest.approx(theory.message_energy(training), rel=0.02)
    assert theory.printed_message_energy(training) == pytest.approx(4 / 0.25 + 0.25 * 16)
    assert measured > 3 * theory.printed_message_energy(training)
    whole = replace(training, ratio=1.0)
    assert theory.message_energy(whole) == theory.printed_message_energy(whole)


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


@given(z=st.floats(0.1, 50), ratio=st.floats(0.05, 0.95), bound=st.floats(0.1, 10))
def test_at_equal_privacy_the_noise_in_a_message_is_the_same_for_every_ratio(
    z: float, ratio: float, bound: float
) -> None:
    sigma = theory.noise_std(z, gradient_bound=bound, batch=10, ratio=ratio)
    noise = theory.noise_energy(z, gradient_bound=bound, batch=10, dim=16)
    sparse = replace(PLAIN, ratio=ratio, noise_std=sigma, gradient_bound=bound)
    assert theory.message_energy(sparse) == pytest.approx(bound**2 / ratio + noise)
    assert theory.printed_message_energy(sparse) == pytest.approx(bound**2 / ratio + ratio**2 * noise)
    best = theory.printed_best_ratio(z, gradient_bound=bound, batch=10, dim=16)
    assert bound**2 / best + best**2 * noise <= theory.printed_message_energy(sparse) * (1 + 1e-12)


def test_the_printed_step_limit_does_not_give_what_the_proof_takes_from_it() -> None:
    short = replace(PLAIN, beta_2=0.0, server_step=1e-9, kappa=1e-3)
    at_limit = replace(short, local_step=theory.printed_step_limit(short))
    assert theory.proof_excess(at_limit) == pytest.approx(4, rel=1e-6)
    long = replace(PLAIN, server_step=1e6)
    assert theory.proof_excess(replace(long, local_step=theory.printed_step_limit(long))) > 100


def test_the_printed_bound_is_that_worked_by_hand_and_the_order_of_lemma_3_lacks_the_dimension() -> None:
    training = replace(PLAIN, local_spread=1.0, global_spread=0.5)
    energy, g = 5 / 0.5 + 0.5 * 16 * 0.04, 0.5
    drift = energy + 24 * 0.25
    xi = 3 / (1e-3 * 0.1 * 4 * 1e4) + 5 * 1e-6 * 4 / (2 * 0.5) * drift
    xi_2 = (0.05 + g) * (4e-3 / (10 * 0.25) * energy + 20e-9 * 16 / 0.25 * drift)
    by_hand = 8 * (math.sqrt(0.99) * 4e-3 * g + 0.5) * (xi + xi_2)
    assert theory.printed_bound(training) == pytest.approx(by_hand)

    def lost(dim: int) -> float:
        # Hardly any start: the term with zeta_dp^2 leads.
        big = replace(PLAIN, dim=dim, rounds=10**12, loss_gap=0.0, noise_std=0.0)
        return theory.printed_bound(theory.lemma_3_choices(big)) / theory.lemma_3_order(big)

    assert lost(1_000_000) / lost(10_000) == pytest.approx(10, rel=0.05)


def test_the_rounds_from_which_lemma_3_is_within_theorem_2() -> None:
    least = theory.lemma_3_least_rounds(PLAIN)
    assert least == pytest.approx(64 * math.sqrt(10 * 4 * 16) / 2)
    for rounds, allowed in [(math.ceil(least), True), (math.floor(least) - 1, False)]:
        chosen = theory.lemma_3_choices(replace(PLAIN, rounds=rounds))
        assert (chosen.local_step <= theory.printed_step_limit(chosen)) == allowed


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
        loss_gap=float(np.sum(0.5 * np.sqrt(1 + anchors**2).mean(axis=0) - 0.5)),
    )
    measured, v = _run(training, anchors, copies=3)
    assert measured < theory.corrected_bound(training)
    assert measured > theory.corrected_bound(training) / 1000
    assert np.sqrt(training.beta_2 * v).max() < theory.largest_root(training)
    printed_prefactor = math.sqrt(0.9) * training.local_step * local_steps * training.coordinate_bound
    assert np.sqrt(training.beta_2 * training.kappa**2) > printed_prefactor, "v starts above the paper's limit"


def test_a_run_breaks_the_printed_theorem_2_and_keeps_the_corrected_one() -> None:
    """One active coordinate of 50, much noise, and a start at the optimum of 50 curves."""
    training = Training(
        agents=1,
        dim=50,
        rounds=4000,
        local_steps=1,
        ratio=0.02,
        local_step=1e-6,
        server_step=25.0,
        kappa=1.0,
        beta_2=0.0,
        noise_std=math.sqrt(2400),
        smoothness=1.0,
        gradient_bound=math.sqrt(50),
        loss_gap=0.0,
    )
    measured, _ = _run(training, np.zeros((1, 50)), copies=5)
    assert measured > 2 * theory.printed_bound(training)
    assert measured < theory.corrected_bound(training)


def test_the_corrected_bound_is_that_worked_by_hand() -> None:
    h, tau, p, kappa, g, s = 1e-3, 4, 0.5, 0.5, 0.5, 0.2
    root = math.sqrt(0.99) * kappa
    drive = math.sqrt(0.01) * g + 0.05
    drift = 2 * h**2 / p * (4 * (0 + 1 + 4 + 9) + 16 * s**2 * (0 + 1 + 2 + 3))
    inside = 3 / (h * 0.1 * tau * 1e4) + drift / (2 * p * kappa * tau)
    inside += drive / kappa**2 * 2 * h / p * ((tau * 4 + 16 * s**2) / 10 + drift)
    assert theory.local_drift(PLAIN) == pytest.approx(drift)
    assert theory.corrected_bound(PLAIN) == pytest.approx(4 * (root + kappa) * inside + 4 / 1e4)
    assert theory.step_excess(PLAIN) == pytest.approx(8 * h * tau * (root + kappa) * drive / kappa**2)


def test_the_largest_root_has_room_for_start_gradients_and_noise() -> None:
    # Nothing but noise on one agent's only step, in 16 coordinates and 500 rounds.
    training = replace(PLAIN, agents=1, local_steps=1, rounds=500, kappa=1e-6, noise_std=3.0)
    rng = Randomness(6).generator(Purpose.NOISE)
    kept = np.argsort(rng.random((500, 16)), axis=1) < 8
    messages = np.where(kept, 1e-3 * 3.0 * rng.normal(size=(500, 16)) / 0.5, 0.0)
    limit = theory.largest_root(training) / math.sqrt(training.beta_2)
    assert limit / 2 < np.abs(messages).max() < limit
    by_hand = 1e-3 / 0.5 * (0.5 + 3.0 * math.sqrt(2 * math.log(2 * 16 * 500**2)))
    assert limit == pytest.approx(by_hand)
    started = replace(training, initial_second_moment=9.0)
    assert theory.largest_root(started) == pytest.approx(3.0 * math.sqrt(0.99))


def test_local_drift_is_that_of_a_run_at_most() -> None:
    assert theory.local_drift(replace(PLAIN, local_steps=1)) == 0
    rng = Randomness(4).generator(Purpose.NOISE)
    training = replace(PLAIN, local_steps=6, noise_std=1.0)
    draws, total, moved = 5000, 0.0, np.zeros((5000, 16))
    kept = np.argsort(rng.random((draws, 16)), axis=1) < 8
    for _ in range(training.local_steps):
        total += float(np.mean(np.sum(moved**2, axis=1)))
        noisy = 0.5 + rng.normal(size=moved.shape)
        moved = moved - training.local_step * np.where(kept, noisy / 0.5, 0.0)
    bound = theory.local_drift(training)
    assert bound / 3 < total < bound


@given(ratio=st.floats(0.05, 0.9), z=st.floats(0.01, 5), local_steps=st.integers(1, 6), gap=st.floats(0, 5))
def test_the_corrected_bound_is_best_without_sparsifying_and_grows_with_noise_and_gap(
    ratio: float, z: float, local_steps: int, gap: float
) -> None:
    def bound(ratio: float, z: float, gap: float) -> float:
        sigma = theory.noise_std(z, gradient_bound=2.0, batch=10, ratio=ratio)
        return theory.corrected_bound(
            replace(PLAIN, ratio=ratio, noise_std=sigma, local_steps=local_steps, loss_gap=gap)
        )

    base = bound(ratio, z, gap)
    assert bound(1.0, z, gap) < base
    assert bound(ratio, 1.1 * z, gap) > base
    assert bound(ratio, z, gap + 1) > base


@given(step=st.floats(1e-6, 1e2), factor=st.floats(1.01, 10))
def test_a_longer_step_never_meets_the_condition_where_a_shorter_does_not(step: float, factor: float) -> None:
    short, long = replace(PLAIN, local_step=step), replace(PLAIN, local_step=factor * step)
    assert theory.step_excess(long) > theory.step_excess(short)
    if theory.step_excess(long) > 1.001:
        with pytest.raises(RequestError, match="too long for the bound"):
            theory.corrected_bound(long)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratio": 0.0}, r"ratio must be in \(0, 1\]"),
        ({"beta_2": 1.0}, "beta_2 must be at least 0 and below 1"),
        ({"initial_second_moment": 0.1}, r"at least kappa\^2 = 0\.25"),
        ({"agents": 0}, "agents must be a whole number"),
        ({"local_step": 1.0}, r"local_step must be at most .* for Theorem 2"),
    ],
)
def test_settings_outside_the_theorem_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        theory.printed_bound(replace(PLAIN, **change))


def test_unknown_sampling_is_refused() -> None:
    with pytest.raises(RequestError, match="unknown sampling 'shuffled'"):
        theory.exact_noise_multiplier(epsilon=1.0, **MNIST, sampling="shuffled")  # type: ignore[arg-type]
    with pytest.raises(RequestError):
        theory.exact_noise_multiplier(epsilon=1.0, **MNIST, adjacency=Adjacency.ADD_REMOVE)
