"""What an audit says in the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tacit.privacy.terms import Adjacency

VIOLATION, CONSISTENT = "violation", "no violation found"


@dataclass(frozen=True)
class Finding:
    """One statement: at `delta`, epsilon is at least `lower_bound`, where `claimed` was promised."""

    claimed: float
    delta: float
    lower_bound: float
    confidence: float
    trials: int
    """independent runs, or canaries of one run"""
    guesses: int
    right: int
    attack: str

    @property
    def violated(self) -> bool:
        """Whether the promise is refuted, with this confidence."""
        return self.lower_bound > self.claimed


@dataclass(frozen=True)
class AuditResult:
    """The outcome of an audit.

    `at_claim` is a lower bound on epsilon at the delta that was promised. Small deltas hide in rare events that
    few trials ever show; but noise and accountant promise a whole curve of (epsilon, delta), and `on_curve`
    tests the point of it at which practice trials promised most. It is tested at a higher confidence, because a
    correct algorithm that makes full use of its noise lies exactly on its curve.
    """

    method: str
    algorithm: str
    data: str
    adjacency: Adjacency
    rounds: int
    records: int
    """of the audited client"""
    noise_multiplier: float
    at_claim: Finding
    on_curve: Finding | None = None
    equivalent_epsilon: float | None = None
    """the least epsilon at the promised delta of a mechanism *of the claimed kind* that lets so much be
    guessed; the best guess at what is really kept, at `confidence`, but a bound only if the kind is right"""

    @property
    def lower_bound(self) -> float:
        """At the promised delta, epsilon is at least this."""
        return self.at_claim.lower_bound

    @property
    def claimed(self) -> float:
        """The epsilon that was promised."""
        return self.at_claim.claimed

    @property
    def confidence(self) -> float:
        """Of the lower bound."""
        return self.at_claim.confidence

    @property
    def violated(self) -> bool:
        """Whether the promise, or the curve behind it, is refuted."""
        return self.at_claim.violated or (self.on_curve is not None and self.on_curve.violated)

    @property
    def verdict(self) -> str:
        """In words."""
        return VIOLATION if self.violated else CONSISTENT

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "method": self.method,
            "algorithm": self.algorithm,
            "data": self.data,
            "adjacency": str(self.adjacency),
            "rounds": self.rounds,
            "records": self.records,
            "noise_multiplier": self.noise_multiplier,
            "epsilon_claimed": self.claimed,
            "epsilon_lower_bound": self.lower_bound,
            "epsilon_equivalent": self.equivalent_epsilon,
            "delta": self.at_claim.delta,
            "confidence": self.confidence,
            "verdict": self.verdict,
            "at_claim": asdict(self.at_claim),
            "on_curve": None if self.on_curve is None else asdict(self.on_curve),
        }
