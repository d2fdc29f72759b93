"""Error bars and bands: what would vary with other test records or other seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, mean, stdev
from typing import Any

from tacit.report.chart import Interval, Line

_Z = NormalDist().inv_cdf(0.975)


def share_interval(name: str, share: float, records: int) -> Interval:
    """A share of correct answers among `records` with its 95% Wilson interval.

    >>> bar = share_interval("accuracy", 0.9, 100)
    >>> round(bar.low, 3), round(bar.high, 3)
    (0.826, 0.945)
    """
    squared = _Z**2 / records
    middle = (share + squared / 2) / (1 + squared)
    half = _Z / (1 + squared) * math.sqrt(share * (1 - share) / records + squared / (4 * records))
    return Interval(name, share, min(share, middle - half), max(share, middle + half))


def mean_interval(name: str, values: Sequence[float]) -> Interval:
    """The mean of several runs with its 95% interval by Student's t; no interval for fewer than two.

    >>> bar = mean_interval("loss", [1.0, 2.0, 3.0])
    >>> round(bar.value - bar.low, 2)
    2.48
    """
    if len(values) < 2:
        return Interval(name, mean(values))
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return Interval(name, mean(values), mean(values) - half, mean(values) + half)


def joint_interval(one: Interval, other: Interval) -> Interval:
    """Two independent causes of error of the same share: half widths add up as squares, within 0 and 1."""
    ends = [(bar.low, bar.high) for bar in (one, other) if bar.low is not None and bar.high is not None]
    value = one.value or 0.0
    below = math.hypot(*(value - low for low, _ in ends))
    above = math.hypot(*(high - value for _, high in ends))
    return Interval(one.name, value, max(0.0, value - below), min(1.0, value + above))


def mean_line(
    name: str, histories: Sequence[Sequence[Mapping[str, Any]]], column: str, x: str = "round", scale: float = 1
) -> Line:
    """A column of the mean over histories, against x / scale; the band spans the smallest and the largest.

    >>> history = [{"round": 0, "loss": 1.0}, {"round": 1, "loss": None}]
    >>> mean_line("a", [history], "loss").y
    [1.0, nan]
    """
    values = [[math.nan if (v := row[column]) is None else float(v) for row in rows] for rows in histories]
    across, several = list(zip(*values, strict=True)), len(values) > 1
    return Line(
        name,
        [row[x] / scale for row in histories[0]],
        [sum(at) / len(at) for at in across],
        [min(at) for at in across] if several else None,
        [max(at) for at in across] if several else None,
    )
