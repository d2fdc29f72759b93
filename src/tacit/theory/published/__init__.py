"""Each paper's own noise formula, beside what that noise really gives: for comparison only.

A `Row` is one published label. Nothing here makes a run private; tacit's own noise is calibrated exactly.
"""

from __future__ import annotations

from tacit.theory.published.papers import PAPERS, Paper, calculate, paper
from tacit.theory.published.row import Row
from tacit.theory.published.schemes import attained_with_replacement, true_epsilons

__all__ = ["PAPERS", "Paper", "Row", "attained_with_replacement", "calculate", "paper", "true_epsilons"]
