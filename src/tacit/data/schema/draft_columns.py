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
    is_number,
    is_truth,
    known_range,
    nice_middle,
    nice_range,
    without_gaps,
)
from tacit.data.schema.plain import alike
from tacit.data.schema.tails import Goal

if TYPE_CHECKING:
    import pandas as pd

FEW_CODES = 3
"""Whole numbers with at most this many different values are proposed as categories of a feature."""

SHARED = 20
"""So few values that so many rows share each identify nobody, whatever the column is called (`has_email`)."""

RARE = 0.01
"""If a column has many categories, those below this share of the rows become "other"."""

SKEWED = 20.0
"""From this ratio of the 99th percentile to the median on, a logarithmic scale is proposed."""


def drafted_column(
    name: str, column: pd.Series[Any], goal: Goal, comments: dict[str, str], coded: bool
) -> Column | str:
    """A proposed column, or the reason why it is left out."""
    if column.dtype == object and column.map(lambda cell: isinstance(cell, list | dict | np.ndarray)).any():
        return "looked at: a cell holds several values"
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
        found: Column | str = Column(name, "category", categories=tuple(distinct(known)), identifier=False)
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
    shares = known.map(alike).value_counts(normalize=True) if values > MANY else None
    if shares is None:
        comments[f"{name}.categories"] = LOOKED
        return Column(name, "category", categories=tuple(distinct(known)))
    if values > 0.2 * len(known) or shares.iloc[0] < RARE:
        return f"looked at: {values:,} different values in {len(known):,} rows tell people apart or are free text"
    comments[f"{name}.categories"] = LOOKED
    common = set(shares[shares >= RARE].index)
    return Column(
        name, "category", categories=tuple(v for v in distinct(known) if alike(v) in common), other=True
    )


def _number(
    name: str, known: pd.Series[Any], values: int, goal: Goal, comments: dict[str, str], coded: bool
) -> Column | str:
    numbers = known.to_numpy(dtype=np.float64)
    whole = bool((numbers == np.round(numbers)).all())
    if whole and values == len(known) and len(known) > 50 and not (np.diff(numbers) < 0).any():
        return "looked at: it numbers the rows"
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
