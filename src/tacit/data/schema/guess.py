"""What the name and the values of a column suggest about it, for a draft: gaps, numbers, codes, dates, ranges."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.encode import Vector
from tacit.data.frames import NOTHING
from tacit.data.schema.cells import as_dates, as_numbers, with_gaps
from tacit.data.schema.plain import alike, as_text, spelled

if TYPE_CHECKING:
    import pandas as pd

TARGETS = ("target", "label", "outcome", "class", "y")
PERSONS = re.compile(
    r"^(?:patient|person|subject|participant|customer|user|member|student|individual)(?:[_\W]?(?:id|no|nr|number|code))?$"
    r"|^(?:id|idcode|idnum|pid|uid)$",
    re.IGNORECASE,
)
COUNTS = re.compile(
    r"^(?:n|num|number|count|no)[_\W]|(?:^|[_\W])(?:count|counts|times|children|kids|events|admissions)$"
    r"|(?:vis|visits|days)$",
    re.IGNORECASE,
)
CODES = re.compile(
    r"(?:^|[_\W])(?:code|type|kind|plan|region|race|ethnicity|marital|status|category|sector|industry|occupation"
    r"|zip|postcode|state|county|district|precinct|ward|department|country)(?:[_\W]?(?:code|no|nr))?\d*$",
    re.IGNORECASE,
)
"""Names of columns whose whole numbers have no order."""

KNOWN_RANGES: dict[str, tuple[float, float, str]] = {
    "age": (0, 100, "years"),
    "bmi": (10, 60, "kg/m2"),
    "month": (1, 12, ""),
    "hour": (0, 24, "hours"),
    "percent": (0, 100, "%"),
    "systolic": (70, 220, "mmHg"),
    "diastolic": (40, 130, "mmHg"),
    "heart_rate": (30, 200, "1/min"),
}
"""Public ranges of usual measurements, by name."""

MANY = 20
"""A column of words with at most this many different ones is a category with all of them."""

GAP_WORDS = frozenset(
    ["", "?", ".", "..", "na", "n/a", "n.a.", "#n/a", "nan", "null", "unk", "unknown", "unknown/invalid"]
) | frozenset(["not available", "not known"])
NOTHING_WORDS = frozenset(["-", "--", "none", "missing", "nil"])
"""Among numbers these mean that nothing is known; among words, "none" is an answer."""

GAP_NUMBERS = frozenset([-9, -99, -999, -9999])
LARGE_GAP_NUMBERS = frozenset([999, 9999, 99999])
"""Values that usually mean that nothing is known: below 0 among others from 0 on, or far above all others."""

MOSTLY, FEW_WORDS = 0.9, 10
"""A column is one of numbers if at least this share of it is, with at most so many different words in between."""

LONG_WORD = 3
"""Words of so many letters mean the same in capitals."""

SHORT_WORDS = frozenset(["f", "h", "j", "m", "n", "o", "w", "y", "ja", "no", "si"])
"""So do these short ones: answers, and sexes."""

WITH_UNIT = re.compile(r"([+-]?\d+(?:[.,]\d+)*)\s*([^\W\d_][^\d\s.,;:-]*)")
PLAIN_NUMBER = re.compile(r"[+-]?\d+(?:[.,]\d+)*")

CENTRAL = (0.4, 0.6)
"""If the median lies elsewhere in the range, it is proposed as the middle."""

TAIL = 0.01
"""The share of a target's values at each end that a range need not reach."""

DAYS = (
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d.%m.%Y",
    "%Y/%m/%d",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%d-%b-%Y",
    "%d %b %Y",
    "%b %d, %Y",
)
DATE_FORMATS = ("", *DAYS, *(f"{day} {time}" for day in DAYS[:4] for time in ("%H:%M:%S", "%H:%M")))
COMPACT_DATE = "%Y%m%d"
SHORT_YEARS = ("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%b-%y")
"""With years of two digits: 31 is read as 2031, 69 as 1969."""


def is_number(column: pd.Series[Any]) -> bool:
    """Whether pandas read the column as numbers."""
    import pandas as pd

    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def holds_several(column: pd.Series[Any]) -> bool:
    """Whether a cell is a list, as Parquet files and frames have them: it can be neither compared nor encoded."""
    return column.dtype == object and any(isinstance(cell, list | dict | np.ndarray) for cell in column)


def is_truth(column: pd.Series[Any]) -> bool:
    """Whether all values are true or false, also beside gaps, where pandas reads them as objects."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(column):
        return True
    known = column.dropna() if column.dtype == object else column[:0]
    return len(known) > 0 and all(isinstance(value, bool | np.bool_) for value in pd.unique(known))


def nothing_as_gap(column: pd.Series[Any]) -> pd.Series[Any]:
    """The column with "None" as a gap if every other value has a digit, as numbers, dates and codes do."""
    import pandas as pd

    nothing = (column == NOTHING).to_numpy()
    if not nothing.any():
        return column
    others = pd.Series(column[~nothing].dropna().unique())
    worded = len(others) and not others.astype(str).str.contains(r"\d").all()
    return column if worded else column.mask(nothing)


def without_gaps(column: pd.Series[Any]) -> tuple[pd.Series[Any], tuple[str, ...]]:
    """The column as numbers if it seems to be one of numbers, and the values that seem to mean nothing is known.

    Numbers may be written with thousands separators, a currency or a percent sign (`as_numbers`).
    """
    import pandas as pd

    if is_truth(column) or pd.api.types.is_datetime64_any_dtype(column):
        return column, ()
    if is_number(column):
        gaps = _gap_number(column)
        return (with_gaps(column, gaps) if gaps else column), gaps
    words = [as_text(value) for value in pd.unique(column.dropna())]
    numbers = as_numbers(column)
    strange = numbers.isna() & column.notna()
    others = tuple(sorted({as_text(value) for value in pd.unique(column[strange])}))
    known = numbers.dropna()
    only_gaps = all(word.lower() in GAP_WORDS | NOTHING_WORDS for word in others)
    mostly = (
        len(others) <= FEW_WORDS and len(known) >= MOSTLY * int(column.notna().sum()) and known.nunique() > MANY
    )
    if len(known) and (only_gaps or mostly):
        return numbers, others
    gaps = tuple(sorted(word for word in words if word.lower() in GAP_WORDS))
    return (with_gaps(column, gaps) if gaps else column), gaps


def _gap_number(column: pd.Series[Any]) -> tuple[str, ...]:
    least, most = column.min(), column.max()
    above, below = column[column != least], column[column != most]
    if least in GAP_NUMBERS and len(above) and above.min() >= 0:
        return (as_text(least),)
    if most in LARGE_GAP_NUMBERS and len(below) and below.max() < most / 3:
        return (as_text(most),)
    return ()


def date_format(name: str, known: pd.Series[Any]) -> str | None:
    """How a column's dates are written, "" for ISO 8601; None if it holds no dates."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(known):
        return ""
    if is_number(known):
        written = "date" in name.lower() and bool(((known >= 19_000_101) & (known <= 21_001_231)).all())
        return COMPACT_DATE if written and _are_dates(known.astype("int64"), COMPACT_DATE) else None
    return next((format for format in DATE_FORMATS if _are_dates(known, format)), None)


def short_date_format(known: pd.Series[Any]) -> str | None:
    """How dates with years of two digits are written; None if the column holds no such dates."""
    if is_number(known):
        return None
    return next((format for format in SHORT_YEARS if _are_dates(known, format)), None)


def without_unit(column: pd.Series[Any]) -> tuple[pd.Series[Any], str]:
    """A column of many numbers with one unit behind them ("80 kg") without it, and the unit; "" for any other."""
    import pandas as pd

    if is_number(column) or is_truth(column) or column.dtype.kind == "M":
        return column, ""
    codes, found = pd.factorize(column)
    words = [as_text(word) for word in found]
    read = [WITH_UNIT.fullmatch(word) for word in words]
    units = {said[2] for said in read if said}
    others = [word for word, said in zip(words, read, strict=True) if not said]
    if len(units) != 1 or len(words) - len(others) <= MANY:
        return column, ""
    if not all(word.lower() in GAP_WORDS | NOTHING_WORDS or PLAIN_NUMBER.fullmatch(word) for word in others):
        return column, ""
    plain = [said[1] if said else word for word, said in zip(words, read, strict=True)]
    table = np.array([*plain, np.nan], dtype=object)
    return pd.Series(table[codes], index=column.index, name=column.name), units.pop()


def _are_dates(known: pd.Series[Any], format: str) -> bool:
    head = known.head(1000)
    return bool(as_dates(head, format).notna().all()) and bool(as_dates(known, format).notna().all())


def known_range(name: str, numbers: Vector) -> tuple[float, float, str] | None:
    """The public range that a column's name suggests, unless its values show that it means something else."""
    usual = KNOWN_RANGES.get(name.lower())
    if usual is None:
        return None
    low, high = np.quantile(numbers, [0.01, 0.99])
    fits = usual[0] <= low and high <= usual[1] and high - low >= (usual[1] - usual[0]) / 10
    return usual if fits else None


def nice_range(numbers: Vector, share: float) -> tuple[float, float]:
    """Most of the numbers, with ends rounded outwards to two digits of the width; above 0 if they all are.

    >>> nice_range(np.array([0.2471, 3.0, 61.7]), 0.0)
    (0.2, 62.0)
    """
    low, high = (float(end) for end in np.quantile(numbers, [share, 1 - share]))
    if low == high:
        low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        return low, low + 1
    unit = 10.0 ** math.floor(math.log10(high - low) - 1)
    start, end = math.floor(low / unit) * unit, math.ceil(high / unit) * unit
    if low > 0 and start <= 0:
        digit = 10.0 ** math.floor(math.log10(low))
        start = math.floor(low / digit) * digit
    return float(f"{start:.12g}"), float(f"{end:.12g}")


def nice_middle(numbers: Vector, low: float, high: float) -> float | None:
    """The median, rounded, as a usual value of these numbers; None if it is about the middle of their range."""
    median = float(np.median(numbers))
    if CENTRAL[0] <= (median - low) / (high - low) <= CENTRAL[1]:
        return None
    unit = 10.0 ** math.floor(math.log10(high - low) - 1)
    return min(max(float(f"{round(median / unit) * unit:.12g}"), low), high)


def within_reach(numbers: Vector, tail: float = TAIL) -> Vector:
    """The numbers without the far ends of long tails, which would widen the range and so the noise.

    >>> float(within_reach(np.array([*range(101), 4000.0])).max())
    119.786
    """
    low, high = np.quantile(numbers, [tail, 1 - tail])
    reach = (high - low) / 5
    if reach == 0:
        return numbers
    return np.clip(numbers, low - reach, high + reach)


def distinct(known: pd.Series[Any]) -> list[str]:
    """The different values as text: numbers by size, words by their letters; one of those that mean the same."""
    return list(rows_by_value(known))


def rows_by_value(known: pd.Series[Any]) -> dict[str, int]:
    """How many rows hold each of the different values, in the order of `distinct`.

    Of words that differ in case or space alone, the most common spelling stands for all. Short ones may be codes
    in which case tells apart, as in genotypes, so they stay.
    """
    counts = dict(known.value_counts().items())
    values = sorted(counts) if is_number(known) else sorted(counts, key=as_text)
    texts: dict[str, str] = {}
    rows: Counter[str] = Counter()
    for value in values:
        texts.setdefault(alike(value), as_text(value))
        rows[alike(value)] += int(counts[value])
    usual: dict[str, str] = {}
    for word, _ in rows.most_common():
        usual.setdefault(_spelling(word), word)
    together: Counter[str] = Counter()
    for word, number in rows.items():
        together[usual[_spelling(word)]] += number
    return {text: together[word] for word, text in texts.items() if word in together}


def _spelling(word: str) -> str:
    return spelled(word) if len(word) >= LONG_WORD or spelled(word) in SHORT_WORDS else word
