"""Tables 1 and 2, against the print and against the corollaries."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.theory import soteriafl as theory
from tacit.theory.soteriafl import Problem

PROBLEMS = st.from_type(Problem)


def _printed_table_1(p: Problem) -> dict[str, tuple[float, float]]:
    """Utility and communication as the paper prints them, with Q-DPSGD-1's missing factor d put back."""
    n, m, d, e, w, log = p.clients, p.records, p.dim, p.epsilon, 1 + p.omega, -math.log(p.delta)
    root, tau = math.sqrt(d * log), w**1.5 / n**0.5
    shared = math.sqrt(w) * root / (math.sqrt(n) * m * e)
    plain = n**1.5 * m * e * math.sqrt(d) / math.sqrt(log)
    shifted = plain / w**1.5
    square = n * m**2 * e**2 / (w * log)
    q_utility = (w / n + 1 / m) ** (2 / 3) * (d * log) ** (1 / 3) / (m * e) ** (2 / 3)
    return {
        "distributed-dp-srm": (root / (n * m * e), n**2 * m * e * math.sqrt(d) / math.sqrt(log)),
        "ldp-svrg": (root / (math.sqrt(n) * m * e), plain),
        "ldp-spider": (root / (math.sqrt(n) * m * e), plain),
        "q-dpsgd-1": (q_utility, (1 + n / (m * w)) * m**2 * e**2 / (d * log) * d),
        "sdm-dsgd": (root / (math.sqrt(n) * m * e), n**2 * shifted + square),
        "cdp-sgd": (shared, shifted + square),
        "soteriafl-sgd": (shared * (1 + math.sqrt(tau)), shifted * (1 + math.sqrt(tau))),
        "soteriafl-gd": (shared * (1 + math.sqrt(tau)), shifted * (1 + math.sqrt(tau))),
        "soteriafl-svrg": (shared, shifted * (1 + tau)),
        "soteriafl-saga": (shared, shifted * (1 + tau)),
    }


@given(problem=PROBLEMS)
def test_table_1_is_the_printed_one(problem: Problem) -> None:
    for algorithm, (utility, communication) in _printed_table_1(problem).items():
        assert theory.utility(algorithm, problem) == pytest.approx(utility)
        assert theory.communication_complexity(algorithm, problem) == pytest.approx(communication)
    alone = math.sqrt(-problem.dim * math.log(problem.delta)) / (problem.records * problem.epsilon)
    assert theory.utility("dp-sgd", problem) == theory.utility("dp-srm", problem) == pytest.approx(alone)
    logs = math.log(problem.records / problem.delta)
    assert theory.utility("rppsgd", problem) == pytest.approx(alone * math.sqrt(logs))


@given(problem=PROBLEMS)
def test_table_1_agrees_with_the_corollaries(problem: Problem) -> None:
    plain = dataclasses.replace(problem, smoothness=1.0, gradient_bound=1.0)
    rows = {row.algorithm: row for row in theory.table_1(problem)}
    sgd, svrg = theory.corollary_1(plain), theory.corollary_2(plain)
    assert (rows["soteriafl-sgd"].utility, rows["soteriafl-sgd"].rounds) == pytest.approx(
        (sgd.utility, sgd.rounds)
    )
    assert rows["soteriafl-svrg"].utility == pytest.approx(svrg.utility)
    rounds = rows["soteriafl-svrg"].rounds
    assert rounds is not None
    assert svrg.rounds <= rounds * (1 + 1e-9) <= 2.001 * svrg.rounds  # max{1, tau} against 1 + tau


@given(problem=PROBLEMS)
def test_table_2_is_rounds_times_batch(problem: Problem) -> None:
    rows = {row.algorithm: row.gradient_complexity for row in theory.table_2(problem)}
    sgd, svrg, saga = theory.corollary_1(problem), theory.corollary_2(problem), theory.corollary_3(problem)
    assert rows["soteriafl-gd"] == pytest.approx(sgd.rounds * problem.records)
    assert rows["soteriafl-sgd"] == pytest.approx(sgd.rounds * sgd.batch)
    assert 1 - 1e-9 <= rows["soteriafl-svrg"] / (svrg.rounds * svrg.batch * 4) <= 2 + 1e-9
    assert 1 - 1e-9 <= rows["soteriafl-saga"] / (saga.rounds * saga.batch / 3) <= 2 + 1e-9
    assert theory.gradient_complexity("soteriafl-sgd", problem) == rows["soteriafl-sgd"]


def test_tables_name_what_they_do_not_hold(a9a: Problem) -> None:
    with pytest.raises(RequestError, match="did you mean 'soteriafl-svrg'"):
        theory.utility("soteria-svrg", a9a)
    with pytest.raises(RequestError, match="single node"):
        theory.communication_complexity("dp-sgd", a9a)
    with pytest.raises(RequestError, match="Table 2"):
        theory.gradient_complexity("cdp-sgd", a9a)
