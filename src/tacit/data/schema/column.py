"""The parts of a schema: a column that the model uses, and what is predicted."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from tacit.data.encode import Vector
from tacit.errors import RequestError, unknown_name

TYPES = ("number", "category", "date")
TASKS = ("binary", "multiclass", "regression", "count")
MISSING = ("refuse", "indicate")
ROWS_WITHOUT = ("refuse", "leave-out")
"""What becomes of rows without a target, a client or a person."""
SCALES = ("linear", "log")
MOST_CATEGORIES = 500
"""A category with more values than this identifies people more than it describes them."""

IDENTIFIERS = re.compile(
    r"(?:^|[_\W])(?:id|ids|uuid|guid|mrn|ssn|iban|email|phone|telephone|surname|forename|firstname|lastname"
    r"|(?:first|last|full|patient|customer)[_\W]?name|address|passport)$|^name$"
    r"|^(?:id[_\W]?(?:code|num|nr|no|number)|(?:u|p|case|unit|user|person|patient|subject|child|record|row)id)$"
    r"|^(?:row[_\W]?(?:names?|numbers?|nr)|index|unnamed: \d+)$",
    re.IGNORECASE,
)
"""Names of columns that tell people apart."""


def is_identifier(name: str) -> bool:
    """Whether a column's name says that it identifies a person or a row.

    >>> [is_identifier(name) for name in ("patient_id", "PatientID", "id", "acid", "plasma_lipid", "email")]
    [True, True, True, False, False, True]
    """
    return bool(IDENTIFIERS.search(re.sub(r"(?<=[a-z])I[Dd]$", "_id", name)))


@dataclass(frozen=True)
class Column:
    """A column that the model uses.

    Parameters
    ----------
    type : "number", "category" or "date".
    unit : the unit of its values, for people.
    range : the public range of a number, or of a date as days since 1970. Values outside count as its ends.
    limits : how far a number may lie outside its range and still count as it is, on the same scale; by default
        nowhere. For long tails: the range says where most values are, and the model goes on as a line.
    within : limits in which the number surely lies, if its range is not public. The range is then learned from
        the records, at a privacy cost (`range = "learn"` in the file).
    middle : a usual value of a number, publicly known; by default the middle of the range. It becomes 0, and gaps
        count as it.
    typical : the public interval in which the median of every client lies. A client whose median lies elsewhere
        is refused: it has another unit (mmol/l for mg/dl, cm for m), even if its values are within the range.
    scale : "linear", or "log" for positive numbers that spread over orders of magnitude.
    categories : every value of a category, as text.
    other : whether any other value is allowed and counts as one more category, called "other".
    gaps : values that mean that nothing is known, as text, such as "?" or "-999".
    missing : "refuse" a table with gaps, or "indicate" them: a gap counts as the middle (no category), and one
        more feature says that there was one.
    format : how dates are written, as in `strptime`; ISO 8601 by default.
    ends : what half of the range becomes as a feature; its schema sets it for all columns.
    identifier : false says that a column with a name like "acid_id" does not identify anybody.
    """

    name: str
    type: str
    unit: str = ""
    range: tuple[float, float] | None = None
    limits: tuple[float, float] | None = None
    within: tuple[float, float] | None = None
    middle: float | None = None
    typical: tuple[float, float] | None = None
    scale: str = "linear"
    categories: tuple[str, ...] = ()
    other: bool = False
    gaps: tuple[str, ...] = ()
    missing: str = "refuse"
    format: str = ""
    identifier: bool | None = None
    ends: float = 1.0

    def __post_init__(self) -> None:
        where = f"column {self.name!r} of the schema"
        for what, value, known in (
            ("type", self.type, TYPES),
            ("missing", self.missing, MISSING),
            ("scale", self.scale, SCALES),
        ):
            if value not in known:
                raise unknown_name(what, str(value), known, where)
        if self.identifier is not False and is_identifier(self.name):
            raise RequestError(
                f"{where} identifies people or rows by its name, and a model must not learn who they are: move "
                "it to [left_out], or set identifier = false if it means something else"
            )
        if self.type == "category":
            _check_categories(where, self.categories, "categories", least=1)
            return
        _check_within(where, self.within, self.range)
        if self.open:
            for setting in ("middle", "limits"):
                if getattr(self, setting) is not None:
                    raise RequestError(f'{where}: {setting} needs a public range, not range = "learn"')
            return
        if self.range is None:
            raise RequestError(
                f"{where} has no range: give its public range, such as range = [0, 120], or learn one from the "
                'records at a privacy cost: range = "learn" and within = [0, 10000], where it surely lies'
            )
        low, high = self.range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise RequestError(f"{where}: range must be two numbers, the smaller one first, not {self.range!r}")
        if self.middle is not None and not low <= self.middle <= high:
            raise RequestError(f"{where}: middle = {self.middle!r} must lie in its range, {low:g} to {high:g}")
        _check_typical(where, self.typical)
        first, last = self.counted
        if not (math.isfinite(last - first) and first <= low and high <= last):
            raise RequestError(f"{where}: limits = {[first, last]} must hold its range, {low:g} to {high:g}")
        if self.scale == "log" and first <= 0:
            raise RequestError(f"{where}: a logarithmic scale needs a range above 0, not {[first, last]}")

    @property
    def open(self) -> bool:
        """Whether its range is still to be learned."""
        return self.range is None and self.within is not None

    @property
    def counted(self) -> tuple[float, float]:
        """Where values count as they are; outside, they count as its ends."""
        return self.limits or self.range or (-1.0, 1.0)

    @property
    def centre(self) -> float:
        """What becomes 0, on the column's scale: a logarithm for a logarithmic one."""
        return sum(self._ends) / 2 if self.middle is None else self._on_scale(self.middle)

    @property
    def half(self) -> float:
        """What becomes 1 as a feature, on the column's scale: half of the range, over `ends`."""
        return (self._ends[1] - self._ends[0]) / (2 * self.ends)

    @property
    def _ends(self) -> tuple[float, float]:
        low, high = self.range or (-1.0, 1.0)
        return self._on_scale(low), self._on_scale(high)

    def _on_scale(self, value: float) -> float:
        return math.log(value) if self.scale == "log" else value


@dataclass(frozen=True)
class Predicted:
    """What is predicted: classes with names, or a number with a public range."""

    column: str
    task: str
    classes: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    within: tuple[float, float] | None = None
    """limits in which a number surely lies, if its range is to be learned"""
    middle: float | None = None
    """a usual value of a number, publicly known: 0 for the model, which starts there"""
    typical: tuple[float, float] | None = None
    """the public interval in which the median of every client lies; others are refused as in another unit"""
    unit: str = ""
    missing: str = "refuse"
    """"refuse" a table in which the target has gaps, or "leave-out" such rows, whose number is then public"""
    gaps: tuple[str, ...] = ()
    """values that mean that nothing is known, as text"""

    def __post_init__(self) -> None:
        where = f"target {self.column!r} of the schema"
        if self.task not in TASKS:
            raise unknown_name("task", str(self.task), TASKS, where)
        if self.missing not in ROWS_WITHOUT:
            raise unknown_name("missing", str(self.missing), ROWS_WITHOUT, where)
        if self.classed:
            _check_categories(where, self.classes, "classes", least=2)
            if self.task == "binary" and len(self.classes) != 2:
                raise RequestError(f"{where}: a binary target has two classes, not {list(self.classes)}")
            return
        _check_within(where, self.within, self.range)
        if self.open:
            if self.middle is not None:
                raise RequestError(f'{where}: a middle needs a public range, not range = "learn"')
            return
        if self.range is None or not (
            math.isfinite(self.range[1] - self.range[0]) and self.range[0] < self.range[1]
        ):
            raise RequestError(
                f"{where}: task = {self.task!r} needs the target's public range, such as range = [0, 1000], not "
                f"{self.range!r}. It must not be taken from the records: the largest one is somebody's"
            )
        if self.middle is not None and not self.range[0] <= self.middle <= self.range[1]:
            raise RequestError(f"{where}: middle = {self.middle!r} must lie in its range, {list(self.range)}")
        _check_typical(where, self.typical)

    @property
    def open(self) -> bool:
        """Whether its range is still to be learned."""
        return self.range is None and self.within is not None

    @property
    def classed(self) -> bool:
        """Whether it is a class and not a number."""
        return self.task in ("binary", "multiclass")

    @property
    def centre(self) -> float:
        """What becomes 0 for the model: a usual value, or the middle of the range."""
        low, high = self.range or (0.0, 0.0)
        return (low + high) / 2 if self.middle is None else self.middle

    @property
    def half(self) -> float:
        """Half of the range of a number: 1 for the model."""
        low, high = self.range or (-1.0, 1.0)
        return (high - low) / 2

    def cut(self, scaled: Vector) -> Vector:
        """Scaled numbers, with those outside of the range as its ends; labels as they are."""
        if self.classed or self.range is None:
            return scaled
        low, high = ((end - self.centre) / self.half for end in self.range)
        cut: Vector = np.clip(scaled, low, high)
        return cut

    @property
    def most(self) -> float:
        """The largest absolute number that the model is given: 1 without a middle of its own, at most 2."""
        low, high = self.range or (-1.0, 1.0)
        return max(high - self.centre, self.centre - low) / self.half


def _check_within(where: str, within: tuple[float, float] | None, range: tuple[float, float] | None) -> None:
    if within is not None and not (math.isfinite(within[1] - within[0]) and within[0] < within[1]):
        raise RequestError(f"{where}: within must be two numbers, the smaller one first, not {within!r}")
    if within is not None and range is not None and not within[0] <= range[0] < range[1] <= within[1]:
        raise RequestError(f"{where}: range = {list(range)} does not lie within {list(within)}")


def _check_typical(where: str, typical: tuple[float, float] | None) -> None:
    if typical is not None and not typical[0] < typical[1]:
        raise RequestError(f"{where}: typical must be two numbers, the smaller one first, not {typical!r}")


def _check_categories(where: str, values: tuple[str, ...], setting: str, least: int) -> None:
    if len(values) < least or len(set(values)) != len(values):
        raise RequestError(f"{where}: {setting} must list every value once, at least {least}, not {list(values)}")
    if len(values) > MOST_CATEGORIES:
        raise RequestError(
            f"{where} has {len(values)} {setting}: more than {MOST_CATEGORIES} identify people more than they "
            "describe them. Group them, or move the column to [left_out]"
        )
