"""Definition 1, and the shift step of Theorem 3."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.theory import soteriafl as theory


@pytest.mark.parametrize(("dim", "k"), [(5, 2), (4, 1), (3, 3)])
def test_rand_k_meets_definition_1_with_equality(dim: int, k: int) -> None:
    x = np.arange(1.0, dim + 1)
    outcomes = []
    for kept in itertools.combinations(range(dim), k):
        y = np.zeros(dim)
        y[list(kept)] = x[list(kept)] * dim / k
        outcomes.append(y)
    assert np.allclose(np.mean(outcomes, axis=0), x)
    error = np.mean([np.sum((y - x) ** 2) for y in outcomes])
    assert error == pytest.approx(theory.rand_k_omega(dim, k) * np.sum(x**2))


@given(omega=st.floats(0, 1e6))
def test_shift_step_gives_the_contraction_of_lemma_7(omega: float) -> None:
    gamma, young = theory.shift_step(omega), 1 / (1 + 2 * omega)
    assert (1 + young) * gamma**2 * (1 + omega) == pytest.approx(1 / (1 + omega))
    kept = (1 + young) * (1 - 2 * gamma + gamma**2 * (1 + omega))
    assert kept <= 1 - 1 / (2 * (1 + omega)) + 1e-12


def test_coordinates_must_fit() -> None:
    with pytest.raises(RequestError, match="k must be at most dim = 3"):
        theory.rand_k_omega(3, 4)
