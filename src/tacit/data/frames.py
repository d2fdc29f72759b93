"""Reads tables from files."""

from __future__ import annotations

import codecs
import csv
import difflib
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = (",", ";", "\t", "|")
_SAMPLE_BYTES = 4096
_NO_TEXT = {
    b"\x1f\x8b": "it is compressed by gzip; unpack it first",
    b"PK\x03\x04": "it is a zip archive or an Excel file; unpack it, or save it as CSV",
}
_OR_LATIN = "tacit-or-latin-1"
"""The name of what is done about bytes that are not UTF-8."""
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
"""A number with a decimal comma, as it is read between semicolons."""
_EUROPEAN = re.compile(r"([+-]?\s*[$€£]?\s*)(\d{1,3}(?:\.\d{3})+|\d+),(\d+)(\s*[%$€£]?)")
"""The same with points that mark thousands, or a sign: 1.234,56 €."""
_POINT = re.compile(r"\s*[+-]?\s*[$€£]?\s*\d{1,3}\.\d{3}\s*[%$€£]?\s*")
"""With a point that may mark thousands, or decimals."""
_THOUSAND = re.compile(r"\s*[+-]?\d{1,3},\d{3}\s*")
"""With a comma that may mark thousands, or decimals."""
_THOUSANDS = re.compile(r"\s*[+-]?\d{1,3}(?:,\d{3})*(?:,\d{3}\.\d+|,\d{3},\d{3})\s*")
"""With a comma that can mark nothing but thousands."""
_NUMBER = r"[+-]?\d+(?:[.,]\d+)?"
_GAPS = ["", "NA", "N/A", "n/a", "#NA", "#N/A", "#N/A N/A", "<NA>", "NULL", "null"]
_GAPS += ["NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"]
"""What pandas takes for a gap, but for NOTHING."""
NOTHING = "None"
"""What Python writes for a gap. Among words it may be an answer (no damage, no insurance)."""


def read_csv(path: Path) -> pd.DataFrame:
    """Reads a CSV file with a header line. Columns of one name keep it: `check_columns` refuses to use them.

    The separator is the one of `SEPARATORS` that the header has most of. Between semicolons, a comma between
    digits is a decimal comma. Space around the names of columns does not count. Text is UTF-8, or UTF-16 if it
    begins as such. Bytes that are not UTF-8 are taken for Latin-1.

    Guarantee: what a cell means depends on nothing in other rows: one record must not decide how all others are
    read. So bytes and commas are read one by one, and "None" is a word here: the schema says what it means.
    """
    try:
        encoding = _encoding(path)
        header = _header(path, encoding)
        separator = max(SEPARATORS, key=header.count)
        frame = _read(path, encoding, separator)
    except (OSError, ValueError) as error:
        why = str(error).removeprefix("Error tokenizing data. C error: ").strip()
        raise DataError(f"{path} cannot be read as CSV: {why}") from error
    for name in frame.columns:
        frame[name] = _alone(frame[name], f"{path}: column {name.strip()!r}", commas=separator == ";")
    names = [name.strip() for name in next(csv.reader([header.rstrip("\r\n")], delimiter=separator))]
    return _with_namesakes(frame.rename(columns=str.strip), names, path)


def _encoding(path: Path) -> str:
    """How the text is written, from its first bytes; refuses files that are no text."""
    with path.open("rb") as file:
        start = file.read(_SAMPLE_BYTES)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for mark, what in _NO_TEXT.items():
        if start.startswith(mark):
            raise ValueError(what)
    if b"\0" in start:
        raise ValueError("it holds zero bytes, which no text has; save it as UTF-8")
    return "utf-8"


def _header(path: Path, encoding: str) -> str:
    """The line that names the columns."""
    readable = "latin-1" if encoding == "utf-8" else encoding
    with path.open(encoding=readable) as file:
        header = next((line for line in file if line.strip()), "")
    if not header:
        raise ValueError("it is empty; its first line must name the columns")
    if header.startswith("sep="):
        raise ValueError(
            f"its first line is {header.strip()!r}: remove it, so that the first line names the columns"
        )
    return header


def _with_namesakes(frame: pd.DataFrame, names: list[str], path: Path) -> pd.DataFrame:
    """The table with names as its file has them: pandas renames the second of two, and nobody would hear of it.

    A record in place of the names often holds a value twice. It is refused: a draft would make its values public.
    """
    doubled = [place for place, name in enumerate(names) if name and names.count(name) > 1]
    if not doubled:
        return frame
    if (
        len(names) != frame.shape[1]
        or any(re.fullmatch(_NUMBER, name) for name in names)
        or any(frame.iloc[:, place].astype(str).str.strip().eq(names[place]).any() for place in doubled)
    ):
        raise DataError(
            f"{path} has two columns {names[doubled[0]]!r}, and its first line seems to be a record: put a line "
            "with the names of the columns before it. If it names them, rename or remove one of the two"
        )
    made = list(frame.columns)
    for place in doubled:
        made[place] = names[place]
    return frame.set_axis(made, axis=1)


def _read(path: Path, encoding: str, separator: str) -> pd.DataFrame:
    import pandas as pd

    errors = _OR_LATIN if encoding == "utf-8" else "strict"
    with warnings.catch_warnings():
        # Without index_col, pandas takes values beyond the names for names of rows, and moves all others along.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return pd.read_csv(
                path,
                encoding=encoding,
                encoding_errors=errors,
                sep=separator,
                skipinitialspace=True,
                low_memory=False,
                keep_default_na=False,
                na_values=_GAPS,
                index_col=False,
            )
        except pd.errors.ParserWarning as error:
            raise ValueError(
                "a line has more values than the first line has names: name every column, also one of row names"
            ) from error


def _latin(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error(_OR_LATIN, _latin)


def _alone(column: pd.Series[Any], where: str, *, commas: bool) -> pd.Series[Any]:
    """A column of words with every cell read by itself: gaps and, with `commas`, numbers with a decimal comma."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return column
    # Where one number is too large for pandas, it keeps the gaps of the whole column as words.
    column = column.mask(column.isin(_GAPS))
    if not commas:
        return column
    codes, found = pd.factorize(column)
    words = [one for one in found if isinstance(one, str)]
    european = {one: said for one in words if (said := _EUROPEAN.fullmatch(one.strip()))}
    if not european:
        return column
    _refuse_either(words, _THOUSAND, _THOUSANDS.fullmatch, where, "its comma says between semicolons")
    _refuse_either(words, _POINT, lambda one: one in european and "." in one, where, "its point says")
    plain = {one: f"{said[1]}{said[2].replace('.', '')}.{said[3]}{said[4]}" for one, said in european.items()}
    read = [plain.get(one, one) for one in found]
    made = pd.Series(np.array([*read, np.nan], dtype=object)[codes], index=column.index, name=column.name)
    numbers = pd.to_numeric(made, errors="coerce")
    return numbers if numbers.notna().equals(made.notna()) else made


def _refuse_either(
    words: list[str], either: re.Pattern[str], thousands: Callable[[str], object], where: str, what: str
) -> None:
    """Refuses a number whose separator may mark decimals, where another one's marks thousands."""
    unclear = next((one for one in words if either.fullmatch(one)), None)
    surely = next((one for one in words if thousands(one)), None)
    if unclear is not None and surely is not None:
        raise DataError(
            f"{where} holds {surely!r}, so {unclear!r} may be a thousand times what {what}: write numbers "
            "without separators of thousands"
        )


def check_columns(frame: pd.DataFrame, names: Sequence[str], where: str) -> None:
    """Refuses a table that lacks one of the columns, and lists those that it has; or that has two of its name."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        found = list(map(str, frame.columns))
        plain = {name.casefold().strip(): name for name in found}
        close = difflib.get_close_matches(missing[0].casefold(), plain, n=1, cutoff=0.8)
        hint = f"; did you mean {plain[close[0]]!r}? It" if close else "; it"
        raise DataError(f"{where} has no column {missing[0]!r}{hint} has {', '.join(found)}")
    doubled = namesakes(frame)
    twice = next((name for name in names if name in doubled), None)
    if twice is not None:
        raise DataError(
            f"{where} has two columns {twice!r}, so nobody knows which is meant: rename or remove one of "
            "them, or do not use this name"
        )


def namesakes(frame: pd.DataFrame) -> list[str]:
    """The names that several columns have."""
    return [str(name) for name in frame.columns[frame.columns.duplicated()].unique()]


def without_namesakes(frame: pd.DataFrame, used: Sequence[str], where: str) -> pd.DataFrame:
    """The table without columns that share a name, none of which may be among the used ones."""
    check_columns(frame, used, where)
    return frame.loc[:, ~frame.columns.duplicated(keep=False)]
