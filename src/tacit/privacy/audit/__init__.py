"""The statistics of an audit: from guesses to a lower bound on epsilon, whatever algorithm was guessed about."""

from tacit.privacy.audit.attacks import Attack, Rehearsal, mixed_attacks, rehearsed_attacks
from tacit.privacy.audit.checks import (
    Check,
    draws_check,
    freshness_check,
    law_check,
    noise_check,
    others_check,
)
from tacit.privacy.audit.findings import AuditResult, Finding
from tacit.privacy.audit.guesses import one_run_epsilon, one_run_p_value, repeated_runs_epsilon
from tacit.privacy.audit.rules import ClaimedPoint, Rule, best_rule, one_run_finding
from tacit.privacy.audit.shifts import Shifts, promised_shifts

__all__ = [
    "Attack",
    "AuditResult",
    "Check",
    "ClaimedPoint",
    "Finding",
    "Rehearsal",
    "Rule",
    "Shifts",
    "best_rule",
    "draws_check",
    "freshness_check",
    "law_check",
    "mixed_attacks",
    "noise_check",
    "one_run_epsilon",
    "one_run_finding",
    "one_run_p_value",
    "others_check",
    "promised_shifts",
    "rehearsed_attacks",
    "repeated_runs_epsilon",
]
