"""Plain numbers for events: values from files or numpy are checked and converted to Python numbers."""

from __future__ import annotations

import math
import numbers
from typing import Any

from tacit.errors import RequestError, count


def number(setting: str, value: Any) -> float:
    """Return the value as a float if it is a finite number; raise `RequestError` otherwise."""
    try:
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise RequestError(f"{setting} must be a finite number, not {value!r}")
        return float(value)
    except OverflowError as error:
        raise RequestError(f"{setting} must be a number that fits into a float") from error


def whole(setting: str, value: Any) -> int:
    """Return the value as an int if its type is an integer type; raise `RequestError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise RequestError(f"{setting} must be a whole number, not {value!r}")
    return int(value)


def keep_numbers(event: object, *settings: str) -> None:
    """Convert the named settings of a frozen event to plain floats."""
    for setting in settings:
        object.__setattr__(event, setting, number(setting, getattr(event, setting)))


def keep_whole(event: object, *settings: str) -> None:
    """Convert the named settings of a frozen event to plain ints of at least one."""
    for setting in settings:
        object.__setattr__(event, setting, count(setting, whole(setting, getattr(event, setting))))


def flag(setting: str, value: Any) -> bool:
    """Return the value if it is true or false; raise `RequestError` otherwise."""
    if not isinstance(value, bool):
        raise RequestError(f"{setting} must be true or false, not {value!r}")
    return value


def batch_of(records: Any, batch: Any, *, replacement: bool) -> tuple[int, int]:
    """Return the numbers of records and of a batch if the batch can be drawn; raise `RequestError` otherwise."""
    records = count("records", whole("records", records))
    batch = count("batch", whole("batch", batch))
    if batch > records and not replacement:
        raise RequestError(f"batch must be at most records = {records!r} without replacement, not {batch!r}")
    return records, batch


def check_delta(value: float) -> float:
    """Return the value if it is a valid delta, between 0 and 1; raise `RequestError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value < 1:
        raise RequestError(
            f"delta must be a number above 0 and below 1, not {value!r}; well below 1/records is usual"
        )
    return float(value)
