"""A column of a draft: its type, range or categories as its values look, or why it is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.schema.cells import as_dates
from tacit.data.schema.column import Column, is_identifier
from tacit.data.schema.draft_target import LOOKED
from tacit.data.schema.guess import (
    CODES,
    MANY,
    date_format,
    distinct,
    holds_several,
    is_number,
    is_truth,
    known_range,
    nice_middle,
    nice_range,
    rows_by_value,
    short_date_format,
    without_gaps,
    without_unit,
)
from tacit.data.schema.tails import Goal

if TYPE_CHECKING:
    import pandas as pd

FEW_CODES = 3
"""Whole numbers with at most this many different values are proposed as categories of a feature."""

SHARED = 20
"""So few values that so many rows share each identify nobody, whatever the column is called (`has_email`)."""

RARE, FEW_ROWS = 0.01, 50
"""Categories below this share of the rows become "other"; where there are few categories, those that fewer rows
than this have, too. Nothing can be learned of them, and their names would say who they are."""

BY_CHANCE = 20.0
"""If so many pairs of rows would share a whole number by chance and none does, the numbers measure nothing."""

HALF_A_CENTURY = 50 * 365.25
"""In days. Dates with short years that seem to lie farther apart may be of two centuries."""

SKEWED = 20.0
"""From this ratio of the 99th percentile to the median on, a logarithmic scale is proposed."""


def drafted_column(
    name: str, column: pd.Series[Any], goal: Goal, comments: dict[str, str], coded: bool
) -> Column | str:
    """A proposed column, or the reason why it is left out."""
    if holds_several(column):
        return "looked at: a cell holds several values"
    found: Column | str
    numbers, unit = without_unit(column)
    if unit:
        said = dict(comments)
        found = drafted_column(name, numbers, goal, said, coded)
        if isinstance(found, Column) and found.type == "number":
            comments |= said | {f"{name}.unit": "looked at: it stands behind the numbers"}
            return replace(found, unit=unit)
    identifies = is_identifier(name)
    if identifies and (column.nunique() > FEW_CODES or len(column) < SHARED * FEW_CODES):
        return "its name says that it identifies people or rows"
    column, gaps = without_gaps(column)
    known = column.dropna()
    if known.empty:
        return "looked at: it is empty"
    complete = len(known) == len(column)
    values = known.nunique()
    if values < 2 and complete:
        return "looked at: it has the same value everywhere"
    if identifies:
        comments[f"{name}.identifier"] = "looked at: so few different values identify nobody"
        comments[f"{name}.categories"] = LOOKED
        found = Column(name, "category", categories=tuple(distinct(known)), identifier=False)
    else:
        found = _described(name, known, values, goal, comments, coded)
    if isinstance(found, str):
        return found
    if gaps:
        comments[f"{name}.gaps"] = "looked at: values that seem to mean that nothing is known"
    if not complete:
        comments[f"{name}.missing"] = "looked at: it has gaps"
        return replace(found, gaps=gaps, missing="indicate")
    return found


def _described(
    name: str, known: pd.Series[Any], values: int, goal: Goal, comments: dict[str, str], coded: bool
) -> Column | str:
    """The column without its gaps, by what its values look like."""
    if is_truth(known):
        return Column(name, "category", categories=("false", "true"))
    format = date_format(name, known)
    if format is None and (short := short_date_format(known)) is not None:
        dates = as_dates(known, short)
        if (dates.max() - dates.min()).days > HALF_A_CENTURY:
            return "looked at: its years have two digits, so 31 may be 1931 or 2031. Write four"
        format = short
    if format is not None:
        days = as_dates(known, format).to_numpy(dtype="datetime64[D]").astype(np.float64)
        comments[f"{name}.range"] = LOOKED
        if known.dtype.kind != "M":
            comments[f"{name}.type"] = "looked at: all values are dates"
        if format:
            comments[f"{name}.format"] = "looked at: all values are written so"
        first, last = np.array([days.min(), days.max()]).astype("datetime64[D]").astype("datetime64[Y]")
        ends = np.array([first, last + 1]).astype("datetime64[D]").astype(np.float64)
        return Column(name, "date", range=(float(ends[0]), float(ends[1])), format=format)
    if is_number(known):
        return _number(name, known, values, goal, comments, coded)
    return _category(name, known, values, comments)


def _category(name: str, known: pd.Series[Any], values: int, comments: dict[str, str]) -> Column | str:
    """All categories if they are few and common; otherwise the common ones, and "other"."""
    tells_apart = (
        f"looked at: {values:,} different values in {len(known):,} rows tell people apart or are free text"
    )
    if values > MANY and values > 0.2 * len(known):
        return tells_apart
    rows = rows_by_value(known)
    many = len(rows) > MANY
    if many and max(rows.values()) < RARE * len(known):
        return tells_apart
    comments[f"{name}.categories"] = LOOKED
    least = RARE * len(known) if many else min(RARE * len(known), FEW_ROWS)
    common = tuple(value for value, number in rows.items() if number >= least)
    if not many and (len(rows) - len(common) < 2 or not common):
        return Column(name, "category", categories=tuple(rows))
    return Column(name, "category", categories=common, other=True)


def _number(
    name: str, known: pd.Series[Any], values: int, goal: Goal, comments: dict[str, str], coded: bool
) -> Column | str:
    numbers = known.to_numpy(dtype=np.float64)
    whole = bool((numbers == np.round(numbers)).all())
    if whole and values == len(known) and len(known) > 50:
        if not (np.diff(numbers) < 0).any():
            return "looked at: it numbers the rows"
        if len(known) ** 2 / 2 / (numbers.max() - numbers.min()) > BY_CHANCE:
            return "looked at: no number comes twice, so they were given out like the numbers of cases"
    if values == 1 or (whole and (values <= FEW_CODES or coded or CODES.search(name))):
        found = _category(name, known, values, comments)
        if isinstance(found, Column):
            comments[f"{name}.type"] = "looked at: these numbers seem to be codes"
        return found
    usual = known_range(name, numbers)
    if usual is not None:
        return Column(name, "number", usual[2], (usual[0], usual[1]))
    comments[f"{name}.range"] = LOOKED
    low, high = np.quantile(numbers, [0.01, 0.99])
    start, end = nice_range(numbers, 0.01)
    skewed = low > 0 and high > SKEWED * float(np.median(numbers))
    if skewed and not goal.at(known.index.to_numpy()).follows_line(numbers, start, end):
        comments[f"{name}.scale"] = LOOKED
        return Column(name, "number", range=(start, end), scale="log")
    middle = nice_middle(numbers, start, end)
    if middle is not None:
        comments[f"{name}.middle"] = LOOKED
    return Column(name, "number", range=(start, end), middle=middle)
