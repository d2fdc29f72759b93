"""Reads tables from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


def read_csv(path: Path) -> pd.DataFrame:
    """Reads a CSV file with a header line."""
    import pandas as pd

    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from error


def check_columns(frame: pd.DataFrame, names: Sequence[str], where: str) -> None:
    """Refuses a table that lacks one of the columns, and lists those that it has."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise DataError(f"{where} has no column {missing[0]!r}; it has {', '.join(map(str, frame.columns))}")
