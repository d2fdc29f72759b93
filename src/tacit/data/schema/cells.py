"""Reads the cells of a column one by one.

Guarantee: what a cell means depends on that cell and on the type that the table states for its column, and on
nothing in other rows. pandas reads columns, and one cell may decide how it reads all others: 1 and True are the
same to it, whichever comes first; one complex number makes all numbers complex; and one time in nanoseconds makes
all dates after 2262 gaps.
"""

from __future__ import annotations

import datetime
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.encode import Vector
from tacit.data.schema.plain import alike, as_text, same_name
from tacit.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_WRITTEN_NUMBER = r"[+-]?\s*[$€£]?\s*(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?\s*[%$€£]?"
_DECORATION = r"[$€£%,\s]"

_FINER_THAN_MICROSECONDS = r"(\.\d{6})\d+"

_PER_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}
"""How many units of time a day has."""


def distinct_cells(column: pd.Series[Any]) -> tuple[Vector, list[Any]]:
    """The different cells of a column, and the place of every row's cell among them: -1 for a gap.

    >>> import pandas as pd
    >>> distinct_cells(pd.Series([True, 1, None, 1], dtype=object))
    (array([ 0,  1, -1,  1]), ['true', '1'])
    """
    import pandas as pd

    column = _apart(column)
    if column.dtype == object and pd.api.types.infer_dtype(column, skipna=True) != "string":
        column = column.map(as_text, na_action="ignore")
    codes, found = pd.factorize(column)
    return codes, list(found)


def _apart(column: pd.Series[Any]) -> pd.Series[Any]:
    """The column with real numbers as such: pandas writes all numbers beside a complex one as complex."""
    import pandas as pd

    if column.dtype.kind != "c":
        return column
    cells = [cell.real if cell.imag == 0 else cell for cell in column]
    return pd.Series(cells, index=column.index, name=column.name, dtype=object)


def with_gaps(column: pd.Series[Any], gaps: tuple[str, ...]) -> pd.Series[Any]:
    """The column without the values that mean that nothing is known."""
    if not gaps:
        return column
    codes, found = distinct_cells(column)
    meant = {alike(gap) for gap in gaps}
    unknown = np.array([*(alike(value) in meant for value in found), False])
    return column.mask(unknown[codes])


def as_names(column: pd.Series[Any], what: str) -> pd.Series[Any]:
    """The names of clients or persons as text, gaps as they are: the same text for the same name.

    Numbers of more than 15 digits are refused if pandas has made them floats, as it does beside a gap: several
    names would have become one.
    """
    import pandas as pd

    codes, found = distinct_cells(column)
    if any(isinstance(name, float) and abs(name) >= 2**53 for name in found):
        raise DataError(
            f"{what} holds numbers of more than 15 digits beside gaps, which pandas reads without their last "
            "digits: remove the rows with gaps, or write a letter before every number"
        )
    names = np.array([*(same_name(name) for name in found), None], dtype=object)
    return pd.Series(names[codes], index=column.index, name=column.name, dtype=object)


def in_order(names: Vector) -> Vector:
    """Names as what they are sorted by: as numbers if all of them are whole, so that 9 comes before 10.

    The order follows from the names alone.
    """
    found = set(names.tolist())
    if not all(name.removeprefix("-").isdecimal() for name in found):
        return names
    numbers: Vector = np.array([int(name) for name in names.tolist()], dtype=object)
    return numbers


def as_numbers(column: pd.Series[Any], unit: str = "") -> pd.Series[Any]:
    """Text as numbers, with thousands separators, a currency or a percent sign, too; what is none is missing.

    The unit may stand behind a number; another one makes it a word. Only different texts are read.

    >>> import pandas as pd
    >>> as_numbers(pd.Series(["80 kg", "80", "80000 g"]), unit="kg").tolist()
    [80.0, 80.0, nan]
    >>> as_numbers(pd.Series(["1,234.5", "$ 20", "7%", "12,5", "many"])).tolist()
    [1234.5, 20.0, 7.0, nan, nan]
    """
    import pandas as pd

    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_any_real_numeric_dtype(column):
        return column
    if column.dtype.kind in "mMc" or isinstance(column.dtype, pd.PeriodDtype):
        # pandas counts times in units that depend on the column, and makes a number of their gaps.
        return pd.Series(np.nan, index=column.index, name=column.name)
    if column.dtype == object:
        # As in a column of truth values alone, which becomes one of objects by a single gap. `map` would look for
        # a type that suits all cells, such as times.
        cells = [float(cell) if isinstance(cell, bool | np.bool_) else cell for cell in column]
        column = pd.Series(cells, index=column.index, name=column.name, dtype=object)
    codes, found = distinct_cells(column)
    words = pd.Series(found, dtype=object)
    if unit:
        words = words.map(lambda word: word.strip().removesuffix(unit) if isinstance(word, str) else word)
    each = np.append(_read_numbers(words), np.nan)
    return pd.Series(each[codes], index=column.index, name=column.name)


def _read_numbers(words: pd.Series[Any]) -> Vector:
    """Different texts as numbers."""
    import pandas as pd

    numbers: Vector = pd.to_numeric(words, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
    left = np.isnan(numbers)
    if left.any():
        written = words[left].astype(str).str.strip()
        plain = written.where(written.str.fullmatch(_WRITTEN_NUMBER)).str.replace(_DECORATION, "", regex=True)
        numbers[left] = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return numbers


def as_dates(column: pd.Series[Any], format: str = "") -> pd.Series[Any]:
    """The column as times, in microseconds at the finest; what cannot be read is missing."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        column = _apart(column)
        times = np.zeros(len(column), dtype=bool)
        if column.dtype == object and pd.api.types.infer_dtype(column, skipna=True) != "string":
            times = np.array([isinstance(cell, datetime.date) for cell in column], dtype=bool)
        if pd.api.types.is_any_real_numeric_dtype(column):
            # As numbers, "2024.10" has lost its zero, unless a word in the column has kept it.
            whole = (column % 1 == 0) & (column.abs() < 2**53)
            column = column.where(whole.fillna(False)).astype("Int64")
        if not pd.api.types.is_datetime64_any_dtype(column):
            column = column.map(as_text, na_action="ignore").astype("string")
            column = column.str.replace(_FINER_THAN_MICROSECONDS, r"\1", regex=True)
            if format:
                # So have days of one digit.
                digits = len(datetime.datetime(2000, 11, 11).strftime(format))
                column = column.str.replace(r"^\d+$", lambda found: found.group().zfill(digits), regex=True)
        dates = pd.to_datetime(column, format=format or "ISO8601", errors="coerce", utc=True)
        if format and times.any():
            # Whatever stands beside them, times are not written in any format.
            dates = dates.mask(times, pd.to_datetime(column, format="ISO8601", errors="coerce", utc=True))
    return dates.dt.tz_localize(None)


def as_days(dates: pd.Series[Any]) -> Vector:
    """Times as days since 1970; gaps are NaN.

    >>> import pandas as pd
    >>> as_days(as_dates(pd.Series(["2020-01-01 12:00", "9999-12-31", "soon"]))).tolist()
    [18262.5, 2932896.0, nan]
    """
    times = dates.to_numpy()
    whole, rest = np.divmod(times.astype(np.int64), _PER_DAY[np.datetime_data(times.dtype)[0]])
    days: Vector = whole + rest / _PER_DAY[np.datetime_data(times.dtype)[0]]
    days[np.isnat(times)] = np.nan
    return days
