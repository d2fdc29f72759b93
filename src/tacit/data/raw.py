"""A data set as its files hold it, before it is split, dealt to clients and prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tacit.data.encode import Vector


@dataclass(frozen=True)
class Raw:
    """Features and targets of all records, and what is known about them."""

    features: Vector
    """(records, features); images are flattened and may still be bytes"""
    targets: Vector
    """(records,) int64 labels or floating targets"""
    test: tuple[Vector, Vector] | None = None
    """The publisher's own test set, where there is one"""
    columns: Mapping[str, Vector] = field(default_factory=dict)
    """Columns by name, of all records: any of them can tell clients apart"""
    divisor: float = 1.0
    """What features are divided by: the largest value of the format (255 for bytes), not of the data"""
    standardised: tuple[int, ...] = ()
    """The feature columns whose mean and deviation have to be looked up in the data"""
