"""A first schema for a table: from the names and types of its columns, with a mark on every value it looked at.

Ranges of usual measurements follow from a column's name. Everything else that a schema needs is proposed from the
records and listed under `looked_at`; a run refuses it until somebody confirms that it is public.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.frames import check_columns
from tacit.data.schema.column import MOST_CATEGORIES, TASKS, Column, Predicted, is_identifier
from tacit.data.schema.guess import (
    CLIENTS,
    CODES,
    COUNTS,
    MANY,
    PERSONS,
    TARGETS,
    date_format,
    distinct,
    is_number,
    known_range,
    nice_middle,
    nice_range,
    within_reach,
    without_gaps,
)
from tacit.data.schema.plain import as_text
from tacit.data.schema.schema import Schema
from tacit.data.schema.values import as_dates
from tacit.errors import DataError, RequestError, unknown_name

if TYPE_CHECKING:
    import pandas as pd

FEW_NUMBERS = 10
"""Whole numbers with at most this many different values are proposed as classes of a target."""

FEW_CODES = 3
"""Whole numbers with at most this many different values are proposed as categories of a feature."""

SHARED = 20
"""So few values that so many rows share each identify nobody, whatever the column is called (`has_email`)."""

RARE = 0.01
"""If a column has many categories, those below this share of the rows become "other"."""

LOOKED = "looked at: taken from the records. Is it public?"
ENDS = 2.0
"""What the ends of ranges become: most numbers lie far inside theirs, and would count less than categories."""

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
            "# What looked_at names was taken from the records, and is marked below. Replace\n"
            "# what is not public. Then delete the line looked_at, which confirms the rest.\n"
            "# Units are for you to fill in.\n"
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
    if task is not None and task not in TASKS:
        raise unknown_name("task", task, TASKS)
    if frame.empty:
        raise DataError("the table holds no records, so there is nothing to draft a schema from")
    frame = frame.rename(columns=str).replace([np.inf, -np.inf], np.nan)
    names = list(frame.columns)
    check_columns(frame, [name for name in (target, client, person) if name is not None], "the table")
    comments: dict[str, str] = {"ends": "what the ends of a number's range become for the model: -2 and 2"}
    if target is None:
        target = next((name for name in names if name.lower() in TARGETS), names[-1])
        comments["target.column"] = "a guess: which column is to be predicted?"
    if client is None:
        client = next((name for name in names if CLIENTS.match(name) and name not in (target, person)), None)
    if person is None:
        called = (name for name in names if PERSONS.match(name) and name not in (target, client))
        person = next((name for name in called if frame[name].dropna().duplicated().any()), None)
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
    gaps = {"client": client, "person": person}
    without = {role: name is not None and bool(frame[name].isna().any()) for role, name in gaps.items()}
    schema = Schema(
        predicted,
        tuple(columns),
        client,
        person,
        client_missing="leave-out" if without["client"] else "refuse",
        person_missing="leave-out" if without["person"] else "refuse",
        left_out=left_out,
        ends=ENDS,
        looked_at=named + tuple(f"{role}.missing" for role, found in without.items() if found),
    )
    return Draft(schema, comments)


def _predicted(column: pd.Series[Any], task: str | None, comments: dict[str, str]) -> Predicted:
    name = str(column.name)
    column, gaps = without_gaps(column)
    known = column.dropna()
    if known.empty:
        raise DataError(f"target {name!r} is empty")
    missing = "leave-out" if len(known) < len(column) else "refuse"
    if missing == "leave-out":
        comments["target.missing"] = "looked at: some rows have no target"
    if gaps:
        comments["target.gaps"] = "looked at: values that seem to mean that nothing is known"
    values = distinct(known)
    numeric = is_number(column)
    whole = numeric and bool((known == known.round()).all())
    if task is None:
        counts = whole and COUNTS.search(name) is not None and known.min() >= 0
        if len(values) == 2:
            task = "binary"
        elif counts:
            task = "count"
        else:
            task = "multiclass" if not numeric or (whole and len(values) <= FEW_NUMBERS) else "regression"
        comments["target.task"] = (
            "looked at: proposed from the target's values; binary, multiclass, regression or count"
        )
    if task in ("binary", "multiclass"):
        if len(values) > MOST_CATEGORIES:
            raise RequestError(
                f"target {name!r} has {len(values)} different values: is it the right column, and a class?"
            )
        comments["target.classes"] = LOOKED
        return Predicted(name, task, classes=tuple(values), missing=missing, gaps=gaps)
    if not numeric:
        raise RequestError(f"target {name!r} must hold numbers for task = {task!r}")
    numbers = known.to_numpy(dtype=np.float64)
    low, high = nice_range(within_reach(numbers), share=0.0)
    low = max(low, 0.0) if task == "count" else low
    comments["target.range"] = LOOKED
    middle = nice_middle(numbers, low, high)
    if middle is not None:
        comments["target.middle"] = LOOKED
    return Predicted(name, task, range=(low, high), middle=middle, missing=missing, gaps=gaps)


def _column(name: str, column: pd.Series[Any], comments: dict[str, str]) -> Column | str:
    """A proposed column, or the reason why it is left out."""
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
        found = _described(name, known, values, comments)
    if isinstance(found, str):
        return found
    if gaps:
        comments[f"{name}.gaps"] = "looked at: values that seem to mean that nothing is known"
    if not complete:
        comments[f"{name}.missing"] = "looked at: it has gaps"
        return replace(found, gaps=gaps, missing="indicate")
    return found


def _described(name: str, known: pd.Series[Any], values: int, comments: dict[str, str]) -> Column | str:
    """The column without its gaps, by what its values look like."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(known) or (known.dtype == object and known.map(type).eq(bool).all()):
        return Column(name, "category", categories=("false", "true"))
    format = date_format(name, known)
    if format is not None:
        days = as_dates(known, format).to_numpy(dtype="datetime64[D]").astype(np.float64)
        comments[f"{name}.range"] = LOOKED
        first, last = np.array([days.min(), days.max()]).astype("datetime64[D]").astype("datetime64[Y]")
        ends = np.array([first, last + 1]).astype("datetime64[D]").astype(np.float64)
        return Column(name, "date", range=(float(ends[0]), float(ends[1])), format=format)
    if is_number(known):
        return _number(name, known, values, comments)
    return _category(name, known, values, comments)


def _category(name: str, known: pd.Series[Any], values: int, comments: dict[str, str]) -> Column | str:
    shares = known.map(as_text).value_counts(normalize=True) if values > MANY else None
    if shares is None:
        comments[f"{name}.categories"] = LOOKED
        return Column(name, "category", categories=tuple(distinct(known)))
    if values > 0.2 * len(known) or shares.iloc[0] < RARE:
        return f"looked at: {values:,} different values in {len(known):,} rows tell people apart or are free text"
    comments[f"{name}.categories"] = LOOKED
    common = set(shares[shares >= RARE].index)
    return Column(name, "category", categories=tuple(v for v in distinct(known) if v in common), other=True)


def _number(name: str, known: pd.Series[Any], values: int, comments: dict[str, str]) -> Column | str:
    numbers = known.to_numpy(dtype=np.float64)
    whole = bool((numbers == np.round(numbers)).all())
    if whole and values == len(known) and len(known) > 50 and not (np.diff(numbers) < 0).any():
        return "looked at: it numbers the rows"
    if values == 1 or (whole and (values <= FEW_CODES or CODES.search(name) or CLIENTS.match(name))):
        return _category(name, known, values, comments)
    usual = known_range(name, numbers)
    if usual is not None:
        return Column(name, "number", usual[2], (usual[0], usual[1]))
    comments[f"{name}.range"] = LOOKED
    low, high = np.quantile(numbers, [0.01, 0.99])
    start, end = nice_range(numbers, 0.01)
    if low > 0 and high > SKEWED * float(np.median(numbers)):
        return Column(name, "number", range=(start, end), scale="log")
    middle = nice_middle(numbers, start, end)
    if middle is not None:
        comments[f"{name}.middle"] = LOOKED
    return Column(name, "number", range=(start, end), middle=middle)
