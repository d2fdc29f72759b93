"""A first schema for a table: from the names and types of its columns, with a mark on every value it looked at.

Ranges of usual measurements follow from a column's name. Everything else that a schema needs is proposed from the
records and listed under `looked_at`; a run refuses it until somebody confirms that it is public.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.frames import namesakes, without_namesakes
from tacit.data.schema.column import TASKS, Column, is_identifier
from tacit.data.schema.draft_target import LOOKED, about_tail, drafted_target, goal_of, rows_without
from tacit.data.schema.encode import terms
from tacit.data.schema.guess import (
    CODES,
    MANY,
    PERSONS,
    TARGETS,
    date_format,
    distinct,
    is_number,
    is_truth,
    known_range,
    nice_middle,
    nice_range,
    nothing_as_gap,
    without_gaps,
)
from tacit.data.schema.places import may_name, named_places
from tacit.data.schema.plain import as_text
from tacit.data.schema.schema import Schema
from tacit.data.schema.tails import Goal, has_room
from tacit.data.schema.values import as_dates
from tacit.errors import DataError, unknown_name

if TYPE_CHECKING:
    import pandas as pd

FEW_CODES = 3
"""Whole numbers with at most this many different values are proposed as categories of a feature."""

SHARED = 20
"""So few values that so many rows share each identify nobody, whatever the column is called (`has_email`)."""

RARE = 0.01
"""If a column has many categories, those below this share of the rows become "other"."""

ENDS = 2.0
"""What the ends of ranges become: most numbers lie far inside theirs, and would count less than categories."""

SKEWED = 20.0
"""From this ratio of the 99th percentile to the median on, a logarithmic scale is proposed."""

MOST_ROWS = 100
"""If values have more rows each than this, they name no persons."""

TRIAL_CLIENTS = 5
"""How many clients there may be, if no column names them."""


@dataclass
class Draft:
    """A schema in the making, and the comments that its file will have."""

    schema: Schema
    comments: dict[str, str] = field(default_factory=dict)
    advice: tuple[str, ...] = ()
    """what to look at first: rows without a target, a tail that its range cuts off"""

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
    frame = frame.rename(columns=str).replace([np.inf, -np.inf], np.nan).reset_index(drop=True)
    doubled = namesakes(frame)
    frame = without_namesakes(frame, [name for name in (target, client, person) if name is not None], "the table")
    if not len(frame.columns):
        raise DataError(f"all columns of the table share a name, such as {doubled[0]!r}: rename them")
    frame = frame.apply(nothing_as_gap)
    names = list(frame.columns)
    comments: dict[str, str] = {"ends": "what the ends of a number's range become for the model: -2 and 2"}
    if target is None:
        target = next((name for name in names if name.lower() in TARGETS), names[-1])
        comments["target.column"] = "a guess: which column is to be predicted?"
    places, measures = named_places(frame)
    doubtful = [name for name in measures if name not in (target, client, person)]
    if client is None:
        called = (name for name in places if name not in (target, person))
        client = next((name for name in called if may_name(frame[name])), None)
        if client is not None:
            comments["client.column"] = "a guess: does this column name who holds a row?"
    if person is None:
        called = (name for name in names if PERSONS.match(name) and name not in (target, client))
        person = next((name for name in called if _may_name_persons(frame[name])), None)
        if person is not None:
            comments["person.column"] = "looked at: some values repeat, so one person seems to have several rows"
    predicted = drafted_target(frame[target], task, comments)
    goal = goal_of(frame[target], predicted)
    columns: list[Column] = []
    left_out = dict.fromkeys(doubled, "two columns have this name: to use one, rename it in the table")
    for name in names:
        if name in (target, client, person):
            continue
        found = _column(name, frame[name], goal, comments, coded=name in places)
        if isinstance(found, Column):
            columns.append(found)
        else:
            left_out[name] = found
    if not columns:
        why_not = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise DataError(f"no column of the table can be used as a feature. Left out: {why_not}")
    units = int((~np.isnan(goal.values)).sum()) if person is None else int(frame[person].nunique())
    holders = TRIAL_CLIENTS if client is None else int(frame[client].nunique())
    room = has_room(units, holders, len(terms(Schema(predicted, tuple(columns)))))
    advice = rows_without(goal, comments)
    said = _about_places([name for name in doubtful if name not in left_out], comments)
    advice += said if client is None else []
    if not predicted.classed:
        advice += about_tail(predicted, goal, comments)
    reaches = [(column, _reaching(column, frame, goal)) for column in columns]
    columns = [_with_room(column, far, room, comments) for column, far in reaches]
    if tails := [column.name for column, far in reaches if column != far and not room]:
        advice.append(f"With sums, limits for the long tails of {', '.join(tails)} would tell more: see there.")
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
    return Draft(schema, comments, tuple(advice))


def _about_places(doubtful: list[str], comments: dict[str, str]) -> list[str]:
    """What to say about numbers that are used as features, although their column is called like a place."""
    for name in doubtful:
        comments[name] = "a guess: its numbers count or measure something, and name no places"
    return [
        f"The numbers of {name} seem to count or measure something, so they are a feature. If they name who "
        f"holds a row, draft with --client {name}."
        for name in doubtful
    ]


def _may_name_persons(column: pd.Series[Any]) -> bool:
    """Whether some persons have several rows, and not all rows are of a few (`student`: yes or no)."""
    known = column.dropna()
    return bool(known.duplicated().any()) and known.nunique() > max(FEW_CODES, len(known) / MOST_ROWS)


def _reaching(column: Column, frame: pd.DataFrame, goal: Goal) -> Column:
    """The column with limits, where its range cuts off what tells of the target."""
    if column.type != "number" or column.scale != "linear" or column.range is None:
        return column
    numbers, _ = without_gaps(frame[column.name])
    limits = goal.limits(numbers.to_numpy(dtype=np.float64, na_value=np.nan), *column.range)
    return replace(column, limits=limits)


def _with_room(column: Column, far: Column, room: bool, comments: dict[str, str]) -> Column:
    """The column with its limits where noise leaves room for them; elsewhere a comment says what they are."""
    if far.limits is None:
        return column
    if room:
        comments[f"{column.name}.limits"] = "looked at: values so far outside tell of the target"
        return far
    ends = ", ".join(f"{end:g}" for end in far.limits)
    comments[f"{column.name}.range"] = f"{LOOKED} With --trust sum, try limits = [{ends}]: a long tail"
    return column


def _column(name: str, column: pd.Series[Any], goal: Goal, comments: dict[str, str], coded: bool) -> Column | str:
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
    shares = known.map(as_text).value_counts(normalize=True) if values > MANY else None
    if shares is None:
        comments[f"{name}.categories"] = LOOKED
        return Column(name, "category", categories=tuple(distinct(known)))
    if values > 0.2 * len(known) or shares.iloc[0] < RARE:
        return f"looked at: {values:,} different values in {len(known):,} rows tell people apart or are free text"
    comments[f"{name}.categories"] = LOOKED
    common = set(shares[shares >= RARE].index)
    return Column(name, "category", categories=tuple(v for v in distinct(known) if v in common), other=True)


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
