"""What looks wrong with a table that is accepted: columns of which most values say nothing, or too much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.encode import Vector
from tacit.data.schema.cells import with_gaps
from tacit.data.schema.column import Column
from tacit.data.schema.plain import as_text
from tacit.data.schema.schema import Schema
from tacit.data.schema.values import MOST_OUTSIDE, form_of_dates, gaps_of, outside, table_values

if TYPE_CHECKING:
    import pandas as pd

_AS_GAPS = "they count as gaps."


def doubts(frame: pd.DataFrame, schema: Schema) -> list[str]:
    """A sentence about every column whose words, dates or unit seem to be others than the schema's.

    Rows to predict for are never refused for that, and "other" takes every word, also for training. So without
    these sentences, nobody would notice.
    """
    frame = frame.rename(columns=str)
    values = table_values(frame, schema, strict=False)
    each = (_doubt(frame[column.name], column, values[:, place]) for place, column in enumerate(schema.columns))
    return [doubt for doubt in each if doubt is not None]


def _doubt(cells: pd.Series[Any], column: Column, values: Vector) -> str | None:
    cells = with_gaps(cells, gaps_of(column))
    known, name = cells.notna().to_numpy(), f"column {column.name!r}"
    strange = known & np.isnan(values)
    if column.type == "category":
        others = known & (values == len(column.categories))
        if known.any() and others[known].all():
            return f"No value of {name} is one of its categories; {_first(cells, others)} and such are other."
        if _most(strange, known):
            return f"Most values of {name} are not its categories, such as {_first(cells, strange)}: {_AS_GAPS}"
        return None
    if column.type == "date" and _most(strange, known):
        form = form_of_dates(column)
        return f"Most values of {name} are no dates ({form}), such as {_first(cells, strange)}: {_AS_GAPS}"
    wrong = outside(values, column, f"Column {column.name!r}")
    return None if wrong is None else f"{wrong}."


def _most(strange: Vector, known: Vector) -> bool:
    return bool(known.any()) and float(np.mean(strange[known])) > MOST_OUTSIDE


def _first(cells: pd.Series[Any], chosen: Vector) -> str:
    return repr(as_text(cells.iloc[int(chosen.argmax())]))
