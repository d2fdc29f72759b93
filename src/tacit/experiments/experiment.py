"""What an experiment is, and what it finds."""

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

PUBLISHED, TRUE = "as published", "true"
"""The two modes: a paper's noise under its label, and the label's epsilon kept."""


@dataclass(frozen=True)
class Scale:
    """How much of an experiment is run: a minute's version has fewer seeds, rounds and grid points."""

    quick: bool = False
    seeds: int | None = None
    charge_tuning: bool = False
    """choose the true mode's settings by private selection, and count what that costs"""

    @property
    def folder(self) -> str:
        """Where its pages go, so that none overwrites another: "." for the whole."""
        return (
            "-".join(name for name, on in (("quick", self.quick), ("charged", self.charge_tuning)) if on) or "."
        )

    def pick(self, quick: _Choice, full: _Choice) -> _Choice:
        """One of two values."""
        return quick if self.quick else full

    def trials(self, quick: int, full: int) -> list[int]:
        """The seeds that are run: as many as were asked for, or else as the experiment has."""
        return list(range(self.pick(quick, full) if self.seeds is None else count("seeds", self.seeds)))


@dataclass(frozen=True)
class Claim:
    """Something that the paper reports, or that tacit promises, and whether these runs bear it out."""

    text: str
    held: bool | None
    """None where the runs cannot tell: nothing to compare, nothing but ties, or what could be chance"""
    evidence: str

    @property
    def verdict(self) -> str:
        """In words."""
        return {True: "Borne out", False: "NOT borne out", None: "Not decided"}[self.held]


BothSides = tuple[Sequence[float], Sequence[float]]
"""What two sides measured, seed by seed; the smaller is the better."""


def at_most(pairs: Sequence[BothSides], *, slack: float = 0.0) -> bool | None:
    """Whether the first of every pair is at most the second on the mean over the seeds, up to a relative slack.

    False if the opposite is seen somewhere beyond chance: where the interval of the differences, seed by seed,
    lies above zero, at a level of 90% for all pairs together (Bonferroni). Where there is none, with a single
    seed or where a run diverged, the sign counts. None if it is seen within chance only, without pairs, and where
    every pair is a tie: runs that learned nothing bear nothing out.

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
    """The mean difference with half of its interval, seed by seed where both sides have the same seeds."""
    if len(first) != len(second) or not all(map(math.isfinite, (*first, *second))):
        return math.nan, None
    return mean_and_interval([a - b for a, b in zip(first, second, strict=True)], level)


def _within_chance(first: Sequence[float], second: Sequence[float], level: float) -> bool:
    mean, half = _differences(first, second, level)
    return half is not None and abs(mean) <= half


def against(first: Sequence[float], second: Sequence[float], form: str = ".3g") -> str:
    """Both means, and in brackets how far apart they are where seeds tell how much of that is chance.

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
    """A figure, and in words what can be seen in it."""

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Findings:
    """What an experiment found."""

    rows: Sequence[dict[str, Any]]
    """tidy: one a run that the figures show"""
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    claims: tuple[Claim, ...] = ()
    departures: tuple[str, ...] = ()
    """where the runs differ from the paper's"""
    settings: dict[str, Any] = field(default_factory=dict)
    """the numbers of this run that a reader would ask for"""
    tuned: bool = False
    """whether settings were chosen by looking at the data"""
    charged: bool = False
    """whether what that costs in the true mode is counted, in a table of its own"""


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
