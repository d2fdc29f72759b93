"""Messages that swap places, against real messages whose every order is written down."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from tacit.privacy import epsilon, events
from tacit.privacy.accountant import gaussian, swaps

Array = NDArray[np.float64]
LOG_TAIL = math.log(1e-12)


def stop_loss(x: Array, g: float, shift: float, client_shift: float) -> Array:
    """E (X_g - x)_+ by its definition: an integral over one normal variable."""
    y = np.linspace(-14.0, 14.0, 20_001)
    still, step = stats.norm.pdf(y), y[1] - y[0]

    def ratio(s: float) -> Array:
        return np.exp(s * y - s * s / 2)

    above = [(1 - g * ratio(-shift) - v * ratio(-client_shift)).clip(min=0) @ still for v in x[x >= 0]]
    below = [(ratio(shift) - v * ratio(client_shift) - g).clip(min=0) @ still for v in x[x < 0]]
    return np.array(below + above) * step


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    client_shift=st.floats(0.2, 2.0),
    part=st.floats(0.3, 1.0),
    g=st.sampled_from([0.8, 1.0, 1.3, 3.0]),
)
def test_no_place_is_told_apart_better_than_x(seed: int, client_shift: float, part: float, g: float) -> None:
    """(p0 - g p1)/R for any three Gaussians in a disc, under R, is below X_g in the convex order."""
    generator = np.random.default_rng(seed)
    angle = generator.uniform(0, 2 * np.pi, 2)
    radius = client_shift / 2 * np.sqrt(generator.uniform(0, 1, 2).round(generator.integers(0, 2)))
    centre, other = (r * np.array([np.cos(a), np.sin(a)]) for r, a in zip(radius, angle, strict=True))
    to = generator.normal(size=2)
    shift = part * client_shift
    first, second = (centre * (1 - part) + sign * shift / 2 * to / np.linalg.norm(to) for sign in (1, -1))
    axis = np.linspace(-9.0, 9.0, 241)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    density = [np.exp(-((points - mean) ** 2).sum(1) / 2) / (2 * np.pi) for mean in (first, second, other)]
    x = np.array([-2.0, -0.7, -0.2, -0.05, 0.0, 0.05, 0.2, 0.7, 2.0])
    cell = (axis[1] - axis[0]) ** 2
    true = np.array([(density[0] - g * density[1] - v * density[2]).clip(min=0).sum() * cell for v in x])
    assert np.all(true <= stop_loss(x, g, shift, client_shift) * 1.01 + 1e-5)


@pytest.mark.parametrize(("shift", "client_shift"), [(0.5, 0.5), (0.3, 1.2), (1.5, 1.5)])
@pytest.mark.parametrize("g", [0.7, 1.0, 1.5])
def test_points_stand_for_x(shift: float, client_shift: float, g: float) -> None:
    """Spread out a little, with mass and mean kept."""
    values, masses = swaps._contrast(math.log(g), shift, client_shift, LOG_TAIL)
    assert masses.min() >= 0
    assert masses.sum() == pytest.approx(1.0, abs=1e-9)
    assert masses @ values == pytest.approx(1 - g, abs=1e-6)
    x = np.linspace(-1.5, 1.5, 13)
    spread = np.array([masses @ (values - v).clip(min=0) for v in x])
    exact = stop_loss(x, g, shift, client_shift)
    assert np.all(exact - 1e-7 <= spread)
    assert np.all(spread <= exact + 2e-3 * client_shift)


def test_one_who_hides_alone_does_not_hide() -> None:
    for shift, client_shift in ((0.5, 0.5), (0.3, 1.0)):
        for loss in (0.0, 0.2, 1.0):
            found = swaps._profile(1, loss, shift, client_shift, LOG_TAIL)
            assert found == pytest.approx(math.exp(gaussian.log_delta([shift], [1.0], loss)), rel=2e-2, abs=1e-9)


@pytest.mark.parametrize("hiding", [3, 40])
def test_the_profile_against_draws(hiding: int) -> None:
    loss, shift = 0.3 / math.sqrt(hiding), 0.6
    values, masses = swaps._contrast(loss, shift, shift, LOG_TAIL)
    means = (
        np.random.default_rng(0).choice(values, (100_000, hiding), p=masses / masses.sum()).mean(1).clip(min=0)
    )
    found = swaps._profile(hiding, loss, shift, shift, LOG_TAIL)
    assert found == pytest.approx(means.mean(), abs=4 * means.std() / math.sqrt(len(means)) + 5e-3 * found)
    assert swaps._is_below(math.log(found) + 0.02, hiding, loss, shift)
    assert not swaps._is_below(math.log(found) - 0.02, hiding, loss, shift)


def test_a_pair_has_the_profile() -> None:
    pair = swaps.swap_pair(30, 0.5, 0.5, LOG_TAIL)
    assert pair.masses.min() >= 0
    total = pair.masses @ (1 + pair.scores) + pair.atom + pair.unbounded
    assert total == pytest.approx(1.0, abs=1e-9)
    for loss in np.linspace(0.0, 0.5, 23).tolist():
        exact = swaps._profile(30, loss, 0.5, 0.5, LOG_TAIL)
        assert exact * (1 - 1e-9) <= pair.delta(loss) <= exact * 1.1 + 1e-8


def shuffled(means: list[float], axis: Array) -> Array:
    """The law of Gaussian messages at these means in every order, on a grid."""
    laws = [stats.norm.pdf(axis - mean) * (axis[1] - axis[0]) for mean in means]
    letters = "ijkl"[: len(means)]
    spell = ",".join(letters) + "->" + letters
    orders = list(itertools.permutations(laws))
    return np.asarray(sum(np.einsum(spell, *order) for order in orders)) / len(orders)


@pytest.mark.parametrize("others", [2, 3])
@pytest.mark.parametrize("place", [-0.4, 0.0, 0.4])
def test_among_equals_all_others_hide(others: int, place: float) -> None:
    """No level is needed: all Omega are one, so the profile with n = N holds as it stands."""
    axis = np.linspace(-6.0, 6.0, 49 if others == 2 else 33)
    here, there = (shuffled([end, *[place] * others], axis) for end in (0.4, -0.4))
    for g in (0.7, 1.0, 1.2, 1.6):
        true = (here - g * there).clip(min=0).sum()
        assert true <= swaps._profile(others, math.log(g), 0.8, 0.8, LOG_TAIL) + 1e-6
        if place == -0.4 and g == 1.2:
            assert true > 0.5 * swaps._profile(others, math.log(g), 0.8, 0.8, LOG_TAIL)


@pytest.mark.parametrize("places", [(-0.5, 0.5, 0.5), (-0.5, 0.0, 0.5), (-0.5, -0.5, 0.5)])
def test_among_others_what_is_cut_off_is_paid_for(places: tuple[float, ...]) -> None:
    """Three others in any places, nobody set aside, and the exact tau of the level."""
    axis, level = np.linspace(-6.0, 6.0, 33), 1.5
    laws = np.array([stats.norm.pdf(axis - place) for place in places]) * (axis[1] - axis[0])
    tau = (laws - level * laws.mean(0)).clip(min=0).sum(1).mean()
    assert math.log(tau) <= swaps._log_excess(1.0, math.log(level))
    here, there = (shuffled([end, *places], axis) for end in (0.5, -0.5))
    for g in (1.0, 1.2, 1.6, 2.5):
        true = (here - g * there).clip(min=0).sum()
        assert true <= swaps._profile(2, math.log(g), 1.0, 1.0, LOG_TAIL) + (1 + g) * tau


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), client_shift=st.floats(0.3, 2.0), level=st.floats(1.3, 8.0))
def test_the_bound_on_what_is_cut_off(seed: int, client_shift: float, level: float) -> None:
    """Any places in a disc: a few far from all others, or all over it."""
    generator = np.random.default_rng(seed)
    angles = generator.uniform(0, 2 * np.pi, 12)
    if seed % 2:
        angles = np.where(np.arange(12) < 1 + seed % 5, 0.0, np.pi)
    places = client_shift / 2 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    axis = np.linspace(-10.0, 10.0, 161)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 1, 2)
    laws = np.exp(-((points - places) ** 2).sum(2) / 2) / (2 * np.pi) * (axis[1] - axis[0]) ** 2
    tau = (laws - level * laws.mean(1, keepdims=True)).clip(min=0).sum(0).mean()
    assert tau <= math.exp(swaps._log_excess(client_shift, math.log(level))) * 1.02 + 1e-9


def attained(noise: float, clients: int, delta: float) -> float:
    """The epsilon if all others send what the client sends in one of the two cases: E (mean of W - g)_+."""
    shift = 2 / noise
    step = shift / 40
    values = step * np.arange(math.ceil(math.exp(7.5 * shift) / step))
    with np.errstate(divide="ignore"):
        law = np.diff(stats.norm.cdf(np.log(values) / shift + shift / 2), append=1.0)
    length = int(clients + 14 * math.sqrt(clients) * math.expm1(shift**2) ** 0.5 + values[-1]) * 40
    length = 2 ** math.ceil(math.log2(length / shift))
    sums = np.fft.irfft(np.fft.rfft(law, length) ** clients, length)
    # Cells count as their lower ends but for the mean, which is put right.
    means = step * np.arange(length) / clients + (1 - law @ values)
    low, high = 0.0, 5.0
    for _ in range(40):
        middle = (low + high) / 2
        above = sums.clip(min=0) @ (means - math.exp(middle)).clip(min=0) > delta
        low, high = (middle, high) if above else (low, middle)
    return high


@pytest.mark.parametrize(
    ("noise", "clients", "most"), [(16.0, 25, 1.5), (8.0, 100, 1.9), (4.0, 1000, 2.3), (4.0, 10_000, 1.7)]
)
def test_a_crowd_is_worth_nearly_what_it_can_be(noise: float, clients: int, most: float) -> None:
    found, least = epsilon(events.shuffled(clients, 1, 1, noise), 1e-6), attained(noise, clients, 1e-6)
    assert least <= found <= most * least


def test_more_others_hide_more_and_farther_ones_less() -> None:
    slip = math.log(1e-8)
    counts = [swaps.hiding_clients(others, 0.4, slip) for others in (10, 100, 1000, 10_000)]
    assert counts == sorted(counts)
    assert counts[-1] > 7000
    by_shift = [swaps.hiding_clients(1000, shift, slip) for shift in (0.1, 0.4, 1.0, 4.0)]
    assert by_shift == sorted(by_shift, reverse=True)
    assert by_shift[-1] == 0


@pytest.mark.parametrize(
    ("noise", "clients", "batch"), [(1e-3, 1000, 1), (0.5, 10**6, 1), (1e4, 3, 1), (5.0, 1000, 300)]
)
def test_no_noise_and_no_crowd_is_too_small_or_too_large(noise: float, clients: int, batch: int) -> None:
    alone = epsilon(events.without_replacement(2 * batch, batch, noise), 1e-6)
    assert 0 < epsilon(events.shuffled(clients, 2 * batch, batch, noise), 1e-6) <= alone
