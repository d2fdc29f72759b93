"""Columns that tell nearly all of the target alone: they may be known only afterwards, or follow from it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.encode import Vector
from tacit.data.schema.guess import is_number, without_gaps
from tacit.data.schema.tails import Goal

if TYPE_CHECKING:
    import pandas as pd

GROUPS = 20
"""A column's values are compared with the target in at most so many groups, and gaps in one of their own."""

ENOUGH = 10
"""With fewer rows than this for each group, a column tells much of the target by chance."""

NEARLY_ALL = 0.8
"""The share of the target from which on a column is named."""


def tells(column: pd.Series[Any], goal: Goal) -> float:
    """How much of the target a column tells alone: the share of variance, or of the usual class's errors."""
    known = ~np.isnan(goal.values)
    if known.sum() < ENOUGH * GROUPS:
        return 0.0
    groups, target = _groups(column)[known], goal.values[known]
    sizes = np.maximum(np.bincount(groups), 1)
    if not goal.classed:
        means = np.bincount(groups, target - target.mean()) / sizes
        spread = float(target.var())
        return float((sizes * means**2).sum() / len(target) / spread) if spread else 0.0
    classes = target.astype(np.int64)
    table = np.zeros((len(sizes), int(classes.max()) + 1))
    np.add.at(table, (groups, classes), 1.0)
    wrong = len(classes) - float(table.sum(axis=0).max())
    return 1 - (len(classes) - float(table.max(axis=1).sum())) / wrong if wrong else 0.0


def _groups(column: pd.Series[Any]) -> Vector:
    """The group of every row: numbers by size, words by themselves or with all rare ones, gaps apart."""
    import pandas as pd

    column, _ = without_gaps(column)
    if is_number(column) and column.nunique() > GROUPS:
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
        ends = np.nanquantile(numbers, np.linspace(0, 1, GROUPS + 1)[1:-1])
        return np.where(np.isnan(numbers), GROUPS, np.searchsorted(ends, numbers, side="right"))
    codes, found = pd.factorize(column)
    usual = np.argsort(-np.bincount(codes[codes >= 0], minlength=len(found)), kind="stable")[: GROUPS - 1]
    place = np.full(len(found) + 1, GROUPS - 1)
    place[usual] = np.arange(len(usual))
    place[-1] = GROUPS
    groups: Vector = place[codes]
    return groups


def about_giveaways(names: list[str], frame: pd.DataFrame, target: str, goal: Goal) -> list[str]:
    """What to say about columns that give the target away: to the holder, as no part of the schema."""
    found = [name for name in names if tells(frame[name], goal) >= NEARLY_ALL]
    if not found:
        return []
    several = len(found) > 1
    return [
        f"{', '.join(found)} {'each tell' if several else 'tells'} nearly all of {target} alone. Would you know "
        f"{'them' if several else 'it'} before {target}? If not, draft again with "
        f"{shlex.join(word for name in found for word in ('--leave-out', name))}."
    ]
