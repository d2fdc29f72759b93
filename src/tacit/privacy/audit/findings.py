"""The results of an audit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tacit.privacy.audit.checks import Check
from tacit.privacy.promises.terms import Adjacency, Adversary, Unit

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
    """The outcome of an audit of one promise, and of the other promises that the same run makes.

    `at_claim` is a lower bound on epsilon at the delta that was promised. A small delta concerns rare events that
    few trials ever show. But noise and accountant promise a whole curve of (epsilon, delta), and `on_curve` tests
    its most promising point according to practice trials. It is tested at a higher confidence, because a correct
    algorithm that makes full use of its noise lies exactly on its curve. `checks` compare direct measurements
    (noise, movement, draws) with what the promise relies on.
    """

    method: str
    algorithm: str
    data: str
    adjacency: Adjacency
    rounds: int
    """the number of rounds that were played"""
    records: int
    """the number of records of the audited client"""
    noise_multiplier: float
    at_claim: Finding
    on_curve: Finding | None = None
    equivalent_epsilon: float | None = None
    """the least epsilon at the promised delta of a mechanism *of the claimed kind* that allows this many right
    guesses: the best estimate of the true epsilon, at `confidence`, but a bound only if the kind is right"""
    adversary: Adversary = Adversary.SERVER
    """the adversary that was played"""
    unit: Unit = Unit.RECORD
    """whose data were guessed"""
    clients: int = 1
    """the number of clients in every trial"""
    checks: tuple[Check, ...] = ()
    guesses_notice_half: bool | None = None
    """whether guesses alone would have refuted the promise with half of the noise, in a rehearsal"""
    notes: tuple[str, ...] = ()
    """in which ways the audit differed from a real run"""
    beside: tuple[AuditResult, ...] = ()
    """audits of the other promises that the same run makes"""

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
        """The confidence of the lower bound."""
        return self.at_claim.confidence

    @property
    def violated(self) -> bool:
        """Whether this promise, its curve, one of its checks or another promise of the same run is refuted."""
        return (
            self.at_claim.violated
            or (self.on_curve is not None and self.on_curve.violated)
            or any(check.violated for check in self.checks)
            or any(other.violated for other in self.beside)
        )

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return VIOLATION if self.violated else CONSISTENT

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "method": self.method,
            "algorithm": self.algorithm,
            "data": self.data,
            "adversary": str(self.adversary),
            "unit": str(self.unit),
            "adjacency": str(self.adjacency),
            "clients": self.clients,
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
            "checks": [asdict(check) for check in self.checks],
            "guesses_notice_half": self.guesses_notice_half,
            "notes": list(self.notes),
            "beside": [other.to_dict() for other in self.beside],
        }
