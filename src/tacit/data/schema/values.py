"""A table's columns as plain numbers, and a refusal of everything that the schema does not describe.

Numbers stay in their own units, categories become their position in the schema, and dates days since 1970. A gap
is NaN. Errors name the column; they are for whoever holds the table, and never leave a silo.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.encode import Vector
from tacit.data.frames import NOTHING, check_columns
from tacit.data.schema.cells import as_dates, as_days, as_numbers, distinct_cells, with_gaps
from tacit.data.schema.column import Column, Predicted
from tacit.data.schema.plain import Places, alike, as_day, as_text
from tacit.data.schema.schema import Schema
from tacit.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")
"""A number that means something else beside columns that commas separate."""

MOST_OUTSIDE = 0.5
"""If a larger share of a column lies outside its public range, it is taken to be in another unit."""

ENOUGH_FOR_A_MEDIAN = 20
"""With fewer known values, a client's median is not compared with what is typical."""


def table_values(frame: pd.DataFrame, schema: Schema, where: str = "the table", *, strict: bool = True) -> Vector:
    """Every column that the schema uses, in its order: (rows, columns) float64, gaps as NaN.

    With `strict`, as for training, what the schema does not describe is refused: missing columns, words in place
    of numbers, undeclared categories, gaps where there are to be none, another unit. Otherwise, as for
    predictions, an unknown category counts as a gap.
    """
    check_columns(frame, [column.name for column in schema.columns], where)
    if not strict:
        frame = numbered(frame)
    values = np.empty((len(frame), len(schema.columns)))
    for place, column in enumerate(schema.columns):
        values[:, place] = _values(frame[column.name], column, where, strict)
    return values


def target_values(frame: pd.DataFrame, target: Predicted, where: str) -> Vector:
    """The target as int64 labels, or as numbers of which 1 is half of the public range; gaps are refused.

    Numbers outside of the range are as they are: `Predicted.cut` makes them its ends.
    """
    check_columns(frame, [target.column], where)
    name = f"{where}: target {target.column!r}"
    column = with_gaps(frame[target.column], gaps_of(target))
    if target.classed:
        codes = _codes(column, target.classes, name, "classes", strict=True)
        _refuse_gaps(codes, column, name)
        return codes.astype(np.int64)
    numbers = _numbers(column, name, target.unit)
    _refuse_gaps(numbers, column, name)
    if target.task == "count" and bool(((numbers < 0) | (numbers != np.round(numbers))).any()):
        raise DataError(f"{name} is a count, but some values are not whole numbers of at least 0")
    if (wrong := outside(numbers, target, name)) is not None:
        raise DataError(f"{wrong}, or agree on another range")
    scaled: Vector = (numbers - target.centre) / target.half
    return scaled


def check_typical(frame: pd.DataFrame, schema: Schema, values: Vector, where: str) -> None:
    """Refuses a client whose median of a column lies outside the interval that the schema calls typical.

    The rows are those of one client; `values` are theirs, of `table_values`. Of few values, a median says little.
    """
    said = [(f"column {c.name!r}", c, values[:, place]) for place, c in enumerate(schema.columns)]
    target: list[tuple[str, Column | Predicted, Vector]] = []
    if schema.target.typical is not None:
        column = with_gaps(frame[schema.target.column], gaps_of(schema.target))
        numbers = _numbers(column, where, schema.target.unit)
        target = [(f"target {schema.target.column!r}", schema.target, numbers)]
    for name, part, column in [*said, *target]:
        known = column[~np.isnan(column)] if part.typical is not None else column[:0]
        if part.typical is None or len(known) < ENOUGH_FOR_A_MEDIAN:
            continue
        middle = float(np.median(known))
        if not part.typical[0] <= middle <= part.typical[1]:
            raise DataError(
                f"{where}: {name}: half of the values lie above {_written([middle], part)}, but "
                f"{_range(part.typical, part)} is typical. {_remedy(part)}"
            )


def numbered(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with its rows counted from 1 below the header, as errors name them."""
    made = frame.copy(deep=False)
    made.index = range(1, len(frame) + 1)
    return made


def repeated_rows(frame: pd.DataFrame, schema: Schema) -> str | None:
    """What to say about rows that repeat an earlier one, where the promise is to single rows."""
    copies = int(frame.duplicated().sum()) if schema.person is None else 0
    if not copies:
        return None
    repeat = "1 row repeats" if copies == 1 else f"{copies:,} rows repeat"
    return (
        f"{repeat} an earlier row in every column. The promise is to one row: remove copies, and if one person "
        "may have several rows, name the person in [person]."
    )


def usable_rows(frame: pd.DataFrame, schema: Schema, where: str) -> pd.DataFrame:
    """The rows that have a target, a client and a person, if the schema says that others are left out."""
    target = schema.target
    check_columns(frame, [target.column], where)
    if target.missing == "leave-out":
        column = with_gaps(frame[target.column], gaps_of(target))
        frame = frame[column.notna() & ~column.isin([np.inf, -np.inf])]
    for name, missing in ((schema.client, schema.client_missing), (schema.person, schema.person_missing)):
        if name is not None and missing == "leave-out" and name in frame.columns:
            check_columns(frame, [name], where)
            frame = frame[with_gaps(frame[name], (NOTHING,)).notna()]
    return frame


def _values(column: pd.Series[Any], said: Column, where: str, strict: bool) -> Vector:
    name = f"{where}: column {said.name!r}"
    column = with_gaps(column, gaps_of(said))
    if said.type == "category":
        values = _codes(column, said.categories, name, "categories", strict, said.other)
    elif said.type == "date":
        values = _days(column, said, name, strict)
    else:
        values = _numbers(column, name, said.unit)
    if strict and said.missing == "refuse" and bool(np.isnan(values).any()):
        row = column.index[int(np.isnan(values).argmax())]
        raise DataError(
            f'{name} has a gap, first in row {row}: fill it, or set missing = "indicate" for this column'
        )
    # A learned range says nothing about units, and whoever chose it must not be told how many values lie outside:
    # only its public limits are compared.
    if strict and (wrong := outside(values, said, name)) is not None:
        raise DataError(f"{wrong}, or agree on another range")
    return values


def _numbers(column: pd.Series[Any], name: str, unit: str) -> Vector:
    numbers = as_numbers(column, unit)
    wrong = (numbers.isna() & column.notna()).to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        found = column.iloc[row]
        raise DataError(
            f"{name} must hold numbers, but row {column.index[row]} holds {found!r}: "
            + (
                "write decimals with a point, or separate columns by semicolons"
                if _DECIMAL_COMMA.fullmatch(str(found))
                else "correct it, or add it to gaps if it means that nothing is known"
            )
        )
    values: Vector = numbers.to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
    # The result of a division by zero says as little as a gap.
    values[np.isinf(values)] = np.nan
    return values


def gaps_of(part: Column | Predicted) -> tuple[str, ...]:
    """The values of a column that mean that nothing is known: its gaps, and "None" unless that is an answer."""
    answers = part.categories if isinstance(part, Column) else part.classes
    return part.gaps if NOTHING in map(alike, answers) else (*part.gaps, NOTHING)


def _codes(
    column: pd.Series[Any], known: tuple[str, ...], name: str, setting: str, strict: bool, other: bool = False
) -> Vector:
    """Each value's position among the known ones. Only distinct values are turned into text."""
    codes, found = distinct_cells(column)
    places = Places(known)
    if len(places.exact) < len(known):
        twice = next(text for place, text in enumerate(known) if places.get(text) != place)
        raise DataError(f"{name}: {twice!r} and another one of its {setting} mean the same: rename one of them")
    stranger_place = float(len(known)) if other else np.nan
    each = (places.get(value) for value in found)
    table = np.array([*(stranger_place if place is None else float(place) for place in each), np.nan])
    if strict and np.isnan(table[:-1]).any():
        stranger = as_text(found[int(np.isnan(table[:-1]).argmax())])
        # Whoever holds the table often cannot change the schema, on which others have agreed.
        remedy = ", or sets other = true" if setting == "categories" else ""
        raise DataError(
            f"{name} holds {stranger!r}, which is not among its {setting}: {', '.join(known[:20])}. Write it as "
            f"one of them, or agree on a schema that lists it{remedy}"
        )
    values: Vector = table[codes]
    return values


def _days(column: pd.Series[Any], said: Column, name: str, strict: bool) -> Vector:
    dates = as_dates(column, said.format)
    wrong = dates.isna() & column.notna()
    if strict and wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise DataError(
            f"{name} must hold dates ({form_of_dates(said)}), but row "
            f'{column.index[row]} holds {column.iloc[row]!r}; set its format, such as "%d/%m/%Y"'
        )
    return as_days(dates)


def _refuse_gaps(values: Vector, column: pd.Series[Any], name: str) -> None:
    if np.isnan(values).any():
        row = column.index[int(np.isnan(values).argmax())]
        raise DataError(
            f'{name} has a gap, first in row {row}: remove such rows, or set missing = "leave-out" in [target]'
        )


def outside(values: Vector, part: Column | Predicted, name: str) -> str | None:
    """What to say and do about values most of which lie outside their public range; None if they do not."""
    known, public = values[~np.isnan(values)], part.within or part.range
    if public is None or not len(known) or np.mean((known < public[0]) | (known > public[1])) <= MOST_OUTSIDE:
        return None
    return f"{name}: most values lie outside its public range, {_range(public, part)}. {_remedy(part)}"


def form_of_dates(said: Column) -> str:
    """How the dates of a column are written."""
    return said.format or "ISO 8601, such as 2024-05-31"


def _range(ends: Sequence[float], part: Column | Predicted) -> str:
    return _written(ends, part) + (f" {part.unit}" if part.unit else "")


def _written(numbers: Sequence[float], part: Column | Predicted) -> str:
    """Numbers of a column as its holder writes them: dates as such."""
    return " to ".join(str(as_day(one)) if _is_date(part) else f"{one:g}" for one in numbers)


def _remedy(part: Column | Predicted) -> str:
    if _is_date(part):
        return "Are day, month and year in another order? Set format"
    return "Is it in another unit? Convert it"


def _is_date(part: Column | Predicted) -> bool:
    return isinstance(part, Column) and part.type == "date"
