"""Published tables with a known schema: categories are numbered in the order of the schema, not as found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tacit.data.encode import Vector
from tacit.data.frames import check_columns, read_csv
from tacit.data.raw import Raw
from tacit.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PublishedTable:
    """The meaning of a table's columns. Categories are public, because the table's description lists them."""

    target: str
    records: int
    numbers: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]
    standardised: tuple[str, ...]
    classes: tuple[str, ...] | None = None


INSURANCE = PublishedTable(
    target="charges",
    records=1338,
    numbers=("age", "bmi", "children"),
    categories={
        "sex": ("female", "male"),
        "smoker": ("no", "yes"),
        "region": ("northeast", "northwest", "southeast", "southwest"),
    },
    standardised=("age", "bmi"),
)
"""ISRL-DP (Lowy & Razaviyayn 2023), Appendix I.2."""

_NO_YES = ("no", "yes")
_HOW_OFTEN = ("no", "Sometimes", "Frequently", "Always")
_CONTINUOUS = ("Age", "Height", "Weight", "FCVC", "NCP", "CH2O", "FAF", "TUE")

OBESITY = PublishedTable(
    target="NObeyesdad",
    records=2111,
    numbers=_CONTINUOUS,
    categories={
        "Gender": ("Female", "Male"),
        "family_history_with_overweight": _NO_YES,
        "FAVC": _NO_YES,
        "CAEC": _HOW_OFTEN,
        "SMOKE": _NO_YES,
        "SCC": _NO_YES,
        "CALC": _HOW_OFTEN,
        "MTRANS": ("Walking", "Bike", "Motorbike", "Automobile", "Public_Transportation"),
    },
    standardised=_CONTINUOUS,
    classes=(
        "Insufficient_Weight",
        "Normal_Weight",
        "Overweight_Level_I",
        "Overweight_Level_II",
        "Obesity_Type_I",
        "Obesity_Type_II",
        "Obesity_Type_III",
    ),
)
"""ISRL-DP (Lowy & Razaviyayn 2023), Appendix I.3."""


def read_table(path: Path, schema: PublishedTable) -> Raw:
    """The table with categories as numbers 0, 1, ...; numeric columns come first, then categories."""
    frame = read_csv(path)
    names = [*schema.numbers, *schema.categories]
    check_columns(frame, [*names, schema.target], str(path))
    if len(frame) != schema.records:
        raise DataError(f"{path} holds {len(frame)} records instead of {schema.records}; fetch it again")
    numbers = [_numbers(frame, name, path) for name in schema.numbers]
    codes = [_codes(frame, name, values, path) for name, values in schema.categories.items()]
    if schema.classes is None:
        targets = _numbers(frame, schema.target, path)
    else:
        targets = _codes(frame, schema.target, schema.classes, path)
    return Raw(
        np.stack([*numbers, *codes], axis=1),
        targets,
        columns={name: frame[name].to_numpy() for name in names},
        standardised=tuple(names.index(name) for name in schema.standardised),
    )


def _numbers(frame: pd.DataFrame, name: str, path: Path) -> Vector:
    import pandas as pd

    values: Vector = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64)
    if not np.isfinite(values).all():
        row = int((~np.isfinite(values)).argmax())
        raise DataError(f"{path}, row {row + 1}: {name} is {frame[name].iloc[row]!r}, which is not a number")
    return values


def _codes(frame: pd.DataFrame, name: str, values: tuple[str, ...], path: Path) -> Vector:
    import pandas as pd

    codes = pd.Index(values).get_indexer(pd.Index(frame[name]))
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        raise DataError(f"{path}, row {row + 1}: {name} is {frame[name].iloc[row]!r}, not one of {values}")
    labels: Vector = codes.astype(np.int64)
    return labels
