"""The statistics of an audit: from guesses to a lower bound on epsilon, whatever algorithm was guessed about."""

from tacit.privacy.audit.attacks import Attack, Rehearsal, rehearsed_attacks
from tacit.privacy.audit.findings import AuditResult, Finding
from tacit.privacy.audit.guesses import one_run_epsilon, one_run_p_value, repeated_runs_epsilon
from tacit.privacy.audit.rules import ClaimedPoint, Rule, best_rule, one_run_finding

__all__ = [
    "Attack",
    "AuditResult",
    "ClaimedPoint",
    "Finding",
    "Rehearsal",
    "Rule",
    "best_rule",
    "one_run_epsilon",
    "one_run_finding",
    "one_run_p_value",
    "rehearsed_attacks",
    "repeated_runs_epsilon",
]
