"""A data set as stored in its files, before it is split, dealt to clients and prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tacit.data.encode import Vector


@dataclass(frozen=True)
class Raw:
    """Features and targets of all records, and facts about them."""

    features: Vector
    """(records, features); images are flattened and may still be bytes"""
    targets: Vector
    """(records,) int64 labels or floating targets"""
    test: tuple[Vector, Vector] | None = None
    """the publisher's own test set, if there is one"""
    columns: Mapping[str, Vector] = field(default_factory=dict)
    """columns of all records, by name: any of them can identify clients"""
    divisor: float = 1.0
    """the divisor of features: the largest value of the format (255 for bytes), not of the data"""
    standardised: tuple[int, ...] = ()
    """the feature columns whose mean and deviation must be taken from the data"""
