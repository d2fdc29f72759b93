"""What an experiment is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tacit.errors import count
from tacit.experiments.cells import Runner

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
    """None where the runs cannot tell: nothing to compare, or nothing but ties"""
    evidence: str

    @property
    def verdict(self) -> str:
        """In words."""
        return {True: "Borne out", False: "NOT borne out", None: "Not decided"}[self.held]


def no_larger(pairs: Sequence[tuple[float, float]], *, slack: float = 0.0) -> bool | None:
    """Whether the first of every pair is at most the second, up to a relative slack.

    None without pairs, and where every pair is a tie: runs that learned nothing bear nothing out.

    >>> no_larger([(1.0, 2.0), (3.0, 3.0)]), no_larger([(2.0, 1.0)]), no_larger([(1.0, 1.0)]), no_larger([])
    (True, False, None, None)
    """
    if all(first == second for first, second in pairs):
        return None
    return all(first <= second * (1 + slack) for first, second in pairs)


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
