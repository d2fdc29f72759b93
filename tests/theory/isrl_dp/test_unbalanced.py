"""Appendix H: silos of their own sizes and their own privacy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.theory import isrl_dp as theory
from tacit.theory.isrl_dp import Problem, Silo

SILOS = st.lists(
    st.builds(Silo, records=st.integers(1, 10**5), epsilon=st.floats(0.05, 1.3), delta=st.floats(1e-9, 0.25)),
    min_size=1,
    max_size=8,
)


@given(silos=SILOS, rounds=st.integers(1, 10**4))
def test_each_silo_has_its_own_noise(silos: list[Silo], rounds: int) -> None:
    for silo in silos:
        std = silo.noise_std(lipschitz=3.0, rounds=rounds)
        logs = math.log(2.5 * rounds / silo.delta) * math.log(2 / silo.delta)
        assert std**2 == pytest.approx(256 * 9 * rounds * logs / (silo.records * silo.epsilon) ** 2)
        assert std**2 == pytest.approx(256 * 9 * rounds * silo.privacy_weight(rounds))


@given(silos=SILOS, rounds=st.integers(1, 10**4))
def test_batches_are_one_share_and_large_enough(silos: list[Silo], rounds: int) -> None:
    batches = theory.silo_batches(silos, rounds=rounds)
    for silo, batch in zip(silos, batches, strict=True):
        least = theory.smallest_batch(records=silo.records, rounds=rounds, epsilon=silo.epsilon, delta=silo.delta)
        assert least * (1 - 1e-9) <= batch <= silo.records
    # Rounded up from one share: each batch is at least what one record less of any other would ask for.
    share = max((batch - 1) / silo.records for silo, batch in zip(silos, batches, strict=True))
    assert all(batch >= share * silo.records for silo, batch in zip(silos, batches, strict=True))


def test_batches_of_different_silos_share_a_rate() -> None:
    silos = [Silo(records=1000, epsilon=1.0, delta=1e-5), Silo(records=10_000, epsilon=0.1, delta=1e-5)]
    share = 1 / (4 * math.sqrt(2 * 50 * math.log(2e5)))
    assert theory.silo_batches(silos, rounds=50) == (math.ceil(1000 * share), math.ceil(10_000 * share))


@given(silos=SILOS, data=st.data())
def test_the_load_is_the_print_and_covers_the_mean(silos: list[Silo], data: st.DataObject) -> None:
    raw = data.draw(st.lists(st.integers(0, 5), min_size=len(silos), max_size=len(silos)).filter(any))
    law = {m: p / sum(raw) for m, p in enumerate(raw, start=1)}
    sizes, shares = np.array(list(law)), np.array(list(law.values()))
    xi = np.sort([silo.privacy_weight(30) for silo in silos])[::-1]
    tops = np.cumsum(xi) / np.arange(1, len(xi) + 1)
    printed = min(
        math.sqrt(shares @ tops**2) * math.sqrt(shares @ (1 / sizes**2)), xi[0] * float(shares @ (1 / sizes))
    )
    load = theory.noise_load(silos, rounds=30, cohort_law=law)
    assert load == pytest.approx(printed)
    assert theory.mean_noise_load(silos, rounds=30, cohort_law=law) <= load * (1 + 1e-9)


def test_the_mean_load_is_that_of_random_cohorts() -> None:
    silos = [Silo(records=n, epsilon=e, delta=1e-5) for n, e in ((100, 1.0), (300, 0.5), (50, 2.0), (900, 0.1))]
    variances = [silo.noise_std(lipschitz=1.0, rounds=30) ** 2 for silo in silos]
    cohorts = list(itertools.combinations(variances, 3))
    exact = sum(sum(cohort) / 9 for cohort in cohorts) / len(cohorts)
    load = theory.mean_noise_load(silos, rounds=30, cohort_law={3: 1.0})
    assert 256 * 30 * load == pytest.approx(exact)


def test_equal_silos_give_back_the_balanced_theorem() -> None:
    problem = Problem(
        clients=8,
        records=400,
        dim=5,
        epsilon=0.5,
        delta=1e-5,
        lipschitz=2.0,
        diameter=3.0,
        smoothness=2.0,
        cohort=4,
    )
    silos = [Silo(records=400, epsilon=0.5, delta=1e-5)] * 8
    load = theory.noise_load(silos, rounds=60, cohort_law={4: 1.0})
    assert load == pytest.approx(silos[0].privacy_weight(60) / 4)
    assert load == pytest.approx(theory.mean_noise_load(silos, rounds=60, cohort_law={4: 1.0}))
    logs = 256 * math.log(2.5 * 60 / 1e-5) * math.log(2 / 1e-5)
    risk = theory.unbalanced_upper_bound(problem, load=load)
    assert risk == pytest.approx(6 / 2 * (1 / 20 + math.sqrt(5 * logs / 256) / 200))
    # Without logarithms, the rounds of Theorem 2.1.
    bare = 1 / (problem.epsilon * problem.records) ** 2 / 4
    assert theory.unbalanced_rounds(problem, load=bare) == pytest.approx(theory.theorem_2_1_rounds(problem))
    curved = Problem(clients=8, records=400, dim=5, epsilon=0.5, delta=1e-5, smoothness=2.0, strong_convexity=0.5)
    assert theory.unbalanced_upper_bound(curved, load=0.01) == pytest.approx(2 * (1 / 3200 + 0.05))
    rounds = theory.unbalanced_rounds(curved, load=0.01)
    assert rounds == pytest.approx(2 * 4 * math.log(2.0 * 0.5 / 0.05) + 3200)


def test_wrong_silos_and_cohorts_are_refused() -> None:
    silos = [Silo(records=100, epsilon=1.0, delta=1e-5)] * 2
    with pytest.raises(RequestError, match="add up to 1"):
        theory.noise_load(silos, rounds=5, cohort_law={1: 0.5})
    with pytest.raises(RequestError, match="sizes from 1 to 2"):
        theory.noise_load(silos, rounds=5, cohort_law={3: 1.0})
    with pytest.raises(RequestError, match="at least one silo"):
        theory.silo_batches([], rounds=5)
    with pytest.raises(RequestError, match="delta"):
        Silo(records=100, epsilon=1.0, delta=0.0)
    greedy = [Silo(records=100, epsilon=60.0, delta=1e-20)]
    with pytest.raises(RequestError, match="rounds must be at least 3"):
        theory.silo_batches(greedy, rounds=1)
