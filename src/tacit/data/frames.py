"""Reads tables from files."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = (",", ";", "\t", "|")
_DECIMAL_COMMA = r"\s*[+-]?\d+(?:,\d+)?\s*"


def read_csv(path: Path) -> pd.DataFrame:
    """Reads a CSV file with a header line.

    The separator is the one of `SEPARATORS` that the header has most of. Between semicolons, numbers may have a
    decimal comma. Text that is not UTF-8 is taken for Latin-1.
    """
    try:
        header = _header(path)
        separator = max(SEPARATORS, key=header.count)
        frame = _read(path, separator, ".")
        if separator == ";" and any(_has_decimal_commas(frame[name]) for name in frame.columns):
            frame = _read(path, separator, ",")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from error
    _refuse_namesakes(path, header, separator)
    return frame


def _header(path: Path) -> str:
    """The line that names the columns."""
    with path.open("rb") as file:
        header = next((line for line in file if line.strip()), b"")
    if not header:
        raise ValueError("it is empty; its first line must name the columns")
    return header.decode("latin-1")


def _refuse_namesakes(path: Path, header: str, separator: str) -> None:
    """Refuse a name that two columns have: pandas would rename the second one, and nobody would hear of it."""
    names = [name.strip() for name in next(csv.reader([header.rstrip("\r\n")], delimiter=separator))]
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path} has two columns {twice!r}; rename or remove one of them")


def _read(path: Path, separator: str, decimal: str) -> pd.DataFrame:
    import pandas as pd

    options = {"sep": separator, "decimal": decimal, "skipinitialspace": True, "low_memory": False}
    try:
        return pd.read_csv(path, **options)
    except UnicodeDecodeError:
        return pd.read_csv(path, encoding="latin-1", **options)


def _has_decimal_commas(column: pd.Series) -> bool:
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return False
    known = column.dropna().astype(str)
    return bool(known.str.contains(",").any() and known.str.fullmatch(_DECIMAL_COMMA).all())


def check_columns(frame: pd.DataFrame, names: Sequence[str], where: str) -> None:
    """Refuses a table that lacks one of the columns, and lists those that it has."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise DataError(f"{where} has no column {missing[0]!r}; it has {', '.join(map(str, frame.columns))}")
