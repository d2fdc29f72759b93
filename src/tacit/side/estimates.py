"""Accuracy, AUC, calibration and loss from noisy sums, with error bars for noise and sampling together.

Every mean is one of numbers in [-1/2, 1/2]. With V their noisy sum over n records, m is in the bar if

    (V - m n)^2 <= z^2 (noise variance of V - m n  +  n (1/4 - m^2)).

The last term is the largest variance that n such numbers of mean m can have, and the exact one for a share.
Without noise this is Wilson's interval; if n is a noisy count itself, it is Fieller's. So bars stay honest where
a group is so small that noise hides its size: they then span everything that is possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

LEVEL = 0.98
"""Bars are computed for this level. They are called 95% bars: the rest makes up for plug-in variances."""
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)

NoisySums = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with its error bar; `value` is None if noise hides it altogether."""

    value: float | None
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return dict(vars(self))

    def scaled(self, factor: float, shift: float) -> Estimate:
        """factor (x + shift) instead of x."""
        value = None if self.value is None else factor * (self.value + shift)
        return Estimate(value, factor * (self.low + shift), factor * (self.high + shift))


def mean_estimate(total: float, records: float, noise: tuple[float, float], records_std: float = 0.0) -> Estimate:
    """The mean of numbers in [-1/2, 1/2].

    Args:
        total: their noisy sum.
        records: how many there are, or a noisy count.
        noise: (a, b) if the noise of total - m records has the variance a + b m^2.
        records_std: the standard deviation of the noise of `records`.
    """
    most = max(1.0, records + Z * records_std)
    square = records**2 + Z**2 * (most - noise[1])
    if records <= Z * records_std or square <= 0:
        return Estimate(None, -0.5, 0.5)
    # No true sum is beyond these. Without this, noise that leads far beyond would leave no m at all in the bar.
    total = min(records / 2, max(-records / 2, total))
    constant = total**2 - Z**2 * (noise[0] + most / 4)
    value = total / records
    root = math.sqrt(max(0.0, (total * records) ** 2 - square * constant))
    low, high = ((total * records + sign * root) / square for sign in (-1, 1))
    low, high = max(-0.5, min(low, value)), min(0.5, max(high, value))
    return Estimate(value if high - low < 1 else None, low, high)


def difference(one: Estimate, other: Estimate) -> Estimate:
    """one - other, of independent estimates: distances to ends of bars add up as squares (Newcombe 1998)."""
    if one.value is None or other.value is None:
        return Estimate(None, one.low - other.high, one.high - other.low)
    gap = one.value - other.value
    below = math.hypot(one.value - one.low, other.high - other.value)
    above = math.hypot(one.high - one.value, other.value - other.low)
    return Estimate(gap, gap - below, gap + above)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of estimates that may depend on each other.

    The standard deviation of a mean is at most the mean of the standard deviations, whatever the dependence, and
    the same holds for largest errors. So the bar of the mean is the mean of the bars.
    """
    number = len(estimates)
    values = [one.value for one in estimates if one.value is not None]
    value = sum(values) / number if len(values) == number else None
    low, high = (sum(getattr(one, end) for one in estimates) / number for end in ("low", "high"))
    return Estimate(value, low, high)


def on_simplex(counts: NoisySums, total: float) -> NoisySums:
    """The nearest counts that are not negative and add up to `total`. The true counts are such, so it is no
    farther from them than `counts` is (Duchi et al. 2008).

    >>> on_simplex(np.array([3.0, -1.0, 2.0]), 4.0)
    array([2.5, 0. , 1.5])
    """
    ordered = np.sort(counts.ravel())[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, ordered.size + 1)
    shift = float(excess[int((ordered > excess).nonzero()[0][-1])])
    nearest: NoisySums = np.maximum(counts - shift, 0.0)
    return nearest


def auc_estimate(histogram: NoisySums, records: int, noise_std: float) -> Estimate:
    """The area under the ROC curve from noisy counts of (bin, label): (bins, 2).

    The bar has three parts. Noise: the variance of a quotient to first order, and of the product of two noisy
    counts. Sampling: the formula of Hanley and McNeil (1982). Bins: two records in the same bin may be in either
    order, which moves the exact value by at most half the share of such pairs.
    """
    negative, positive = histogram[:, 0], histogram[:, 1]
    bins, variance = len(histogram), noise_std**2
    # The two totals add up to the known number of records, which removes half of their noise.
    ones = (positive.sum() - negative.sum() + records) / 2
    zeros = records - ones
    # Without noise, too, a class of nobody has no area; rounding leaves it with a little less or more than 0.
    if min(ones, zeros) <= max(0.5, 2 * Z * noise_std * math.sqrt(bins / 2)):
        return Estimate(None, 0.0, 1.0)
    histogram = on_simplex(histogram, records)
    negative, positive = histogram[:, 0], histogram[:, 1]
    ones, zeros = positive.sum(), negative.sum()
    wins = np.tri(bins, k=-1) + np.eye(bins) / 2
    area = float(positive @ wins @ negative) / (ones * zeros)
    area = min(1.0, max(0.0, area))
    by_positive, by_negative = (wins @ negative) / zeros - area, (wins.T @ positive) / ones - area
    noise = variance * float((by_positive**2).sum() / ones**2 + (by_negative**2).sum() / zeros**2)
    noise += variance**2 * float(((wins - area) ** 2).sum()) / (ones * zeros) ** 2
    one_two, two_one = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (ones - 1) * (one_two - area**2) + (zeros - 1) * (two_one - area**2)
    sampling = max(0.0, spread) / (ones * zeros)
    same = float(positive @ negative) / (ones * zeros) / 2
    half = Z * math.sqrt(noise + sampling) + same
    return Estimate(area, max(0.0, area - half), min(1.0, area + half))
