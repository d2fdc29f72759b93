"""Definition 1, and the shift step of Theorem 3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.theory import soteriafl as theory


@given(omega=st.floats(0, 1e6))
def test_shift_step_gives_the_contraction_of_lemma_7(omega: float) -> None:
    gamma, young = theory.shift_step(omega), 1 / (1 + 2 * omega)
    assert (1 + young) * gamma**2 * (1 + omega) == pytest.approx(1 / (1 + omega))
    kept = (1 + young) * (1 - 2 * gamma + gamma**2 * (1 + omega))
    assert kept <= 1 - 1 / (2 * (1 + omega)) + 1e-12
