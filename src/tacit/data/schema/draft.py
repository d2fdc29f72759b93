"""A first schema for a table: from the names and types of its columns, with a mark on every value it looked at.

Ranges of usual measurements follow from a column's name. Everything else that a schema needs is proposed from the
records and listed under `looked_at`; a run refuses it until somebody confirms that it is public.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.frames import namesakes, without_namesakes
from tacit.data.schema.column import TASKS, Column
from tacit.data.schema.draft_columns import FEW_CODES, drafted_column
from tacit.data.schema.draft_target import (
    LOOKED,
    about_tail,
    drafted_target,
    goal_of,
    in_spellings,
    rows_of_nobody,
    rows_without,
)
from tacit.data.schema.encode import terms
from tacit.data.schema.giveaways import about_giveaways
from tacit.data.schema.guess import PERSONS, TARGETS, nothing_as_gap, without_gaps, without_unit
from tacit.data.schema.places import may_name, named_places
from tacit.data.schema.plain import briefly
from tacit.data.schema.repeats import MOST_ROWS, overlooked_persons
from tacit.data.schema.schema import Schema
from tacit.data.schema.tails import Goal, has_room
from tacit.errors import DataError, RequestError, unknown_name

if TYPE_CHECKING:
    import pandas as pd

ENDS = 2.0
"""What the ends of ranges become: most numbers lie far inside theirs, and would count less than categories."""

TRUSTS = ("none", "sum")
"""What a run can trust in, if it learns from a draft."""

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
    leave_out: Sequence[str] = (),
    trust: str = "none",
) -> Draft:
    """Propose a schema for a table.

    Args:
        frame: the table.
        target: the column to predict; by default one that is called so, or the last column.
        client: the column that names the client of a row; by default one that is called so.
        person: the column that names the person of a row, if persons have several; by default one that is called
            so and has repeated values.
        task: "binary", "multiclass", "regression" or "count"; by default as the target looks.
        leave_out: columns that the model may not use, by name or with `*` for any letters ("after_*").
        trust: "sum" for runs with `trust="sum"`: clients then share one noise, which leaves room for long tails.
    """
    if trust not in TRUSTS:
        raise unknown_name("trust", trust, TRUSTS)
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
    numbers, unit = without_unit(frame[target])
    if unit and task not in ("binary", "multiclass"):
        frame[target] = numbers
    predicted = drafted_target(frame[target], task, comments)
    if unit and not predicted.classed:
        comments["target.unit"] = "looked at: it stands behind the numbers"
        predicted = replace(predicted, unit=unit)
    goal = goal_of(frame[target], predicted)
    columns: list[Column] = []
    asked = _asked_out(leave_out, [*names, *doubled], (target, client, person))
    left_out = dict.fromkeys(doubled, "two columns have this name: to use one, rename it in the table")
    for name in names:
        if name in (target, client, person):
            continue
        if name in asked:
            left_out[name] = "as asked"
            continue
        found = drafted_column(name, frame[name], goal, comments, coded=name in places)
        if isinstance(found, Column):
            columns.append(found)
            if f"{name}.unit" in comments:
                frame[name], _ = without_unit(frame[name])
        else:
            left_out[name] = found
    if not columns:
        why_not = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise DataError(f"no column of the table can be used as a feature. Left out: {why_not}")
    units = int((~np.isnan(goal.values)).sum()) if person is None else int(frame[person].nunique())
    holders = TRIAL_CLIENTS if client is None else int(frame[client].nunique())
    features = len(terms(Schema(predicted, tuple(columns))))
    with_sums = has_room(units, 1, features)
    room = with_sums if trust == "sum" else has_room(units, holders, features)
    advice = rows_without(goal, comments)
    roles = {role: name for role, name in (("client", client), ("person", person)) if name is not None}
    without = [role for role, name in roles.items() if frame[name].isna().any()]
    for role, name in roles.items():
        if role in without:
            advice += rows_of_nobody(role, name, float(frame[name].isna().mean()), comments)
        advice += in_spellings(role, frame[name])
    if person is None:
        dated = {column.name for column in columns if column.type == "date"}
        asked_about = [name for name in names if name not in (target, client, *dated)]
        advice += _about_persons(asked_about, frame.drop(columns=[] if client is None else client))
    advice += about_giveaways([column.name for column in columns], frame, target, goal)
    said = _about_places([name for name in doubtful if name not in left_out], comments)
    advice += said if client is None else []
    if not predicted.classed:
        advice += about_tail(predicted, goal, comments)
    reaches = [(column, _reaching(column, frame, goal)) for column in columns]
    columns = [_with_room(column, far, room, with_sums, comments) for column, far in reaches]
    if tails := [column.name for column, far in reaches if column != far and not room]:
        remedy = "There are too few records to let them count."
        if with_sums:
            remedy = "To let them count, draft again with --trust sum, and run with it."
        advice.append(f"Values far outside of their range tell of {target} in {briefly(tails)}. {remedy}")
    looked = [key for key, said in comments.items() if said.startswith("looked at")]
    looked += [f"{name}.left_out" for name, why in left_out.items() if why.startswith("looked at")]
    named = tuple(key.replace("target.", f"{target}.", 1) if key.startswith("target.") else key for key in looked)
    schema = Schema(
        predicted,
        tuple(columns),
        client,
        person,
        client_missing="leave-out" if "client" in without else "refuse",
        person_missing="leave-out" if "person" in without else "refuse",
        left_out=left_out,
        ends=ENDS,
        looked_at=named,
    )
    return Draft(schema, comments, tuple(advice))


def _asked_out(patterns: Sequence[str], names: Sequence[str], roles: tuple[str | None, ...]) -> set[str]:
    """The columns that a user wants to leave out; a pattern never takes the target, the client or the person."""
    asked: set[str] = set()
    for pattern in patterns:
        if pattern in roles:
            raise RequestError(f"leave_out names {pattern!r}, which is the target, the client or the person")
        found = {name for name in names if name == pattern or fnmatchcase(name, pattern)}.difference(roles)
        if not found:
            raise DataError(f"leave_out: the table has no column {pattern!r}; it has {', '.join(names)}")
        asked |= found
    return asked


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


def _about_persons(names: list[str], frame: pd.DataFrame) -> list[str]:
    """What to say about rows that may be of one person."""
    found = overlooked_persons(names, frame)
    if found is None:
        return []
    name, said = found
    return [
        f"{said} If they are rows of one person, draft again with --person {name}: as it is, the promise is to "
        "single rows."
    ]


def _reaching(column: Column, frame: pd.DataFrame, goal: Goal) -> Column:
    """The column with limits, where its range cuts off what tells of the target."""
    if column.type != "number" or column.scale != "linear" or column.range is None:
        return column
    numbers, _ = without_gaps(frame[column.name])
    limits = goal.limits(numbers.to_numpy(dtype=np.float64, na_value=np.nan), *column.range)
    return replace(column, limits=limits)


def _with_room(column: Column, far: Column, room: bool, with_sums: bool, comments: dict[str, str]) -> Column:
    """The column with its limits where noise leaves room for them; elsewhere a comment says what they are."""
    if far.limits is None:
        return column
    if room:
        comments[f"{column.name}.limits"] = "looked at: values so far outside tell of the target"
        return far
    ends = ", ".join(f"{end:g}" for end in far.limits)
    what = f"With --trust sum, try limits = [{ends}]: a long tail"
    if not with_sums:
        what = f"It has a long tail: limits = [{ends}] would need more records"
    comments[f"{column.name}.range"] = f"{LOOKED} {what}"
    return column
