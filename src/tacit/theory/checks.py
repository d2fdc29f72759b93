"""Checks on numbers that the theorems of all papers share."""

from __future__ import annotations

import math

from tacit.errors import RequestError, count

ROUND_OFF = 1e-9
"""Tolerance for round-off where a value meets a limit exactly on paper."""


def not_negative(setting: str, value: float) -> float:
    """Checks that the value is finite and not negative."""
    if not (math.isfinite(value) and value >= 0):
        raise RequestError(f"{setting} must be a finite number of at least 0, not {value!r}")
    return value


def below_one(setting: str, value: float) -> float:
    """Checks that the value lies strictly between 0 and 1."""
    if not 0 < value < 1:
        raise RequestError(f"{setting} must be strictly between 0 and 1, not {value!r}")
    return value


def batch_size(batch: int, records: int) -> int:
    """Checks that a client with this many records can fill the batch."""
    if count("batch", batch) > count("records", records):
        raise RequestError(f"batch must be at most the {records} records of a client, not {batch!r}")
    return int(batch)
