"""The longest step of Theorem 3, against the proof."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.theory import soteriafl as theory
from tacit.theory.soteriafl import EstimatorConstants


@st.composite
def estimators(draw: st.DrawFn) -> EstimatorConstants:
    records = draw(st.integers(1, 10**5))
    batch = draw(st.integers(1, records))
    kind = draw(st.sampled_from(["sgd", "svrg", "saga"]))
    if kind == "sgd":
        return theory.sgd_constants(records=records, batch=batch, gradient_bound=1.0)
    if kind == "saga":
        return theory.saga_constants(records=records, batch=batch, smoothness=1.0, gradient_bound=1.0)
    p = draw(st.floats(1e-4, 1))
    return theory.svrg_constants(batch=batch, snapshot_probability=p, smoothness=1.0, gradient_bound=1.0)


@given(constants=estimators(), beta=st.floats(1e-6, 1e3), clients=st.integers(1, 10**6), omega=st.floats(0, 1e3))
def test_largest_step_is_exactly_what_the_proof_of_lemma_8_needs(
    constants: EstimatorConstants, beta: float, clients: int, omega: float
) -> None:
    alpha = theory.variance_weight(constants, beta=beta, omega=omega, smoothness=1.0)

    def proof_holds(step: float) -> bool:
        half = 0.5 + alpha * constants.c_4 + 2 * beta * (1 + omega)
        eq_40 = half * (1 + omega) * step**2 / clients <= beta / (2 * (1 + omega)) * (1 + 1e-6)
        descent = step - alpha * constants.c_3_per_step_squared * step**2 - half * step**2 >= step / 2 * (
            1 - 1e-6
        )
        return eq_40 and descent

    limit = theory.largest_step(constants, beta=beta, clients=clients, omega=omega, smoothness=1.0)
    assert proof_holds(limit)
    assert not proof_holds(1.01 * limit)
    longer = theory.largest_step(constants, beta=beta, clients=clients, omega=omega, smoothness=0.5)
    c_1_unchanged = constants.c_1 == 0
    assert not c_1_unchanged or longer == pytest.approx(2 * limit)


@given(constants=estimators(), share=st.floats(0.01, 2), clients=st.integers(1, 10**6), omega=st.floats(0, 1e3))
def test_the_smallest_beta_is_the_one_that_just_allows_a_step(
    constants: EstimatorConstants, share: float, clients: int, omega: float
) -> None:
    numbers = {"clients": clients, "omega": omega, "smoothness": 1.0}
    limit = theory.longest_step(constants, **numbers)
    beta = theory.smallest_beta(constants, step=share * limit, **numbers)
    assert (beta is None) == (share > 1)
    if beta is not None:
        assert theory.largest_step(constants, beta=beta, **numbers) >= share * limit * (1 - 1e-6)
        assert theory.largest_step(constants, beta=0.9 * beta, **numbers) < share * limit
