"""The parts of an experiment and of its findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tacit.errors import count
from tacit.experiments.cells import Runner

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
