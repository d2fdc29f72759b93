"""The target of a draft: its task and classes, or its range, and what to say about rows and tails left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.schema.column import MOST_CATEGORIES, Predicted
from tacit.data.schema.guess import (
    COUNTS,
    distinct,
    is_number,
    nice_middle,
    nice_range,
    within_reach,
    without_gaps,
)
from tacit.data.schema.plain import Places, as_text, spelled
from tacit.data.schema.tails import KEPT, Goal, kept, wider
from tacit.errors import DataError, RequestError

if TYPE_CHECKING:
    import pandas as pd

LOOKED = "looked at: taken from the records. Is it public?"

FEW_NUMBERS = 10
"""Whole numbers with at most this many different values are proposed as classes of a target."""

MANY_LEFT_OUT = 0.2
"""From this share on, a draft speaks of rows that have no target."""


def drafted_target(column: pd.Series[Any], task: str | None, comments: dict[str, str]) -> Predicted:
    """What a column to predict looks like; what was looked at is added to the comments."""
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
    if len(values) == 1:
        raise DataError(
            f"target {name!r} is {values[0]!r} in every row that has one, so nothing can be learned: choose "
            "another target, or draft from a table that has others, too"
        )
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


def goal_of(column: pd.Series[Any], target: Predicted) -> Goal:
    """The target of every row, as numbers."""
    import pandas as pd

    column, _ = without_gaps(column)
    if not target.classed:
        return Goal(column.to_numpy(dtype=np.float64, na_value=np.nan), classed=False)
    codes, found = pd.factorize(column)
    places = map(Places(target.classes).get, found)
    table = np.array([*(np.nan if place is None else float(place) for place in places), np.nan])
    return Goal(table[codes], classed=True)


def rows_without(goal: Goal, comments: dict[str, str]) -> list[str]:
    """What to say about rows that have no target."""
    share = float(np.isnan(goal.values).mean())
    if "target.missing" not in comments:
        return []
    comments["target.missing"] = f"looked at: {_percent(share)} of the rows have no target, and are left out"
    if share < MANY_LEFT_OUT:
        return []
    return [
        f"{_percent(share)} of the rows have no target, and are left out. If a gap is an answer (none, or 0), "
        "fill these gaps in the table to keep them."
    ]


def rows_of_nobody(role: str, column: str, share: float, comments: dict[str, str]) -> list[str]:
    """What to say about rows that name no client or no person."""
    comments[f"{role}.missing"] = f"looked at: {_percent(share)} of the rows name no {role}, and are left out"
    if share < MANY_LEFT_OUT:
        return []
    filled = '"unknown" would be one more client' if role == "client" else "each with a name of its own"
    return [
        f"{_percent(share)} of the rows name no {role} in {column}, and are left out. To keep them, fill these "
        f"gaps in the table: {filled}."
    ]


def in_spellings(role: str, column: pd.Series[Any]) -> list[str]:
    """What to say about clients or persons whose names differ in case or space alone: they count as different."""
    names: dict[str, str] = {}
    for name in [] if is_number(column) else dict.fromkeys(map(as_text, column.dropna().unique())):
        other = names.setdefault(spelled(name), name)
        if other != name:
            return [
                f"{column.name} has names that differ in case or space alone, such as {other!r} and {name!r}. "
                f"They count as two {role}s: if they are one, correct the table."
            ]
    return []


def about_tail(target: Predicted, goal: Goal, comments: dict[str, str]) -> list[str]:
    """What to say about a tail that the range cuts off, and what a wider one costs: the user decides."""
    numbers = goal.values[~np.isnan(goal.values)]
    low, high = target.range or (0.0, 0.0)
    lost = 1 - kept(numbers, low, high)
    if lost <= 1 - KEPT:
        return []
    outside = float(np.mean((numbers < low) | (numbers > high)))
    said = f"{_percent(outside)} of the targets lie outside of the range, with {_percent(lost)} of the variance"
    first, last = wider(numbers, low, high, target.task == "count")
    if (first, last) != (low, high):
        times = (last - first) / (high - low)
        left = _percent(1 - kept(numbers, first, last))
        said += f". [{first:g}, {last:g}] would leave {left} of it outside, at {times:.2g} times the noise"
    comments["target.range"] = f"{LOOKED} {said}"
    return [f"{said}."]


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.995 else "almost all"
