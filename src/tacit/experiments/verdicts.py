"""Decides whether runs support a claim. Kept apart from what a run imports: another rule changes no result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from tacit.experiments.intervals import mean_and_interval

BothSides = tuple[Sequence[float], Sequence[float]]
"""Measurements of two sides, seed by seed; smaller is better."""


def at_most(pairs: Sequence[BothSides], *, slack: float = 0.0) -> bool | None:
    """Whether the first of every pair is at most the second, as means over the seeds, up to a relative slack.

    True if that holds for every pair, and for at least one of them beyond chance: the 90% interval of the
    differences, seed by seed, lies below zero. False if the opposite holds for some pair beyond chance, at a
    level of 90% for all pairs together (Bonferroni). Without an interval, because there is a single seed or a run
    diverged, the sign counts. None otherwise: runs that differ only by chance support nothing.

    >>> at_most([([1.0], [2.0]), ([3.0], [3.0])]), at_most([([2.0], [1.0])]), at_most([([1.0], [1.0])])
    (True, False, None)
    >>> at_most([([1.0, 1.5], [2.0, 2.6])]), at_most([([1.0, 5.0], [2.0, 4.5])])
    (True, None)
    >>> at_most([([1.0, 5.0], [2.0, 3.0])]), at_most([([4.0, 5.0], [2.0, 3.1])])
    (None, False)
    """
    limits = [(first, [one * (1 + math.copysign(slack, one)) for one in second]) for first, second in pairs]
    if any(_sign(*pair, level=1 - 0.1 / len(pairs)) > 0 for pair in limits):
        return False
    holds = all(fmean(first) <= fmean(second) for first, second in limits)
    return True if holds and any(_sign(*pair, level=0.9) < 0 for pair in limits) else None


def _sign(first: Sequence[float], second: Sequence[float], *, level: float) -> int:
    """-1 if the first side is smaller beyond chance, 1 if it is larger, 0 if that could be chance."""
    mean, half = _differences(first, second, level)
    if half is not None and abs(mean) <= half:
        return 0
    return (fmean(first) > fmean(second)) - (fmean(first) < fmean(second))


def _differences(
    first: Sequence[float], second: Sequence[float], level: float = 0.9
) -> tuple[float, float | None]:
    """The mean difference with half of its interval, seed by seed if both sides have the same seeds."""
    if len(first) != len(second) or not all(map(math.isfinite, (*first, *second))):
        return math.nan, None
    return mean_and_interval([a - b for a, b in zip(first, second, strict=True)], level)


def against(first: Sequence[float], second: Sequence[float], form: str = ".3g") -> str:
    """Both means, with their difference in brackets if the seeds tell how much of it is chance.

    >>> against([1.0, 2.0], [2.0, 4.0], ".1f")
    '1.5 against 3.0 (-1.5 +- 3.2)'
    """
    mean, half = _differences(first, second)
    apart = "" if half is None else f" ({mean:+.2g} +- {half:.2g})"
    return f"{fmean(first):{form}} against {fmean(second):{form}}{apart}"
