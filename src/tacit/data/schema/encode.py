"""A table's plain numbers as features of about size 1, by public rules.

    number, date   (x - middle) / half of the range, so -1 to 1 unless a middle or limits are given; a gap is 0
    two categories -1 for the first, 1 for the second; a gap is 0
    categories     1 in the place of the category, 0 elsewhere; a gap is 0 everywhere
    indicator      1 for a gap, 0 otherwise, if the schema asks for it

Every feature is the value of one *term* of the schema, a number times a slope plus an offset inside limits. The
numpy code here and the exported PyTorch module follow the same terms, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.data.encode import Vector
from tacit.data.schema.column import Column
from tacit.data.schema.schema import Schema


@dataclass(frozen=True)
class Term:
    """One feature: what it is called and how it follows from its column."""

    place: int
    """the column's position in the schema"""
    kind: str
    """"number", "sign" (of two categories), "is" (one of several) or "missing" """
    name: str
    code: int = 0
    """the position of the category of an "is" """


def terms(schema: Schema) -> tuple[Term, ...]:
    """The features of a schema, in order."""
    found = []
    for place, column in enumerate(schema.columns):
        if column.type != "category":
            found.append(Term(place, "number", column.name))
        elif len(column.categories) == 2 and not column.other:
            found.append(Term(place, "sign", f"{column.name} = {column.categories[1]}"))
        else:
            found += [
                Term(place, "is", f"{column.name} = {category}", code)
                for code, category in enumerate(column.categories)
            ]
            if column.other:
                found.append(Term(place, "is", f"{column.name} = other", len(column.categories)))
        if column.missing == "indicate":
            found.append(Term(place, "missing", f"{column.name} is missing"))
    return tuple(found)


def feature_names(schema: Schema) -> tuple[str, ...]:
    """The names of the features, in order."""
    return tuple(term.name for term in terms(schema))


def record_shape(schema: Schema) -> tuple[int, ...]:
    """The shape of a record's features: those of a row, or a bundle of rows where a record is a person."""
    features = len(terms(schema))
    return (features,) if schema.person is None else (schema.rows, features + 2)


def encode(values: Vector, schema: Schema, dtype: type[np.floating[Any]] = np.float32) -> Vector:
    """Features of rows of `table_values`: (rows, features)."""
    features = np.empty((len(values), len(terms(schema))), dtype=dtype)
    for position, term in enumerate(terms(schema)):
        column = values[:, term.place]
        if term.kind == "missing":
            features[:, position] = np.isnan(column)
        elif term.kind == "is":
            features[:, position] = column == term.code
        else:
            scaled = 2 * column - 1 if term.kind == "sign" else scale(column, schema.columns[term.place])
            features[:, position] = np.nan_to_num(scaled, nan=0.0)
    return features


def scale(column: Vector, said: Column) -> Vector:
    """Numbers clipped to their range or limits, less the middle, over half of the range; gaps stay NaN."""
    clipped = np.clip(column, *said.counted)
    scaled: Vector = ((np.log(clipped) if said.scale == "log" else clipped) - said.centre) / said.half
    return scaled
