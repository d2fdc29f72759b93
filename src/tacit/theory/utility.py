"""A theorem's bound on the result of a run: one number, and the cause of each of its terms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CAUSES = {
    "optimisation": "optimisation error that is left after these rounds",
    "sampling": "batches and cohorts instead of all records and clients",
    "privacy": "the noise that is really added",
    "compression": "would vanish if messages were not compressed",
    "heterogeneity": "clients that differ from each other",
}
"""The causes of the terms of a bound."""


@dataclass(frozen=True, kw_only=True)
class UtilityBound:
    """A theorem's bound for one run, term by term.

    Guarantee: if `gaps` is empty and every assumption holds, the expected `quantity` is at most `value`.
    """

    theorem: str
    quantity: str
    terms: Mapping[str, float] = field(default_factory=dict)
    """by cause (`CAUSES`); empty if the theorem cannot be evaluated"""
    trivial: float | None = None
    """the bound without any training: a larger bound says nothing"""
    statistical: float | None = None
    """the cost of having only a sample of records (or clients), even without noise; an order"""
    lower: float | None = None
    """the order that no algorithm with this promise beats on every problem of the kind"""
    lower_theorem: str = ""
    lower_unmet: tuple[str, ...] = ()
    """conditions of the lower bound that this run does not meet"""
    assumptions: tuple[str, ...] = ()
    """assumptions, and the sources of constants"""
    gaps: tuple[str, ...] = ()
    """why the theorem does not cover this run as it is"""

    @property
    def value(self) -> float | None:
        """The sum of all terms; None if there are none."""
        return sum(self.terms.values()) if self.terms else None

    @property
    def shares(self) -> dict[str, float]:
        """The share of each term in the sum; empty unless the bound is a positive number."""
        total = self.value
        if total is None or not 0 < total < math.inf:
            return {}
        return {cause: value / total for cause, value in self.terms.items()}

    @property
    def dominant(self) -> str | None:
        """The cause of the largest term."""
        shares = self.shares
        return max(shares, key=lambda cause: shares[cause]) if shares else None

    @property
    def sampling(self) -> float:
        """The cost of sampling: the term of that name, and the `statistical` error."""
        return self.terms.get("sampling", 0.0) + (self.statistical or 0.0)

    @property
    def times_lower(self) -> float | None:
        """Ratio of the bound to the lower bound, up to constants and logarithms."""
        return None if self.value is None or not self.lower else self.value / self.lower

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "theorem": self.theorem,
            "quantity": self.quantity,
            "covered": bool(self.terms) and not self.gaps,
            "gaps": list(self.gaps),
            "bound": _finite(self.value),
            "terms": {cause: _finite(value) for cause, value in self.terms.items()},
            "shares": self.shares,
            "dominant": self.dominant,
            "trivial": self.trivial,
            "statistical": self.statistical,
            "lower_bound": self.lower,
            "lower_bound_theorem": self.lower_theorem or None,
            "lower_bound_unmet": list(self.lower_unmet),
            "times_lower_bound": _finite(self.times_lower),
            "assumptions": list(self.assumptions),
        }


def with_compression(plain: Mapping[str, float], compressed: Mapping[str, float]) -> dict[str, float]:
    """The terms of a bound without compression, plus a term for what compression adds to their sum."""
    return {**plain, "compression": sum(compressed.values()) - sum(plain.values())}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
