"""Columns whose values come back on rows that agree in others: persons, whatever the column is called.

The promise is to a row unless the schema names persons. So a draft that overlooks them promises less than its
reader may think. Rows of one person agree in what does not change (sex, date of birth), and rows of the next
person do not; rows that share a measured value agree in nothing else. Where nothing stays the same, rows of one
person are of different times: no two of them have the same year or visit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.encode import Vector
from tacit.data.schema.guess import holds_several, is_number, is_truth
from tacit.data.schema.plain import briefly, spelled

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 20
"""Fewer values than this name no persons."""

MOST_ROWS = 100
"""If values have more rows each than this, they name no persons."""

FEWEST_PAIRS, MOST_PAIRS = 50, 2000
"""How many pairs of rows with the same value there must be, and how many are compared at most."""

AGREE, DIFFER = 0.998, 0.9
"""Pairs of rows with the same value agree in a column this often; with values that are next to each other, less
often than that."""

MOST_COMPARED = 100_000
"""Of about so many rows, at most, times are compared: all rows of the first values."""

SHARED = 2
"""In so many columns rows of one person agree, at least."""

BY_CHANCE, AT_ONCE = 50, 0.02
"""So many pairs of rows with one value would be of one time by chance, and a smaller share of that many is."""


def overlooked_persons(names: list[str], frame: pd.DataFrame) -> tuple[str, str] | None:
    """Which of these columns seems to name persons, if any, and what to say about its rows."""
    import pandas as pd

    frame = frame[[name for name in frame.columns if not holds_several(frame[name])]]
    found = {name: shared(name, frame) for name in names if name in frame.columns and _may_repeat(frame[name])}
    name = max(found, key=lambda name: len(found[name]), default="")
    if name and len(found[name]) >= SHARED:
        return name, f"Rows with the same {name} agree in {briefly(found[name], most=3)}."
    times = {name: pd.factorize(frame[name])[0] for name in frame.columns if _is_whole(frame[name])}
    for name in found:
        if time := _told_apart_by(pd.factorize(frame[name])[0], times):
            return name, f"Hardly any two rows with the same {name} have the same {time}."
    return None


def _may_repeat(column: pd.Series[Any]) -> bool:
    """Whether its values could be names or numbers of persons with several rows."""
    if is_truth(column) or column.dtype.kind == "M":
        return False
    known = column.dropna()
    values = known.nunique()
    if not (max(FEWEST, len(known) / MOST_ROWS) < values <= len(known) - FEWEST_PAIRS):
        return False
    return not is_number(known) or _is_whole(known)


def _is_whole(column: pd.Series[Any]) -> bool:
    """Whether it holds whole numbers."""
    return is_number(column) and not is_truth(column) and bool((column.dropna() % 1 == 0).all())


def shared(name: str, frame: pd.DataFrame) -> list[str]:
    """The columns in which rows with the same value of this one agree, but rows with the next value do not.

    Rows that repeat others in every column do not count: they would agree whatever their value is.
    """
    import pandas as pd

    others = [other for other in frame.columns if other != name]
    if not others:
        return []
    codes = pd.factorize(frame[name], sort=is_number(frame[name]))[0]
    order = np.argsort(codes, kind="stable")[int((codes < 0).sum()) :]
    same = codes[order][1:] == codes[order][:-1]
    pairs = [_some(np.flatnonzero(same)), _some(np.flatnonzero(~same))]
    rows = np.concatenate([order[place] for one in pairs for place in (one, one + 1)])
    ends = np.cumsum([len(one) for one in pairs for _ in range(2)])[:-1]
    equal: dict[str, tuple[Vector, Vector]] = {}
    for other in others:
        values = frame[other].iloc[rows]
        values = values if is_number(values) or is_truth(values) else values.map(spelled, na_action="ignore")
        parts = np.split(pd.factorize(values, use_na_sentinel=False)[0], ends)
        equal[other] = parts[0] == parts[1], parts[2] == parts[3]
    telling = ~np.logical_and.reduce([within for within, _ in equal.values()])
    if telling.sum() < FEWEST_PAIRS:
        return []
    return [
        other
        for other, (within, across) in equal.items()
        if within[telling].mean() >= AGREE
        and len(across)
        and across.mean() < DIFFER
        and _is_coarser(other, name, frame)
    ]


def _told_apart_by(codes: Vector, times: dict[str, Vector]) -> str | None:
    """The first column of far fewer values in which rows with the same value differ, as hardly ever by chance.

    Values are given by their places, and gaps by -1.
    """
    for name, moments in times.items():
        values, number = int(codes.max()) + 1, int(moments.max()) + 1
        known = (codes >= 0) & (moments >= 0) & (codes <= values * MOST_COMPARED / len(codes))
        if not 0 < number <= values / 2 or not known.any():
            continue
        chance = _pairs(codes[known]) * _pairs(moments[known]) / max(1, math.comb(int(known.sum()), 2))
        if chance >= BY_CHANCE and _pairs(codes[known] * number + moments[known]) < AT_ONCE * chance:
            return name
    return None


def _pairs(places: Vector) -> int:
    """How many pairs of rows have the same place."""
    rows = np.unique(places, return_counts=True)[1]
    return int((rows * (rows - 1) // 2).sum())


def _is_coarser(other: str, name: str, frame: pd.DataFrame) -> bool:
    """Whether several persons share a value: a column without that is another name, or follows from the name."""
    return bool(frame[other].nunique() <= frame[name].nunique() / 2)


def _some(places: Vector) -> Vector:
    """At most as many places as are compared, evenly spread."""
    if len(places) <= MOST_PAIRS:
        return places
    return places[np.linspace(0, len(places) - 1, MOST_PAIRS).astype(np.int64)]
