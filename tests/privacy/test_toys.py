"""Mechanisms so small that all their outcomes can be written down: the accountant is never below the truth."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from tacit.errors import RequestError
from tacit.privacy import delta, epsilon
from tacit.privacy.events import gaussian, poisson, repeated, two_level

Grid = np.ndarray


def _hockey_stick(one: Grid, other: Grid, epsilon: float) -> float:
    return float(np.maximum(one - np.exp(epsilon) * other, 0).sum())


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize(("noise_multiplier", "exponent"), [(2.0, 2), (1.0, 3), (4.0, 6)])
def test_full_batches_on_a_lattice(noise_multiplier: float, exponent: int, rounds: int) -> None:
    """Every lattice outcome of a full batch, k_x + round(2^j N): a record replaced moves k_x by 2 bounds."""
    steps = np.arange(-12 * 2**exponent, 12 * 2**exponent + 1)
    edges = np.append(steps - 0.5, steps[-1] + 0.5) / 2.0**exponent
    moved = 2 * 2**exponent / noise_multiplier
    assert moved == int(moved)
    one = np.diff(stats.norm.cdf(edges))
    other = np.diff(stats.norm.cdf(edges - moved / 2.0**exponent))
    if rounds == 2:
        one, other = np.outer(one, one), np.outer(other, other)
    event = repeated(gaussian(noise_multiplier), rounds)
    for at in (0.1, 0.5, 1.0, 2.0, 4.0):
        exact = _hockey_stick(one, other, at)
        claimed = delta(event, at)
        assert exact <= claimed * (1 + 1e-9)
        # Rounding loses something, the less the finer the lattice.
        assert exact >= claimed * (0.5 if exponent == 2 else 0.8 if exponent == 3 else 0.98)


def _saga_transcript(
    signs: tuple[tuple[int, ...], tuple[int, ...]], rate: float, noise_std: float, axis: Grid
) -> Grid:
    """The density of two rounds of scalar SAGA on two records, summed over all sixteen paths of their coins.

    `signs[j]` is record j's bounded gradient (norm 1) at the start, in round 1 and in round 2.
    """
    records, batch = 2, 2 * rate
    weights, first, second = [], [], []
    for coins in itertools.product((0, 1), repeat=4):
        drawn = np.array(coins).reshape(2, records)
        table = np.array([gradients[0] for gradients in signs], dtype=float)
        means = []
        for t in range(2):
            now = np.array([gradients[t + 1] for gradients in signs], dtype=float)
            means.append(float((drawn[t] * (now - table)).sum() / batch + table.mean()))
            table = np.where(drawn[t] == 1, now, table)
        weights.append(float(np.prod(np.where(drawn == 1, rate, 1 - rate))))
        first.append(stats.norm.pdf(axis, means[0], noise_std))
        second.append(stats.norm.pdf(axis, means[1], noise_std))
    cell = (axis[1] - axis[0]) ** 2
    density: Grid = (np.array(first).T * np.array(weights)) @ np.array(second) * cell
    return density


@pytest.mark.parametrize(("rate", "noise_multiplier"), [(0.5, 2.0), (0.25, 1.5)])
def test_two_rounds_of_saga_on_two_records_by_all_paths(rate: float, noise_multiplier: float) -> None:
    """Theorem B: the hidden table does no harm, whatever the records' gradients are in each round."""
    noise_std = noise_multiplier / (2 * rate)
    reach = 4 / (2 * rate) + 7 * noise_std
    axis = np.linspace(-reach, reach, 350)
    event = repeated(two_level(rate, noise_multiplier, 2 - rate, rate), 2)
    worst = dict.fromkeys((0.25, 0.5, 1.0, 2.0), 0.0)
    for own, others in itertools.product(itertools.product((-1, 1), repeat=3), repeat=2):
        if own[0] < 0:
            # Flipping both data sets gives the same comparison.
            continue
        flipped = tuple(-sign for sign in own)
        one = _saga_transcript((own, others), rate, noise_std, axis)
        other = _saga_transcript((flipped, others), rate, noise_std, axis)
        for at in worst:
            for pair in ((one, other), (other, one)):
                worst[at] = max(worst[at], _hockey_stick(*pair, at))
    for at, exact in worst.items():
        assert exact <= delta(event, at) * (1 + 1e-3)
    # Not idle: fixed gradients leak a good part of what Theorem B allows. It allows a record to be at its worst
    # both when drawn and when not, which one table entry cannot be.
    assert worst[0.25] > 0.2 * delta(event, 0.25)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("noise_multiplier", "rounds"), [(1e-300, 10), (1e300, 10), (1.0, 10**20)])
def test_numbers_out_of_range_get_an_error_and_never_a_number(noise_multiplier: float, rounds: int) -> None:
    with pytest.raises(RequestError, match="cannot answer"):
        epsilon(repeated(poisson(0.1, noise_multiplier), rounds), 1e-5)
