"""A first schema for a table: from the names and types of its columns, with a mark on every value it looked at.

Ranges of usual measurements follow from a column's name. Everything else that a schema needs is proposed from the
records and listed under `looked_at`; a run refuses it until somebody confirms that it is public.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.encode import Vector
from tacit.data.frames import check_columns
from tacit.data.schema.column import MOST_CATEGORIES, Column, Predicted, is_identifier
from tacit.data.schema.plain import as_text
from tacit.data.schema.schema import Schema
from tacit.data.schema.values import as_dates, with_gaps
from tacit.errors import DataError, RequestError

if TYPE_CHECKING:
    import pandas as pd

TARGETS = ("target", "label", "outcome", "class", "y")
CLIENTS = re.compile(
    r"^(?:client|silo|site|hospital|clinic|centre|center|bank|branch|institution|school|store)s?(?:[_\W]?(?:id|name|code))?$",
    re.IGNORECASE,
)
PERSONS = re.compile(
    r"^(?:patient|person|subject|participant|customer|user|member|student|individual)(?:[_\W]?(?:id|no|nr|number|code))?$",
    re.IGNORECASE,
)
COUNTS = re.compile(r"^(?:n|num|number|count|no)[_\W]|[_\W](?:count|visits|days|times)$", re.IGNORECASE)

KNOWN_RANGES: dict[str, tuple[float, float, str]] = {
    "age": (0, 100, "years"),
    "bmi": (10, 60, "kg/m2"),
    "month": (1, 12, ""),
    "hour": (0, 24, "hours"),
    "percent": (0, 100, "%"),
    "systolic": (70, 220, "mmHg"),
    "diastolic": (40, 130, "mmHg"),
    "heart_rate": (30, 200, "1/min"),
}
"""Public ranges of usual measurements, by name."""

FEW_NUMBERS = 10
"""Whole numbers with at most this many different values are proposed as classes of a target."""

FEW_CODES = 3
"""Whole numbers with at most this many different values are proposed as categories of a feature."""


MANY, RARE = 20, 0.01
"""If there are more categories than this, those below this share of the rows become "other"."""

GAP_WORDS = frozenset(
    ["?", "-", ".", "", "na", "n/a", "nan", "none", "null", "missing", "unknown", "unknown/invalid"]
)
GAP_NUMBERS = frozenset([-9, -99, -999, -9999])
"""Values that usually mean that nothing is known."""

DATE_FORMATS = ("", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%Y/%m/%d")
LOOKED = "looked at: taken from the records. Is it public?"
CENTRAL = (0.4, 0.6)
"""If the median lies elsewhere in the range, it is proposed as the column's middle."""

SKEWED = 20.0
"""From this ratio of the 99th percentile to the median on, a logarithmic scale is proposed."""


@dataclass
class Draft:
    """A schema in the making, and the comments that its file will have."""

    schema: Schema
    comments: dict[str, str] = field(default_factory=dict)

    def to_toml(self) -> str:
        """The file to edit: what to do first, then the schema with its comments."""
        looked = (
            "# Values under looked_at were taken from the records. Replace them by what is publicly known, or\n"
            "# confirm that they are public, and delete them from the list. Units are for you to fill in.\n"
        )
        return (looked if self.schema.looked_at else "") + self.schema.to_toml(self.comments)


def draft_schema(
    frame: pd.DataFrame,
    *,
    target: str | None = None,
    client: str | None = None,
    person: str | None = None,
    task: str | None = None,
) -> Draft:
    """Propose a schema for a table.

    Args:
        frame: the table.
        target: the column to predict; by default one that is called so, or the last column.
        client: the column that names the client of a row; by default one that is called so.
        person: the column that names the person of a row, if persons have several; by default one that is called
            so and has repeated values.
        task: "binary", "multiclass", "regression" or "count"; by default as the target looks.
    """
    if frame.empty:
        raise DataError("the table holds no records, so there is nothing to draft a schema from")
    frame = frame.rename(columns=str).replace([np.inf, -np.inf], np.nan)
    names = list(frame.columns)
    check_columns(frame, [name for name in (target, client, person) if name is not None], "the table")
    comments: dict[str, str] = {}
    if target is None:
        target = next((name for name in names if name.lower() in TARGETS), names[-1])
        comments["target.column"] = "a guess: which column is to be predicted?"
    if client is None:
        client = next((name for name in names if CLIENTS.match(name) and name not in (target, person)), None)
    if person is None:
        called = (name for name in names if PERSONS.match(name) and name not in (target, client))
        person = next((name for name in called if frame[name].duplicated().any()), None)
        if person is not None:
            comments["person.column"] = "looked at: some values repeat, so one person seems to have several rows"
    predicted = _predicted(frame[target], task, comments)
    columns: list[Column] = []
    left_out: dict[str, str] = {}
    for name in names:
        if name in (target, client, person):
            continue
        found = _column(name, frame[name], comments)
        if isinstance(found, Column):
            columns.append(found)
        else:
            left_out[name] = found
    if not columns:
        raise DataError("no column of the table can be used as a feature; see what is left out: " + str(left_out))
    looked = [key for key, said in comments.items() if said.startswith("looked at")]
    looked += [f"{name}.left_out" for name, why in left_out.items() if why.startswith("looked at")]
    named = tuple(key.replace("target.", f"{target}.", 1) if key.startswith("target.") else key for key in looked)
    schema = Schema(predicted, tuple(columns), client, person, left_out=left_out, looked_at=named)
    return Draft(schema, comments)


def _predicted(column: pd.Series[Any], task: str | None, comments: dict[str, str]) -> Predicted:
    name, known = str(column.name), column.dropna()
    missing = "leave-out" if len(known) < len(column) else "refuse"
    if missing == "leave-out":
        comments["target.missing"] = "looked at: some rows have no target"
    values = _distinct(known)
    numeric = _is_number(column)
    whole = numeric and bool((known == known.round()).all())
    if task is None:
        few = len(values) <= FEW_NUMBERS
        if len(values) == 2:
            task = "binary"
        elif not numeric or (whole and few):
            task = "multiclass"
        else:
            task = "count" if whole and COUNTS.search(name) else "regression"
        comments["target.task"] = (
            "looked at: proposed from the target's values; binary, multiclass, regression or count"
        )
    if task in ("binary", "multiclass"):
        if len(values) > MOST_CATEGORIES:
            raise RequestError(
                f"target {name!r} has {len(values)} different values: is it the right column, and a class?"
            )
        comments["target.classes"] = LOOKED
        return Predicted(name, task, classes=tuple(values), missing=missing)
    if not numeric:
        raise RequestError(f"target {name!r} must hold numbers for task = {task!r}")
    low, high = _nice_range(known.to_numpy(dtype=np.float64), share=0.0)
    comments["target.range"] = LOOKED
    return Predicted(name, task, range=(max(low, 0.0) if task == "count" else low, high), missing=missing)


def _column(name: str, column: pd.Series[Any], comments: dict[str, str]) -> Column | str:
    """A proposed column, or the reason why it is left out."""
    if is_identifier(name):
        return "its name says that it identifies people or rows"
    gaps_as = _gap_words(column)
    column = _without(column, gaps_as)
    known = column.dropna()
    if known.empty:
        return "looked at: it is empty"
    values = known.nunique()
    if values < 2:
        return "looked at: it has the same value everywhere"
    found = _described(name, column, known, values, comments)
    if isinstance(found, str):
        return found
    if gaps_as:
        comments[f"{name}.gaps"] = "looked at: values that seem to mean that nothing is known"
    if len(known) < len(column):
        comments[f"{name}.missing"] = "looked at: it has gaps"
        return replace(found, gaps=gaps_as, missing="indicate")
    return found


def _described(
    name: str, column: pd.Series[Any], known: pd.Series[Any], values: int, comments: dict[str, str]
) -> Column | str:
    """The column without its gaps, by what its values look like."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(known) or (known.dtype == object and known.map(type).eq(bool).all()):
        return Column(name, "category", categories=("false", "true"))
    if _is_number(column):
        return _number(name, known, values, comments)
    format = next((f for f in DATE_FORMATS if _are_dates(known, f)), None)
    if format is not None:
        days = as_dates(known, format).to_numpy(dtype="datetime64[D]").astype(np.float64)
        comments[f"{name}.range"] = LOOKED
        first, last = np.array([days.min(), days.max()]).astype("datetime64[D]").astype("datetime64[Y]")
        ends = np.array([first, last + 1]).astype("datetime64[D]").astype(np.float64)
        return Column(name, "date", range=(float(ends[0]), float(ends[1])), format=format)
    if values > max(MANY, 0.2 * len(known)) or known.value_counts(normalize=True).iloc[0] < RARE:
        return f"looked at: {values:,} different values in {len(known):,} rows tell people apart or are free text"
    comments[f"{name}.categories"] = LOOKED
    if values > MANY:
        shares = known.value_counts(normalize=True)
        common = known[known.isin(shares[shares >= RARE].index)]
        return Column(name, "category", categories=tuple(_distinct(common)), other=True)
    return Column(name, "category", categories=tuple(_distinct(known)))


def _gap_words(column: pd.Series[Any]) -> tuple[str, ...]:
    """Values of a column that seem to mean that nothing is known."""
    import pandas as pd

    if _is_number(column):
        least = column.min()
        rest = column[column != least]
        return (as_text(least),) if least in GAP_NUMBERS and len(rest) and rest.min() >= 0 else ()
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_datetime64_any_dtype(column):
        return ()
    return tuple(
        sorted(value for value in map(as_text, pd.unique(column.dropna())) if value.lower() in GAP_WORDS)
    )


def _without(column: pd.Series[Any], gaps: tuple[str, ...]) -> pd.Series[Any]:
    """The column with these values missing, as numbers if all others are numbers."""
    import pandas as pd

    if not gaps:
        return column
    column = with_gaps(column, gaps)
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers if bool((numbers.notna() == column.notna()).all()) else column


def _number(name: str, known: pd.Series[Any], values: int, comments: dict[str, str]) -> Column | str:
    numbers = known.to_numpy(dtype=np.float64)
    if not np.isfinite(numbers).all():
        where = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise DataError(
            f"column {name!r} holds {numbers[where]} in row {known.index[where] + 1}; leave the cell empty if "
            "the value is not known"
        )
    whole = bool((numbers == np.round(numbers)).all())
    if whole and values == len(known) and len(known) > 50 and not (np.diff(numbers) < 0).any():
        return "looked at: it numbers the rows"
    if whole and values <= FEW_CODES:
        comments[f"{name}.categories"] = LOOKED
        return Column(name, "category", categories=tuple(_distinct(known)))
    usual = KNOWN_RANGES.get(name.lower())
    if usual is not None:
        return Column(name, "number", usual[2], (usual[0], usual[1]))
    comments[f"{name}.range"] = LOOKED
    low, high = np.quantile(numbers, [0.01, 0.99])
    middle = float(np.median(numbers))
    if low > 0 and middle > 0 and high / middle > SKEWED:
        return Column(name, "number", range=_nice_range(numbers, 0.01), scale="log")
    start, end = _nice_range(numbers, 0.01)
    if CENTRAL[0] <= (middle - start) / (end - start) <= CENTRAL[1]:
        return Column(name, "number", range=(start, end))
    comments[f"{name}.middle"] = LOOKED
    unit = 10.0 ** math.floor(math.log10(end - start) - 1)
    usual_value = float(f"{round(middle / unit) * unit:.12g}")
    return Column(name, "number", range=(start, end), middle=min(max(usual_value, start), end))


def _nice_range(numbers: Vector, share: float) -> tuple[float, float]:
    """Most of the numbers, with ends rounded outwards to two digits of the width."""
    low, high = (float(end) for end in np.quantile(numbers, [share, 1 - share]))
    if low == high:
        low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        return low, low + 1
    unit = 10.0 ** math.floor(math.log10(high - low) - 1)
    start, end = math.floor(low / unit) * unit, math.ceil(high / unit) * unit
    if low > 0 and start <= 0:
        start = float(f"{low:.1g}") if float(f"{low:.1g}") <= low else low / 2
    return float(f"{start:.12g}"), float(f"{end:.12g}")


def _distinct(known: pd.Series[Any]) -> list[str]:
    """The different values as text: numbers by size, words in alphabetical order."""
    import pandas as pd

    found = pd.unique(known)
    ordered = sorted(found) if _is_number(known) else sorted(found, key=as_text)
    return list(dict.fromkeys(as_text(value) for value in ordered))


def _is_number(column: pd.Series[Any]) -> bool:
    import pandas as pd

    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _are_dates(known: pd.Series[Any], format: str) -> bool:
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(known):
        return format == ""
    head = known.head(1000)
    return bool(as_dates(head.astype(str), format).notna().all()) and bool(
        as_dates(known.astype(str), format).notna().all()
    )
