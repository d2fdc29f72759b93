"""Theorem 1: its rounds and step reach the utility that the paper prints."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tacit.theory import soteriafl as theory
from tacit.theory.soteriafl import Problem


@given(problem=st.from_type(Problem), noise_constant=st.floats(0.1, 100))
def test_theorem_1_reaches_its_published_utility(problem: Problem, noise_constant: float) -> None:
    noise_rate = noise_constant * (problem.gradient_bound * problem.privacy_cost) ** 2 / problem.dim
    rounds = theory.cdp_rounds(problem, noise_rate=noise_rate)
    step = theory.cdp_step(problem, noise_rate=noise_rate)
    reach = math.sqrt(problem.loss_gap / noise_constant) * problem.rounds_scale / problem.smoothness
    assert step * rounds == pytest.approx(reach)
    assume(rounds > 100)  # so that rounding up costs less than one part in a hundred
    whole = math.ceil(rounds)
    noise_std = math.sqrt(noise_rate * whole)
    of_one = 1 - 1 / problem.records
    terms = theory.cdp_terms(problem, step=step, rounds=whole, batch_variance=of_one, noise_std=noise_std)
    assert sum(terms.values()) <= 5 * problem.loss_gap / reach * 1.01
