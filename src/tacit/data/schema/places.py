"""Which column of a table names who holds a row, for a draft: places by name, unless their numbers measure.

Words in a column that is called `school` name schools. Numbers under this name may also be years of schooling,
and those under `hospital` how often somebody was there. A wrong guess changes who is protected and who adds
noise. So numbers are names only if nothing speaks against it; otherwise they are a feature, and a draft says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.encode import Vector
from tacit.data.schema.guess import is_number, is_truth, without_gaps
from tacit.data.schema.plain import as_text

if TYPE_CHECKING:
    import pandas as pd

CLIENTS = re.compile(
    r"^(?:(?P<holder>client|silo|site|institution)|hospital|clinic|centre|center|bank|branch|school|store)"
    r"(?P<several>e?s)?(?P<name>[_\W]?(?:id|name|code))?$",
    re.IGNORECASE,
)
"""Names of columns that say who holds a row. A `holder` is nothing that is counted or attended."""

ANSWERS = frozenset(["yes", "no", "y", "n", "true", "false"])

COUNTED = 100
"""Larger whole numbers are neither years of schooling nor stays in a hospital."""

GIVEN_OUT = 30
"""More numbers than this from 1 on, without a hole, were given out to places: nobody is at school for so long."""

ORDERED = 0.5
"""If the order of values explains this share of what they tell of another column, they measure something."""

LEAST = 5
"""The order of fewer values says nothing."""


def named_places(frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The columns that name places, and those that are called so but whose numbers may measure something."""
    called = [name for name in frame.columns if CLIENTS.match(name)]
    named = [name for name in called if _names(name, frame)]
    return named, [name for name in called if name not in named and is_number(frame[name])]


def may_name(column: pd.Series[Any]) -> bool:
    """Whether values may be the names of clients: most of them more than once."""
    return bool(column.nunique() <= len(column) / 2)


def _names(name: str, frame: pd.DataFrame) -> bool:
    said = CLIENTS.match(name)
    column = frame[name]
    if said is None or is_truth(column):
        return False
    if not is_number(column):
        return not {as_text(value).lower() for value in column.dropna().unique()} <= ANSWERS
    numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
    known: Vector = np.unique(numbers[~np.isnan(numbers)])
    if (known != np.round(known)).any():
        return False
    if said["name"] or (said["holder"] and not said["several"]):
        return True
    if said["several"] or not len(known):
        return False  # how many schools there are
    numbered = bool(known[0] in (0, 1) and known[-1] == known[0] + len(known) - 1)
    if numbered and known[0] == 1 and len(known) > GIVEN_OUT:
        return True  # whatever follows their order: numbers are often given out by region
    # A 0 means that nobody was there, unless numbers go on without a gap beyond all that is counted.
    likely = (numbered or known[-1] > COUNTED) if known[0] >= 1 else (numbered and known[-1] > COUNTED)
    return bool(likely) and not _measures(numbers, frame.drop(columns=name))


def _measures(numbers: Vector, others: pd.DataFrame) -> bool:
    """Whether the column that differs most between these values follows their order, as with a quantity."""
    best, share = 0.0, 0.0
    for other in others.columns:
        column, _ = without_gaps(others[other])
        if not is_number(column):
            continue
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        known = ~np.isnan(numbers) & np.isfinite(values)
        between, line = _explained(numbers[known], values[known])
        if between > best:
            best, share = between, line / between
    return share >= ORDERED


def _explained(numbers: Vector, values: Vector) -> tuple[float, float]:
    """The shares of variance that means by number explain, beyond chance, and that a line does."""
    _, codes, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
    groups, spread = len(sizes), float(values.var()) if len(values) else 0.0
    if groups < LEAST or len(values) <= groups or spread == 0:
        return 0.0, 0.0
    means = np.bincount(codes, values - values.mean()) / sizes
    between = float((sizes * means**2).sum()) / len(values) / spread
    beyond = between - (1 - between) * (groups - 1) / (len(values) - groups)
    return max(beyond, 0.0), float(np.corrcoef(numbers, values)[0, 1] ** 2)
