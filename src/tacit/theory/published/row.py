"""One published label, and its true epsilons."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """A label of a paper, the setting it was given for, and the true epsilons of the paper's noise there."""

    setting: str
    label: float
    delta: float
    records: int
    """records of a client; for client-level privacy the number of clients"""
    batch: float
    """records drawn in a round; for client-level privacy the expected number of clients"""
    rounds: int
    """number of releases of noisy sums"""
    noise_multiplier: float
    """from the paper's formula: the standard deviation on the sum, divided by the bound of one record"""
    true: dict[str, float] = field(hash=False)
    """the exact epsilon of that noise, for each reading of sampling and neighbours"""
    factors: dict[str, float] = field(default_factory=dict, hash=False)
    """other numbers to compare"""
    remark: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        plain = asdict(self)
        plain["true"] = {name: None if math.isinf(value) else value for name, value in self.true.items()}
        return plain
