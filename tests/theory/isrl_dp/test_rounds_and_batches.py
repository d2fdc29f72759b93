"""R and K, against the print and against the terms that they balance in the proofs."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.theory import isrl_dp as theory
from tacit.theory.isrl_dp import Problem

PROBLEMS = st.from_type(Problem)


def _letters(p: Problem) -> tuple[float, ...]:
    assert p.smoothness is not None
    return p.clients, p.reporting, p.records, p.dim, p.epsilon, p.lipschitz, p.diameter, p.smoothness


@given(problem=PROBLEMS)
def test_theorem_2_1_is_the_print(problem: Problem) -> None:
    _, m, n, d, e, lip, dia, beta = _letters(problem)
    plenty = min(n * m, e**2 * n**2 * m / d)
    if problem.is_strongly_convex:
        mu = problem.strong_convexity
        printed = max(2 * beta / mu * math.log(beta * dia**2 * mu * m * e**2 * n**2 / (d * lip**2)), plenty)
    else:
        printed = beta * dia * math.sqrt(m) / lip * min(math.sqrt(n), e * n / math.sqrt(d)) + plenty
    assert theory.theorem_2_1_rounds(problem) == pytest.approx(printed)
    assert theory.theorem_2_1_rounds(problem, "erm") >= printed * (1 - 1e-9)


@given(problem=PROBLEMS)
def test_theorem_2_1_makes_the_proofs_leftovers_small(problem: Problem) -> None:
    """beta D^2/R + L D/sqrt(R) is at most twice the rate; with the logarithm of delta, less."""
    if problem.is_strongly_convex:
        return
    r = theory.theorem_2_1_rounds(problem)
    left = problem.smooth * problem.diameter**2 / r + problem.trivial_risk / math.sqrt(r)
    flat = dataclasses.replace(problem, delta=1 / math.e)
    assert left <= 2 * theory.upper_bound("iid", flat) * (1 + 1e-9)


@given(problem=PROBLEMS)
def test_theorem_3_1_is_the_print(problem: Problem) -> None:
    _, m, n, d, e, lip, dia, beta = _letters(problem)
    log = -math.log(problem.delta)
    if problem.is_strongly_convex:
        mu, delta = problem.strong_convexity, problem.gap
        spread = n * m / problem.phi**2 if problem.phi**2 else math.inf
        inside = mu * delta * min(e**2 * n**2 * m / (lip**2 * d * log), spread)
        printed = n / (math.sqrt(beta / mu) * max(1.0, math.log(inside)))
    else:
        printed = (lip / (beta * dia)) ** 0.4 * n**0.6 * (d * log) ** 0.2 / (e**0.4 * m**0.2)
    assert theory.theorem_3_1_batch(problem) == pytest.approx(printed)


@given(problem=PROBLEMS)
def test_convex_batches_balance_the_proofs_terms(problem: Problem) -> None:
    if problem.is_strongly_convex:
        return
    _, m, n, d, e, lip, dia, beta = _letters(problem)
    log = -math.log(problem.delta)
    k = theory.theorem_3_1_batch(problem)
    noise = lip * dia * math.sqrt(d * log) / (e * math.sqrt(k * n * m))
    assert beta * dia**2 * k**2 / n**2 == pytest.approx(noise)
    k = theory.theorem_5_2_batch(problem)
    noise = lip * dia * math.sqrt(d) * math.log(d / problem.delta) / (e * m * math.sqrt(k * n))
    assert beta * dia**2 * k**2 / n**2 == pytest.approx(noise)


@given(problem=PROBLEMS, share=st.floats(0, 1))
def test_theorem_4_1_balances_the_proofs_terms(problem: Problem, share: float) -> None:
    clients, m, n, d, e, lip, dia, beta = _letters(problem)
    log = -math.log(problem.delta)
    batch = max(1, math.floor(share * n))
    floor = e**2 * n**2 / (batch * d * log) if m * batch < clients * n else 0.0
    found = theory.theorem_4_1_rounds(problem, batch=batch)
    if problem.is_strongly_convex:
        mu = problem.strong_convexity
        inside = problem.gap * mu * m * e**2 * n**2 / (lip**2 * d)
        assert found == pytest.approx(max(math.sqrt(beta / mu) * math.log(inside), floor))
        return
    assert found >= floor * (1 - 1e-9)
    if found > floor * (1 + 1e-9):
        noise = lip * dia * math.sqrt(d * log) / (e * n * math.sqrt(m))
        assert beta * dia**2 / found**2 == pytest.approx(noise)


@given(problem=PROBLEMS)
def test_theorem_f_2_is_theorem_f_1_on_the_envelope(problem: Problem) -> None:
    """With the print's square root of beta D/L its R would be the 3/4-th power of this one."""
    if problem.is_strongly_convex:
        return
    whole = dataclasses.replace(problem, cohort=None, smoothness=theory.smoothing(problem, "erm"))
    log = -math.log(problem.delta)
    whole = dataclasses.replace(whole, smoothness=theory.smoothing(whole, "erm"))
    rounds = theory.theorem_4_1_rounds(whole, batch=whole.records)
    reach = math.sqrt(whole.clients) * whole.epsilon * whole.records / math.sqrt(whole.dim * log)
    assert rounds == pytest.approx(reach * log**0.25)


@given(problem=PROBLEMS)
def test_theorem_5_1_covers_what_its_proof_needs(problem: Problem) -> None:
    clients, m, n, d, e, lip, dia, beta = _letters(problem)
    r = theory.theorem_5_1_rounds(problem)
    assert r >= max(n**2 * clients**2 * e**2 / m, clients / m) * (1 - 1e-9)
    printed = min(n, e**2 * n**2 * clients**2 / (d * m))
    assert r >= printed * m * (1 - 1e-9)
    if problem.is_strongly_convex:
        mu = problem.strong_convexity
        inside = beta * dia**2 * mu * e**2 * n**2 * clients**2 / (d * lip**2)
        assert r >= 8 * beta / mu * math.log(inside) * (1 - 1e-9)
    else:
        assert r >= beta * dia / lip * min(math.sqrt(n * m), e * n * clients / math.sqrt(d)) * (1 - 1e-9)
        flat = dataclasses.replace(problem, delta=1 / math.e)
        assert lip * dia / math.sqrt(r) <= theory.upper_bound("iid", flat, shuffled=True) * (1 + 1e-9)


@given(records=st.integers(1, 10**6), batch=st.floats(1e-3, 1e9))
def test_disjoint_batches_fit(records: int, batch: float) -> None:
    k, rounds = theory.disjoint_batches(records, batch)
    assert 1 <= k <= records
    assert rounds >= 1
    assert k * rounds <= records < k * (rounds + 1)
    assert k >= min(batch, records)


def test_what_has_no_rounds_is_refused(mnist: Problem) -> None:
    with pytest.raises(RequestError, match="drawn again 'non-iid'"):
        theory.theorem_2_1_rounds(mnist, "non-iid")
    with pytest.raises(RequestError, match="batch must be at most"):
        theory.theorem_4_1_rounds(mnist, batch=2000)
    with pytest.raises(RequestError, match="smoothness"):
        theory.theorem_3_1_batch(dataclasses.replace(mnist, smoothness=None))
