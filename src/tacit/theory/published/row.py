"""One published label, and what it was worth."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """A label of a paper, the setting it was given for, and the true epsilons of the paper's noise in it."""

    setting: str
    label: float
    delta: float
    records: int
    """of a client; for client-level privacy the number of clients"""
    batch: float
    """records drawn in a round; for client-level privacy the expected number of clients"""
    rounds: int
    """releases of noisy sums"""
    noise_multiplier: float
    """of the paper's formula: the standard deviation on the sum over the bound of one record"""
    true: dict[str, float] = field(hash=False)
    """by how sampling and neighbours are read: the exact epsilon of that noise"""
    factors: dict[str, float] = field(default_factory=dict, hash=False)
    """what else there is to compare"""
    remark: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        plain = asdict(self)
        plain["true"] = {name: None if math.isinf(value) else value for name, value in self.true.items()}
        return plain
