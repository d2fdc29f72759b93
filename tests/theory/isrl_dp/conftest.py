"""What the tests of ISRL-DP's theory share: problems of all kinds, and one of the paper's experiments."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from tacit.theory.isrl_dp import ConvexProblem


@st.composite
def _problems(draw: st.DrawFn) -> ConvexProblem:
    clients = draw(st.integers(1, 10**5))
    lipschitz, diameter = draw(st.floats(1e-2, 1e2)), draw(st.floats(1e-2, 1e2))
    # Strong convexity up to L/D, so that the lower bounds' assumption L >= mu D holds; half of the time none.
    curved = draw(st.booleans())
    strong_convexity = lipschitz / diameter * draw(st.floats(1e-3, 1)) if curved else 0.0
    least = strong_convexity or lipschitz / diameter * 1e-2
    shares = st.none() | st.floats(0, 1)
    spread, unlike = draw(shares), draw(shares)
    return ConvexProblem(
        clients=clients,
        records=draw(st.integers(2, 10**5)),
        dim=draw(st.integers(1, 10**4)),
        epsilon=draw(st.floats(0.05, 1.3)),
        delta=draw(st.floats(1e-9, 0.25)),
        lipschitz=lipschitz,
        diameter=diameter,
        smoothness=least * draw(st.floats(1, 1e3)),
        strong_convexity=strong_convexity,
        cohort=draw(st.none() | st.floats(1, clients)),
        gradient_spread=None if spread is None else spread * lipschitz,
        heterogeneity=None if unlike is None else unlike * lipschitz,
    )


# Test modules cannot import from here; they ask hypothesis for problems by type.
st.register_type_strategy(ConvexProblem, _problems())


@pytest.fixture(scope="session")
def mnist() -> ConvexProblem:
    """Logistic regression on odd and even digits at epsilon 3, about as in appendix I.1 of the paper."""
    return ConvexProblem(
        clients=25,
        records=1238,
        dim=51,
        epsilon=3.0,
        delta=1 / 1238**2,
        lipschitz=2.0,
        diameter=10.0,
        smoothness=1.0,
    )
