"""Noise on a lattice: the law of the sampler, the reach of the rounding, the release, and what they cost."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from tacit.errors import DataError, RequestError
from tacit.noise import lattice
from tacit.noise.entropy import Keystream
from tacit.noise.lattice import (
    LARGEST_EXPONENT,
    LARGEST_STEP,
    RELATIVE_ERROR,
    TAIL_MASS,
    cost,
    lattice_exponent,
    lattice_rows,
    lattice_steps,
    nearest_steps,
    rounded_gaussian,
)
from tacit.privacy.accountant.inexact import Surcharge

STAIRS = lattice._staircase()
SLOTS = np.bincount(STAIRS.cells)
SCALE = round(STAIRS.ceilings[0] * SLOTS[0])
"""N: the curve is 1 at 0, so that the first ceiling is N / n_0."""


class Scripted(Keystream):
    """A stream that says what it is told."""

    def __init__(self, *words: int) -> None:
        super().__init__()
        self.words = list(words)

    def uint64(self, words: int) -> NDArray[np.uint64]:
        said, self.words = self.words[:words], self.words[words:]
        assert len(said) == words
        return np.array(said, dtype=np.uint64)


def probabilities(exponent: int, up_to: int) -> NDArray[np.float64]:
    """P(-up_to), ..., P(up_to) of nearest(2^exponent N(0, 1)); what lies outside belongs to the ends."""
    borders = (np.arange(-up_to, up_to) + 0.5) / 2**exponent
    return np.diff(np.concatenate([[0.0], stats.norm.cdf(borders), [1.0]]))


def misfit(steps: NDArray[np.int64], exponent: int, up_to: int) -> float:
    """The p-value of a chi-square test against the exact probabilities."""
    counts = np.bincount(np.clip(steps, -up_to, up_to) + up_to, minlength=2 * up_to + 1)
    expected = probabilities(exponent, up_to) * len(steps)
    assert expected.min() > 5
    return float(stats.chisquare(counts, expected).pvalue)


class TestTheStaircase:
    """The implemented law, computed from the tables instead of from samples."""

    def test_slots_are_used_up_and_the_stairs_are_above_the_curve(self) -> None:
        assert len(STAIRS.cells) == 2**16
        assert len(SLOTS) == len(STAIRS.ceilings) == len(STAIRS.sure) == 16 * 64
        assert SLOTS.min() >= 1
        assert STAIRS.ceilings.max() < 1
        curve = STAIRS.ceilings * SLOTS / SCALE
        assert np.sum(np.floor((SCALE + 1) * curve) + 1) > 2**16, "a tighter staircase would fit"

    def test_acceptance_is_exact_up_to_four_roundings(self) -> None:
        generator = np.random.default_rng(5)
        cells = np.arange(1024).repeat(8)
        offsets = generator.integers(0, 2**34, (1024, 8))
        offsets[:, 0], offsets[:, 1] = 0, 2**34 - 1
        t = np.ldexp(offsets.ravel() + 0.5, -40).astype(np.float64)
        implemented = lattice._acceptance(STAIRS.ceilings[cells], cells / 64, t)
        with mpmath.workdps(50):
            worst = max(
                abs(
                    mpmath.mpf(a) * int(SLOTS[i]) / (SCALE * mpmath.exp(-((i / 64 + mpmath.mpf(s)) ** 2) / 2)) - 1
                )
                for a, i, s in zip(implemented.tolist(), cells.tolist(), t.tolist(), strict=True)
            )
        assert worst < 4 * 2.0**-53

    def test_digits_that_are_sure_are_below_the_acceptance_at_the_end_of_the_cell(self) -> None:
        cells = np.arange(1024)
        end = lattice._acceptance(STAIRS.ceilings, cells / 64, np.full(1024, (2**34 - 0.5) * 2.0**-40))
        digits = end * 2**13
        assert np.all(STAIRS.sure <= digits)
        assert np.all(STAIRS.sure > digits - 1.001)

    @staticmethod
    def _relative_error(stairs: lattice._Staircase) -> float:
        """The worst of all lattice probabilities at 64 steps to a standard deviation, against the ideal ones.

        Gauss and Legendre integrate the implemented acceptance over every half cell to more digits than a
        double has; a lattice step is made of two of these.
        """
        nodes, weights = np.polynomial.legendre.leggauss(12)
        begin = np.arange(2048) / 128
        cells = np.arange(1024).repeat(2)
        t = (begin - cells / 64)[:, None] + (nodes + 1) / 256
        values = lattice._acceptance(stairs.ceilings[cells, None], cells[:, None] / 64, t)
        masses = (values * weights).sum(1) * np.bincount(stairs.cells)[cells]
        total = 2 * math.fsum(masses)
        steps = [2 * masses[0] / total, *((masses[1:-1:2] + masses[2::2]) / total)]
        with mpmath.workdps(40):
            above = [mpmath.erfc((k + 0.5) / 64 / mpmath.sqrt(2)) / 2 for k in range(-1, len(steps))]
            ideal = [above[k] - above[k + 1] for k in range(len(steps))]
            return float(max(abs(mpmath.mpf(p) / q - 1) for p, q in zip(steps, ideal, strict=True)))

    def test_every_lattice_probability_is_within_the_relative_error(self) -> None:
        assert self._relative_error(STAIRS) < RELATIVE_ERROR

    @pytest.mark.parametrize("cell", [0, 70, 500, 1023])
    def test_one_ceiling_off_by_1e14_would_be_noticed(self, cell: int) -> None:
        ceilings = STAIRS.ceilings.copy()
        ceilings[cell] *= 1 + 1e-14
        assert self._relative_error(replace(STAIRS, ceilings=ceilings)) > RELATIVE_ERROR

    def test_the_tail_that_is_cut(self) -> None:
        with mpmath.workdps(30):
            assert TAIL_MASS / 2.1 < mpmath.erfc(16 / mpmath.sqrt(2)) < TAIL_MASS


class TestDecisions:
    """Single words, taken apart by hand."""

    @staticmethod
    def _word(slot: int, sign: int, offset: int, digit: int) -> int:
        return slot << 48 | sign << 47 | offset << 13 | digit

    @pytest.mark.parametrize(("slot", "offset"), [(0, 0), (12_345, 2**33 + 7), (65_000, 2**34 - 1), (65_535, 99)])
    def test_the_digits_that_are_accepted_are_those_below_the_acceptance(self, slot: int, offset: int) -> None:
        cell = int(STAIRS.cells[slot])
        t = np.array([(offset + 0.5) * 2.0**-40])
        chance = float(lattice._acceptance(STAIRS.ceilings[[cell]], np.array([cell / 64]), t)[0])
        for coin, more in ((2**64 - 1, 0), (0, 1)):
            digits = np.arange(2**13, dtype=np.uint64)
            rejected = lattice._rejected(
                np.full(2**13, cell, np.uint16), np.full(2**13, offset, np.uint64), digits, Scripted(coin, 1)
            )
            expected = math.floor(chance * 2**13) + more * (chance * 2.0**77 >= 1)
            assert np.array_equal(rejected, np.arange(expected, 2**13))

    @pytest.mark.parametrize("exponent", [0, 1, 6, 20, LARGEST_EXPONENT])
    @pytest.mark.parametrize("sign", [0, 1])
    def test_a_word_becomes_the_nearest_step_with_its_sign(self, exponent: int, sign: int) -> None:
        for slot, offset in ((0, 0), (0, 2**34 - 1), (40_000, 2**33), (60_000, 12_345)):
            words = Scripted(self._word(slot, sign, offset, 0))
            y = mpmath.mpf(int(STAIRS.cells[slot])) / 64 + (offset + mpmath.mpf(0.5)) / 2**40
            nearest = int(mpmath.floor(y * 2**exponent + 0.5))
            assert lattice._accepted(1, exponent, words).tolist() == [-nearest if sign else nearest]

    def test_a_rejected_proposal_is_left_out(self) -> None:
        words = [self._word(0, 0, 0, 0), self._word(65_535, 0, 0, 2**13 - 1), self._word(0, 1, 2**34 - 1, 0)]
        assert lattice._accepted(3, 6, Scripted(*words)).tolist() == [0, -1]

    def test_coins_compare_digit_by_digit(self) -> None:
        tiny, half = np.array([2.0**-100]), np.array([0.5])
        assert lattice._coins(half, Scripted(2**63 - 1)).tolist() == [True]
        assert lattice._coins(half, Scripted(2**63 + 1)).tolist() == [False]
        assert lattice._coins(half, Scripted(2**63, 1)).tolist() == [False]
        assert lattice._coins(tiny, Scripted(1)).tolist() == [False]
        assert lattice._coins(tiny, Scripted(0, 2**28 - 1)).tolist() == [True]
        assert lattice._coins(tiny, Scripted(0, 2**28, 5)).tolist() == [False]
        mixed = lattice._coins(np.array([0.25, 2.0**-70, 0.75]), Scripted(0, 0, 2**63, 2**57))
        assert mixed.tolist() == [True, True, True]

    def test_coins_have_their_probability(self) -> None:
        heads = lattice._coins(np.full(400_000, 0.3), Keystream(bytes(32))).sum()
        assert abs(heads - 120_000) < 5 * math.sqrt(400_000 * 0.3 * 0.7)


class TestSamples:
    @pytest.mark.parametrize(("exponent", "up_to"), [(0, 4), (3, 32), (6, 230), (8, 850)])
    def test_frequencies_are_the_exact_probabilities(self, exponent: int, up_to: int) -> None:
        steps = rounded_gaussian(1_000_000, exponent, Keystream(bytes(32)))
        assert steps.dtype == np.int64
        assert misfit(steps, exponent, up_to) > 1e-4

    def test_the_test_has_teeth(self) -> None:
        steps = rounded_gaussian(1_000_000, 12, Keystream(bytes(32)))
        assert misfit(np.rint(steps / 2**9).astype(np.int64), 3, 32) > 1e-4
        assert misfit(np.rint(steps / 2**10).astype(np.int64), 3, 12) < 1e-12
        assert misfit(np.rint(1.01 * steps / 2**9).astype(np.int64), 3, 32) < 1e-12

    @pytest.mark.parametrize("exponent", [14, 27, LARGEST_EXPONENT])
    def test_fine_lattices_look_continuous(self, exponent: int) -> None:
        steps = rounded_gaussian(300_000, exponent, Keystream(bytes(32)))
        assert stats.kstest(steps / 2**exponent, "norm").pvalue > 1e-4
        low_bits = np.bincount(steps & 1023, minlength=1024)
        assert stats.chisquare(low_bits).pvalue > 1e-4

    def test_draws_do_not_depend_on_each_other(self) -> None:
        y = rounded_gaussian(1_000_000, 20, Keystream(bytes(32))) / 2**20
        for lag in (1, 2, 7, lattice._BLOCK):
            for of in (y, y**2, np.sign(y), np.sign(y) * y**2):
                assert abs(np.corrcoef(of[:-lag], of[lag:])[0, 1]) < 5 / math.sqrt(len(y))
        grades = np.floor(stats.norm.cdf(y) * 20).astype(np.int64)
        pairs = np.bincount(grades[:-1:2] * 20 + grades[1::2], minlength=400)
        assert stats.chisquare(pairs).pvalue > 1e-4

    def test_sizes(self) -> None:
        assert rounded_gaussian(0, 5, Keystream()).shape == (0,)
        for size in (1, 2, 31, lattice._BLOCK, 2 * lattice._BLOCK + 1):
            assert rounded_gaussian(size, 5, Keystream()).shape == (size,)

    @pytest.mark.slow
    def test_tails_and_moments_of_ten_million(self) -> None:
        keystream, draws = Keystream(bytes(32)), 0
        beyond, moments = np.zeros(4), np.zeros(4)
        limits = [3, 4, 5, 5.5]
        for _ in range(10):
            y = rounded_gaussian(1_000_000, 24, keystream) * 2.0**-24
            draws += len(y)
            beyond += [np.count_nonzero(np.abs(y) > limit) for limit in limits]
            moments += [(y**power).sum() for power in (1, 2, 3, 4)]
        for seen, limit in zip(beyond, limits, strict=True):
            expected = 2 * stats.norm.sf(limit) * draws
            assert min(stats.poisson.cdf(seen, expected), stats.poisson.sf(seen - 1, expected)) > 1e-5
        deviations = np.sqrt(np.array([1, 2, 15, 96]) / draws)
        assert np.all(np.abs(moments / draws - [0, 1, 0, 3]) < 5 * deviations)

    @pytest.mark.slow
    def test_frequencies_of_thirty_million(self) -> None:
        steps = rounded_gaussian(30_000_000, 7, Keystream(bytes(31) + b"\1"))
        assert misfit(steps, 7, 560) > 1e-4


floats = st.floats(-1e6, 1e6, width=32)


class TestRounding:
    @given(st.lists(st.tuples(floats, floats), min_size=1, max_size=20), st.floats(1e-3, 1e3), st.integers(0, 26))
    def test_rows_get_no_further_apart_than_promised(
        self, pairs: list[tuple[float, float]], noise_std: float, exponent: int
    ) -> None:
        x, y = np.array(pairs).T
        spacing = noise_std / 2**exponent
        if max(np.abs(x).max(), np.abs(y).max()) / spacing > LARGEST_STEP:
            return
        moved = nearest_steps(x, noise_std, exponent) - nearest_steps(y, noise_std, exponent)
        most = np.linalg.norm(x - y) + (1 + 2**-4) * math.sqrt(len(x)) * spacing
        assert np.linalg.norm(moved * spacing) <= most * (1 + 1e-12)

    @given(floats, st.floats(1e-3, 1e3), st.integers(0, 26))
    def test_a_coordinate_moves_by_half_a_step_and_one_rounding(
        self, x: float, std: float, exponent: int
    ) -> None:
        with mpmath.workdps(40):
            exact = mpmath.mpf(x) / std * 2**exponent
            step = int(nearest_steps(np.array([x]), std, exponent)[0])
            assert abs(step - exact) <= mpmath.mpf(0.5) + abs(exact) * 2**-53

    @given(st.integers(1, 10**8), st.floats(1e-3, 1e3), st.floats(1e-4, 1.0))
    def test_the_exponent_is_the_least_that_keeps_the_slack(
        self, dim: int, multiplier: float, slack: float
    ) -> None:
        exponent = lattice_exponent(dim, multiplier, slack)
        spread = math.sqrt(dim) * multiplier
        assert (1 + 2**-4) * spread / 2**exponent <= slack
        assert exponent == 0 or 1.08 * spread / 2 ** (exponent - 1) > slack

    def test_a_slack_that_no_lattice_keeps_is_refused(self) -> None:
        with pytest.raises(RequestError, match=r"slack must be at least .* not 1e-09: there is no finer lattice"):
            lattice_exponent(10**8, 10.0, 1e-9)

    @pytest.mark.parametrize(
        ("dim", "multiplier", "slack"), [(0, 1.0, 1e-4), (5, 0.0, 1e-4), (5, math.nan, 1e-4), (5, 1.0, 0)]
    )
    def test_settings_out_of_range_are_refused(self, dim: int, multiplier: float, slack: float) -> None:
        with pytest.raises(RequestError, match=r"dim|noise_multiplier|slack"):
            lattice_exponent(dim, multiplier, slack)


class TestReleases:
    def test_a_release_is_a_whole_number_of_steps(self) -> None:
        rows = torch.randn(1, 100_000) * 30
        released = lattice_rows(rows, torch.tensor([0.25]), 12, [Keystream()]).double() / 0.25 * 2**12
        # So few steps that float32 has room for all of them.
        assert released.abs().max() < 2**24
        assert torch.equal(released, released.round())

    @given(st.floats(1e-6, 1e6), st.integers(0, 30))
    def test_a_release_is_the_steps_times_the_spacing(self, std: float, exponent: int) -> None:
        row = torch.linspace(-3, 3, 50) * std
        stds = torch.tensor([std], dtype=torch.float64)
        released = lattice_rows(row[None], stds, exponent, [Keystream(bytes(32))])
        steps = lattice_steps(row.double().numpy(), std, exponent, Keystream(bytes(32)))
        noise = rounded_gaussian(50, exponent, Keystream(bytes(32)))
        assert np.array_equal(steps - noise, nearest_steps(row.double().numpy(), std, exponent))
        assert released.dtype == torch.float32
        assert np.array_equal(released[0].numpy(), (steps * (std / 2**exponent)).astype(np.float32))

    def test_noise_has_every_clients_own_deviation(self) -> None:
        rows = torch.randn(3, 200_000, generator=torch.Generator().manual_seed(1))
        stds = torch.tensor([1e-3, 1.0, 40.0], dtype=torch.float64)
        streams = [Keystream(bytes(31) + bytes([i])) for i in range(3)]
        noise = (lattice_rows(rows.double(), stds, 24, streams).double() - rows) / stds[:, None]
        for row in noise.numpy():
            assert stats.kstest(row[:100_000], "norm").pvalue > 1e-4
            assert stats.kstest(row[:100_000] * 2, "norm").pvalue < 1e-12
        assert np.abs(np.corrcoef(noise.numpy()) - np.eye(3)).max() < 5 / math.sqrt(200_000)

    def test_a_client_alone_releases_what_it_releases_among_others(self) -> None:
        rows, stds = torch.randn(4, 1000), torch.tensor([1.0, 2.0, 3.0, 4.0])
        keys = [bytes(31) + bytes([i]) for i in range(4)]
        together = lattice_rows(rows, stds, 20, [Keystream(key) for key in keys])
        for i, key in enumerate(keys):
            assert torch.equal(
                together[i : i + 1], lattice_rows(rows[i : i + 1], stds[i : i + 1], 20, [Keystream(key)])
            )

    def test_rows_and_stds_stay_as_they_are(self) -> None:
        rows, stds = torch.ones(2, 5), torch.ones(2)
        lattice_rows(rows, stds, 10, [Keystream(), Keystream()])
        assert torch.equal(rows, torch.ones(2, 5))
        assert torch.equal(stds, torch.ones(2))

    def test_no_clients_release_nothing(self) -> None:
        assert lattice_rows(torch.empty(0, 7), torch.empty(0), 10, []).shape == (0, 7)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.2345e20])
    def test_rows_that_cannot_be_rounded_are_refused_before_any_noise(self, value: float) -> None:
        rows = torch.zeros(2, 50_000)
        rows[1, -1] = value
        streams = [Keystream(bytes(32)), Keystream(bytes(32))]
        with pytest.raises(DataError, match=r"rows must be finite and within 2\.75e\+11") as refusal:
            lattice_rows(rows, torch.ones(2), 10, streams)
        assert "1.23" not in str(refusal.value)
        for stream in streams:
            assert np.array_equal(stream.uint64(4), Keystream(bytes(32)).uint64(4))

    @pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 1e-320])
    def test_noise_must_be_there(self, std: float) -> None:
        with pytest.raises(RequestError, match="stds must be finite and above 0"):
            lattice_rows(torch.zeros(2, 3), torch.tensor([1.0, std], dtype=torch.float64), 10, [Keystream()] * 2)

    @pytest.mark.parametrize("exponent", [-1, LARGEST_EXPONENT + 1, 2.5])
    def test_exponents_out_of_range_are_refused(self, exponent: int) -> None:
        with pytest.raises(RequestError, match="exponent must be"):
            lattice_rows(torch.zeros(1, 3), torch.ones(1), exponent, [Keystream()])
        with pytest.raises(RequestError, match="exponent must be"):
            rounded_gaussian(1, exponent, Keystream())

    @pytest.mark.parametrize(
        ("rows", "stds", "streams"),
        [
            (torch.zeros(3), torch.ones(3), 3),
            (torch.zeros(2, 0), torch.ones(2), 2),
            (torch.zeros(2, 3, dtype=torch.int64), torch.ones(2), 2),
            (torch.zeros(2, 3), torch.ones(3), 2),
            (torch.zeros(2, 3), torch.ones(2), 1),
        ],
    )
    def test_shapes_must_fit(self, rows: torch.Tensor, stds: torch.Tensor, streams: int) -> None:
        with pytest.raises(RequestError, match="rows"):
            lattice_rows(rows, stds, 10, [Keystream() for _ in range(streams)])


class TestPrivacy:
    @pytest.mark.parametrize("exponent", [0, 2, 5])
    @pytest.mark.parametrize("shift", [1, 3, 40])
    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
    def test_no_event_tells_more_than_under_the_continuous_mechanism(
        self, exponent: int, shift: int, epsilon: float
    ) -> None:
        distance = shift / 2**exponent
        law = probabilities(exponent, 64 * 2**exponent)
        here, there = np.pad(law, (shift, 0)), np.pad(law, (0, shift))
        delta = np.maximum(here - math.exp(epsilon) * there, 0).sum()
        half, share = distance / 2, epsilon / distance
        ideal = stats.norm.cdf(half - share) - math.exp(epsilon) * stats.norm.cdf(-half - share)
        assert delta <= ideal + 1e-14
        # As the lattice gets fine the rounding hides nothing either.
        assert exponent < 5 or delta >= 0.9 * ideal - 1e-12

    def test_what_epsilon_pays(self) -> None:
        assert cost(10, 0) == 0
        assert cost(10, 3) == pytest.approx(60 * RELATIVE_ERROR)
        assert cost(25_000_000, 10_000) < 1e-3

    def test_what_delta_pays(self) -> None:
        """With n draws and w = exp(RELATIVE_ERROR n), delta becomes w (delta + e^epsilon n TAIL_MASS)."""
        dim, releases, epsilon, delta = 10**6, 1000, 3.0, 1e-5
        with mpmath.workdps(80):
            w = mpmath.exp(mpmath.mpf(RELATIVE_ERROR) * dim * releases)
            exact = w * (delta + mpmath.exp(epsilon) * dim * releases * mpmath.mpf(TAIL_MASS))
        charged = Surcharge(cost(dim, releases), dim * releases * TAIL_MASS)
        found = charged.real_log_delta(math.log(delta), epsilon + charged.epsilon)
        assert math.exp(found) == pytest.approx(float(exact), rel=1e-9)
        # The cut alone: by far the larger part once epsilon is absurd.
        alone = Surcharge(cost(1, 1), TAIL_MASS)
        assert math.exp(alone.real_log_delta(-70.0, 120.0)) == pytest.approx(math.exp(120) * TAIL_MASS)
        assert alone.real_log_delta(-70.0, 1e6) == 0.0
