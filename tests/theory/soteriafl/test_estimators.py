"""The constants of Lemma 1, against enumerations and the inequality that they stand in."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.theory import soteriafl as theory


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_sgd_variance_of_lemma_1_is_that_of_poisson_sampling(batch: int) -> None:
    records, q = 5, batch / 5
    signs = np.array([1.0, -1.0, 1.0, 1.0, -1.0])  # gradients of norm G = 1 in one dimension
    variance = 0.0
    for coins in itertools.product([0, 1], repeat=records):
        weight = math.prod(q if coin else 1 - q for coin in coins)
        variance += weight * (np.dot(coins, signs) / batch - signs.mean()) ** 2
    c_2 = theory.sgd_constants(records=records, batch=batch, gradient_bound=1.0).c_2
    assert variance == pytest.approx(c_2, abs=1e-12)


@given(
    point=st.floats(-10, 10),
    snapshot=st.floats(-10, 10),
    gradient=st.floats(-10, 10),
    deviation=st.floats(0, 10),
    step=st.floats(0.01, 2),
    p=st.floats(0.01, 1),
)
def test_svrg_memory_shrinks_as_lemma_1_says(
    point: float, snapshot: float, gradient: float, deviation: float, step: float, p: float
) -> None:
    c = theory.svrg_constants(batch=1, snapshot_probability=p, smoothness=1.0, gradient_bound=1.0)
    moves = [-step * (gradient + deviation), -step * (gradient - deviation)]  # unbiased, each with chance 1/2
    squared_move = np.mean([move**2 for move in moves])
    kept = np.mean([(point + move - snapshot) ** 2 for move in moves])
    after = p * squared_move + (1 - p) * kept
    allowed = (
        (1 - c.theta) * (point - snapshot) ** 2
        + c.c_3_per_step_squared * step**2 * gradient**2
        + c.c_4 * squared_move
    )
    assert after <= allowed + 1e-7 * (1 + allowed)


def test_batches_must_fit() -> None:
    with pytest.raises(RequestError, match="batch must be at most the 4 records"):
        theory.sgd_constants(records=4, batch=5, gradient_bound=1.0)
