"""Figure 3: the theorems' formulas, the orders of the table, and lower bounds below upper bounds."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.theory import isrl_dp as theory
from tacit.theory.isrl_dp import ConvexProblem

PROBLEMS = st.from_type(ConvexProblem)
ROWS = [
    (False, "iid"),
    (False, "non-iid"),
    (False, "erm"),
    (True, "iid"),
    (True, "non-iid"),
]
CONVEX = ConvexProblem(
    clients=64,
    records=4096,
    dim=64,
    epsilon=0.5,
    delta=1 / math.e,
    lipschitz=2.0,
    diameter=3.0,
    smoothness=5.0,
    gradient_spread=0.0,
)
CURVED = dataclasses.replace(CONVEX, strong_convexity=0.25)


@given(problem=PROBLEMS)
def test_upper_bounds_are_the_theorems(problem: ConvexProblem) -> None:
    m, n, d, e = problem.reporting, problem.records, problem.dim, problem.epsilon
    lip, dia, phi, beta = problem.lipschitz, problem.diameter, problem.phi, problem.smooth
    log = -math.log(problem.delta)
    iid, erm = theory.upper_bound("iid", problem), theory.upper_bound("erm", problem)
    mixed, shuffled = theory.upper_bound("non-iid", problem), theory.upper_bound("iid", problem, shuffled=True)
    if problem.is_strongly_convex:
        mu = problem.strong_convexity
        assert iid == pytest.approx(lip**2 / (mu * m) * (1 / n + d * log / (e * n) ** 2))
        assert erm == pytest.approx(lip**2 / mu * d * log / (e**2 * n**2 * m))
        absent = problem.upsilon**2 / (mu * math.sqrt(beta / mu) * m) * problem.absence
        private = math.sqrt(beta / mu) * lip**2 / mu * d * log / (e**2 * n**2 * m)
        assert mixed == pytest.approx(phi**2 / (mu * n * m) + private + absent)
        assert shuffled == pytest.approx(lip**2 / mu * (1 / (n * m) + d * log / (e * n * problem.clients) ** 2))
        return
    assert iid == pytest.approx(lip * dia / math.sqrt(m) * (1 / math.sqrt(n) + math.sqrt(d * log) / (e * n)))
    assert erm == pytest.approx(lip * dia * math.sqrt(d * log) / (e * n * math.sqrt(m)))
    assert shuffled == pytest.approx(
        lip * dia * (1 / math.sqrt(n * m) + math.sqrt(d * log) / (e * n * problem.clients))
    )
    balanced = (lip / (beta * dia)) ** 0.4
    if (
        1 / n <= balanced * (math.sqrt(d * log / m) / (e * n)) ** 0.4 <= 1
    ):  # elsewhere eq. 30 is about a batch that does not exist
        root = math.sqrt(d * log)
        private = (beta**0.25 * lip * dia**1.5 * root / (e * n * math.sqrt(m))) ** 0.8
        absent = math.sqrt(problem.absence) * problem.upsilon * lip**0.2 * dia**0.8 / beta**0.2
        printed = phi * dia / math.sqrt(n * m) + private + absent * (root / (e * n * m**3)) ** 0.2
        assert mixed == pytest.approx(printed)
    if 1 / n <= balanced * (math.sqrt(d) * math.log(d / problem.delta) / (e * n * m)) ** 0.4 <= 1:
        root = math.sqrt(d) * math.log(d / problem.delta)
        private = (beta**0.25 * lip * dia**1.5 * root / (e * n * m)) ** 0.8
        absent = math.sqrt(problem.absence) * problem.upsilon * lip**0.2 * dia**0.8 / beta**0.2
        printed = phi * dia / math.sqrt(n * m) + private + absent * (root / (e * n * m**3.5)) ** 0.2
        assert theory.upper_bound("non-iid", problem, shuffled=True) == pytest.approx(printed)


def test_where_the_batch_does_not_exist_the_bound_for_unlike_silos_is_the_larger_term() -> None:
    easy = dataclasses.replace(CONVEX, epsilon=1e12)
    assert theory.upper_bound("non-iid", easy) == pytest.approx(5 * 9 / 4096**2)
    hard = dataclasses.replace(CONVEX, epsilon=1e-6)
    assert theory.upper_bound("non-iid", hard) == pytest.approx(theory.upper_bound("erm", hard))


@pytest.mark.parametrize(
    ("problem", "shuffled", "setting", "upper", "lower"),
    [
        # Exponents of (d, 1/epsilon, 1/n, 1/N) in the private terms of the figure.
        (CONVEX, False, "erm", (0.5, 1, 1, 0.5), (0.5, 1, 1, 0.5)),
        (CONVEX, False, "non-iid", (0.4, 0.8, 0.8, 0.4), (0.7, 1.4, 1.4, 0.7)),
        (CURVED, False, "erm", (1, 2, 2, 1), (1, 2, 2, 1)),
        (CURVED, False, "non-iid", (1, 2, 2, 1), (1, 2, 2, 1)),
        (CONVEX, True, "non-iid", (None, 0.8, 0.8, 0.8), (0.5, 1, 1, 1)),
        (CURVED, True, "non-iid", (None, 2, 2, 2), (1, 2, 2, 2)),
    ],
)
def test_private_terms_have_the_orders_of_the_figure(
    problem: ConvexProblem,
    shuffled: bool,
    setting: str,
    upper: tuple[float | None, ...],
    lower: tuple[float | None, ...],
) -> None:
    """phi = 0 and M = N leave the private term alone; the ratio of two problems gives its exponent."""
    changes: list[dict[str, Any]] = [{"dim": 16}, {"epsilon": 2.0}, {"records": 4 * 4096}, {"clients": 4 * 64}]
    for bound, exponents in ((theory.upper_bound, upper), (theory.lower_bound, lower)):
        for change, exponent in zip(changes, exponents, strict=True):
            if exponent is not None:  # a logarithm of d stands there as well
                other = dataclasses.replace(problem, **change)
                gain = bound(setting, problem, shuffled=shuffled) / bound(setting, other, shuffled=shuffled)
                assert math.log(gain, 4) == pytest.approx(exponent)


@pytest.mark.parametrize(("problem", "order"), [(CONVEX, 0.5), (CURVED, 1.0)])
def test_public_terms_have_the_orders_of_the_figure(problem: ConvexProblem, order: float) -> None:
    loose = dataclasses.replace(problem, epsilon=1e9, gradient_spread=2.0)
    for shuffled, setting in ROWS:
        if setting == "erm":
            continue
        for change in ({"records": 4 * 4096}, {"clients": 4 * 64}):
            other = dataclasses.replace(loose, **change)
            for bound in (theory.upper_bound, theory.lower_bound):
                gain = bound(setting, loose, shuffled=shuffled) / bound(setting, other, shuffled=shuffled)
                assert math.log(gain, 4) == pytest.approx(order, abs=1e-3)


def test_conditioning_separates_the_bounds_for_unlike_silos() -> None:
    """sqrt(kappa) above, 1/kappa below."""
    worse = dataclasses.replace(CURVED, smoothness=20.0)
    assert theory.upper_bound("non-iid", worse) / theory.upper_bound("non-iid", CURVED) == pytest.approx(2)
    assert theory.lower_bound("non-iid", CURVED) / theory.lower_bound("non-iid", worse) == pytest.approx(
        4**2 / 4**1
    )


def test_lower_bounds_stay_below_upper_bounds() -> None:
    grid = itertools.product(
        (20, 500, 10**5), (10, 1000, 10**6), (1, 50, 10**4), (0.01, 1.0, 4.0), (0.0, 0.1, 1.0), (1.0, 30.0)
    )
    for clients, records, dim, epsilon, mu, smoothness in grid:
        problem = ConvexProblem(
            clients=clients,
            records=records,
            dim=dim,
            epsilon=epsilon,
            delta=1e-8,
            smoothness=smoothness,
            strong_convexity=mu,
        )
        for row in theory.figure_3(problem):
            assert 0 < row.lower <= row.upper * (1 + 1e-9), row


@given(problem=PROBLEMS)
def test_lower_bounds_stay_below_upper_bounds_for_everyone_reporting(problem: ConvexProblem) -> None:
    everyone = dataclasses.replace(problem, cohort=None)
    for shuffled, setting in ROWS:
        upper = theory.upper_bound(setting, everyone, shuffled=shuffled)
        assert theory.lower_bound(setting, everyone, shuffled=shuffled) <= upper * (1 + 1e-9)


def test_lower_bounds_never_exceed_the_trivial_risk_by_more_than_the_public_term() -> None:
    hard = dataclasses.replace(CONVEX, dim=10**9, epsilon=1e-6)
    assert theory.lower_bound("iid", hard) == theory.lower_bound("erm", hard) == hard.trivial_risk


def test_the_figure_has_the_rows_that_the_problem_has() -> None:
    names = [(row.privacy, row.setting, row.loss) for row in theory.figure_3(CURVED)]
    both = ("convex", "strongly convex")
    assert names == [("shuffle" if s else "isrl", setting, loss) for s, setting in ROWS for loss in both]
    rough = theory.figure_3(dataclasses.replace(CONVEX, smoothness=None))
    assert [(row.privacy, row.setting) for row in rough] == [("isrl", "iid"), ("isrl", "erm"), ("shuffle", "iid")]
    assert {row.loss for row in rough} == {"convex"}
    for row in theory.figure_3(CURVED):
        posed = CURVED if row.loss == "strongly convex" else CONVEX
        assert row.upper == theory.upper_bound(row.setting, posed, shuffled=row.privacy == "shuffle")


def test_conditions_of_the_lower_bounds_are_named() -> None:
    good = dataclasses.replace(CURVED, clients=1000, delta=1e-9)
    assert theory.unmet_conditions(good) == ()
    assert theory.unmet_conditions(good, rounds=10**6) == ()
    assert theory.unmet_conditions(good, rounds=10) == ("epsilon of a round <= 1 / records",)
    bad = dataclasses.replace(good, epsilon=40.0, delta=0.4, cohort=5, strong_convexity=1.0)
    assert theory.unmet_conditions(bad) == (
        "epsilon <= sqrt(clients)",
        "delta < 1 / (clients records)",
        "cohort = clients",
        "strong_convexity diameter <= lipschitz",
    )


def test_what_the_figure_has_not_is_refused() -> None:
    for bound in (theory.upper_bound, theory.lower_bound):
        with pytest.raises(RequestError, match="no shuffled result"):
            bound("erm", CONVEX, shuffled=True)
        with pytest.raises(RequestError, match="unknown setting"):
            bound("i.i.d.", CONVEX)
