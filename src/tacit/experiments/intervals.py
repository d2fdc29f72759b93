"""Means over seeds with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from scipy import stats


def mean_and_interval(values: Sequence[float], level: float = 0.9) -> tuple[float, float | None]:
    """The mean, and half the width of its confidence interval by Student's t.

    The width is None for a single value, which says nothing about it, and if any value is infinite.

    >>> mean, half = mean_and_interval([1.0, 2.0, 3.0])
    >>> mean, round(half, 3)
    (2.0, 1.686)
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return fmean(values), None
    quantile = float(stats.t.ppf((1 + level) / 2, len(values) - 1))
    return fmean(values), quantile * stdev(values) / math.sqrt(len(values))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent of the power law through the points: the slope of log y against log x by least squares.

    >>> round(slope([1.0, 2.0, 4.0], [3.0, 1.5, 0.75]), 6)
    -1.0
    """
    return float(stats.linregress([math.log(v) for v in x], [math.log(v) for v in y]).slope)
