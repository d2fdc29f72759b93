"""What the tests of SoteriaFL's theory share: problems of all kinds, and the one of the paper's experiments."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from tacit.theory.soteriafl import Problem

# Test modules cannot import from here; they ask hypothesis for problems by type.
st.register_type_strategy(
    Problem,
    st.builds(
        Problem,
        clients=st.integers(1, 10**6),
        records=st.integers(27, 10**6),
        dim=st.integers(1, 10**6),
        omega=st.floats(0, 1e4),
        epsilon=st.floats(0.01, 100),
        delta=st.floats(1e-12, 0.5),
        smoothness=st.floats(1e-3, 1e3),
        gradient_bound=st.floats(1e-3, 1e3),
        loss_gap=st.floats(1e-3, 1e3),
    ),
)


@pytest.fixture(scope="session")
def a9a() -> Problem:
    """Logistic regression on a9a at epsilon 1, as in section 6 of the paper."""
    return Problem(
        clients=10,
        records=3256,
        dim=124,
        omega=124 / 6 - 1,
        epsilon=1.0,
        delta=1e-3,
        gradient_bound=0.5,
    )
