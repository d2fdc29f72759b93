"""The setting of SoteriaFL (Li et al. 2022): the numbers that its corollaries and tables depend on.

The letters of the formulas are those of `tacit.theory.soteriafl`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.errors import count, positive
from tacit.theory.checks import below_one, not_negative
from tacit.theory.soteriafl.compression import compression_load


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The numbers that the paper's results depend on."""

    clients: int
    records: int
    dim: int
    omega: float
    epsilon: float
    delta: float
    smoothness: float = 1.0
    gradient_bound: float = 1.0
    loss_gap: float = 1.0

    def __post_init__(self) -> None:
        for setting in ("clients", "records", "dim"):
            count(setting, getattr(self, setting))
        for setting in ("epsilon", "smoothness", "gradient_bound", "loss_gap"):
            positive(setting, getattr(self, setting))
        not_negative("omega", self.omega)
        below_one("delta", self.delta)

    @property
    def tau(self) -> float:
        """The load of compression, `compression_load`."""
        return compression_load(self.clients, self.omega)

    @property
    def privacy_cost(self) -> float:
        """sqrt(d ln1d) / (m epsilon): the utility of a single private client, with G = L = 1."""
        return math.sqrt(-self.dim * math.log(self.delta)) / (self.records * self.epsilon)

    @property
    def rounds_scale(self) -> float:
        """K of Table 2: sqrt(n L) m epsilon / (G sqrt((1+w) d ln1d)). L/K is the utility of Corollary 2."""
        noise = self.gradient_bound * self.privacy_cost * math.sqrt(1 + self.omega)
        return math.sqrt(self.clients * self.smoothness) / noise
