"""The parts of an experiment and of its findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

from tacit.errors import count
from tacit.experiments.cells import Runner
from tacit.experiments.intervals import mean_and_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Choice = TypeVar("_Choice")

PUBLISHED, TRUE, SUMMED = "as published", "true", "summed"
"""The three modes: a paper's noise under its label; noise that really keeps the label's epsilon against a server
that sees every message; and the same epsilon where a protocol lets the server open only sums (`SecureSum`)."""


@dataclass(frozen=True)
class Scale:
    """How much of an experiment is run: the quick version has fewer seeds, rounds and grid points."""

    quick: bool = False
    seeds: int | None = None
    charge_tuning: bool = False
    """choose the true mode's settings by private selection, and count the cost"""

    @property
    def folder(self) -> str:
        """The folder for its pages, so that none overwrites another; "." for the full version."""
        return (
            "-".join(name for name, on in (("quick", self.quick), ("charged", self.charge_tuning)) if on) or "."
        )

    def pick(self, quick: _Choice, full: _Choice) -> _Choice:
        """The value for this scale."""
        return quick if self.quick else full

    def trials(self, quick: int, full: int) -> list[int]:
        """The seeds to run: as many as requested, or the experiment's default."""
        return list(range(self.pick(quick, full) if self.seeds is None else count("seeds", self.seeds)))


VERDICTS = {True: "Borne out", False: "NOT borne out", None: "Not decided"}


@dataclass(frozen=True)
class Claim:
    """A claim of the paper or a promise of tacit, and whether these runs support it."""

    text: str
    held: bool | None
    """None if the runs cannot tell: nothing to compare, only ties, or differences that could be chance"""
    evidence: str
    promise: bool = False
    """whether it is the promise: what is private in truth is at least as good as what was published"""

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return VERDICTS[self.held]


BothSides = tuple[Sequence[float], Sequence[float]]
"""Measurements of two sides, seed by seed; smaller is better."""


def at_most(pairs: Sequence[BothSides], *, slack: float = 0.0) -> bool | None:
    """Whether the first of every pair is at most the second, as means over the seeds, up to a relative slack.

    False if the opposite holds for some pair beyond chance: if the interval of the differences, seed by seed,
    lies above zero, at a level of 90% for all pairs together (Bonferroni). Without an interval, because there is
    a single seed or a run diverged, the sign counts. None if the opposite holds only within chance, if there are
    no pairs, or if every pair is a tie: runs that learned nothing support nothing.

    >>> at_most([([1.0], [2.0]), ([3.0], [3.0])]), at_most([([2.0], [1.0])]), at_most([([1.0], [1.0])])
    (True, False, None)
    >>> at_most([([1.0, 5.0], [2.0, 3.0])]), at_most([([4.0, 5.0], [2.0, 3.1])])
    (None, False)
    """
    if all(list(first) == list(second) for first, second in pairs):
        return None
    opposite = [pair for pair in pairs if fmean(pair[0]) > fmean(pair[1]) + slack * abs(fmean(pair[1]))]
    if not opposite:
        return True
    level = 1 - 0.1 / len(pairs)
    return None if all(_within_chance(*pair, level) for pair in opposite) else False


def _differences(
    first: Sequence[float], second: Sequence[float], level: float = 0.9
) -> tuple[float, float | None]:
    """The mean difference with half of its interval, seed by seed if both sides have the same seeds."""
    if len(first) != len(second) or not all(map(math.isfinite, (*first, *second))):
        return math.nan, None
    return mean_and_interval([a - b for a, b in zip(first, second, strict=True)], level)


def _within_chance(first: Sequence[float], second: Sequence[float], level: float) -> bool:
    mean, half = _differences(first, second, level)
    return half is not None and abs(mean) <= half


def against(first: Sequence[float], second: Sequence[float], form: str = ".3g") -> str:
    """Both means, with their difference in brackets if the seeds tell how much of it is chance.

    >>> against([1.0, 2.0], [2.0, 4.0], ".1f")
    '1.5 against 3.0 (-1.5 +- 3.2)'
    """
    mean, half = _differences(first, second)
    apart = "" if half is None else f" ({mean:+.2g} +- {half:.2g})"
    return f"{fmean(first):{form}} against {fmean(second):{form}}{apart}"


@dataclass(frozen=True)
class Table:
    """Rows of plain values under named columns."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Picture:
    """A figure, and a description of it."""

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Findings:
    """The results of an experiment."""

    rows: Sequence[dict[str, Any]]
    """tidy data: one row per run shown in the figures"""
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    claims: tuple[Claim, ...] = ()
    departures: tuple[str, ...] = ()
    """how the runs differ from the paper's"""
    settings: dict[str, Any] = field(default_factory=dict)
    """the numbers of this run that a reader would ask for"""
    tuned: bool = False
    """whether settings were chosen by looking at the data"""
    charged: bool = False
    """whether that cost is counted in the true mode, in a separate table"""


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper."""

    name: str
    title: str
    paper: str
    run: Callable[[Runner, Scale], Findings]
    data: str | None = None
    """the data set that it needs in the data directory"""
    can_charge: bool = False
    """whether its tuning can be charged"""
