"""Tables 1 and 2, against the print and against the corollaries."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    rows = {row.algorithm: row for row in theory.table_1(problem)}
    for algorithm, printed in _printed_table_1(problem).items():
        assert (rows[algorithm].utility, rows[algorithm].communication) == pytest.approx(printed)
    alone = math.sqrt(-problem.dim * math.log(problem.delta)) / (problem.records * problem.epsilon)
    assert rows["dp-sgd"].utility == rows["dp-srm"].utility == pytest.approx(alone)
    logs = math.log(problem.records / problem.delta)
    assert rows["rppsgd"].utility == pytest.approx(alone * math.sqrt(logs))


@given(problem=PROBLEMS)
def test_table_2_is_rounds_times_batch(problem: Problem) -> None:
    rows = {row.algorithm: row.gradient_complexity for row in theory.table_2(problem)}
    scale, tau = problem.rounds_scale, problem.tau
    rounds = scale * (1 + math.sqrt(tau))
    batch = theory.sgd_batch(problem, tau / (2 * (1 + problem.omega)))
    assert rows["soteriafl-gd"] == pytest.approx(rounds * problem.records)
    assert rows["soteriafl-sgd"] == pytest.approx(rounds * batch)
    assert rows["soteriafl-svrg"] == pytest.approx(scale * (1 + tau) * problem.records ** (2 / 3))
    assert rows["soteriafl-svrg"] == rows["soteriafl-saga"]
