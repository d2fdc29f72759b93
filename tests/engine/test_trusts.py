"""What trust buys: the table of `tacit plan`."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.data.schema import Schema
from tacit.data.schema.column import Column, Predicted
from tacit.errors import RequestError
from tacit.planning.trusts import what_trust_buys
from tacit.sklearn import FederatedLogisticRegression

RECIPE = tacit.Recipe(algorithm="noisy-mb-sgd", data="breast-cancer", clients=10, epsilon=1.0, rounds=20)


def test_sums_come_close_to_one_trusted_place() -> None:
    alone, shuffled, summed, place = what_trust_buys(RECIPE, algorithm="noisy-mb-sgd")
    assert alone.noise_std is not None
    assert summed.noise_std is not None
    assert place.noise_std is not None
    assert shuffled.noise_std is not None
    # A shuffler never harms; ten clients hardly hide each other.
    assert shuffled.noise_std == pytest.approx(alone.noise_std, rel=0.05)
    # Ten clients, of whom at least six are honest: shares of a sixth instead of all of it, and 10/6 of the least.
    assert alone.noise_std / summed.noise_std == pytest.approx(np.sqrt(6), rel=0.02)
    assert summed.noise_std / place.noise_std == pytest.approx(np.sqrt(10 / 6), rel=0.1)
    assert summed.own_epsilon is not None
    assert summed.own_epsilon > 1
    assert summed.predicted_metric is not None
    assert alone.predicted_metric is not None
    assert summed.predicted_metric >= alone.predicted_metric
    with pytest.raises(RequestError, match="protects whole clients"):
        what_trust_buys(RECIPE, algorithm="dp-fedavg")


def test_estimators_know_sums() -> None:
    rng = np.random.default_rng(0)
    X, clients = rng.uniform(-1, 1, (500, 4)), np.arange(500) % 10
    y = (X @ [3, -2, 1, 0] > 0).astype(int)
    fitted = {
        trust: FederatedLogisticRegression(epsilon=0.1, random_state=0, rounds=20, trust=trust).fit(
            X, y, clients=clients
        )
        for trust in (None, "sum")
    }
    assert fitted["sum"].guarantee_.adversary is tacit.privacy.Adversary.SECURE_SUM
    stds = {trust: float(one.run_.calibration.noise_stds[0]) for trust, one in fitted.items()}
    assert stds[None] / stds["sum"] == pytest.approx(np.sqrt(6))
    left = fitted["sum"].guarantee_without_trust_
    assert left.adversary is tacit.privacy.Adversary.SERVER
    assert 0.1 < left.epsilon < 1
    assert fitted[None].guarantee_without_trust_ is None
    with pytest.raises(RequestError, match="trust"):
        FederatedLogisticRegression(trust="everyone").fit(X, y, clients=clients)


def test_persons_are_planned_and_not_made_up() -> None:
    columns = (Column("age", "number", range=(0, 100)),)
    schema = Schema(Predicted("y", "binary", classes=("0", "1")), columns, client="site", person="who")
    frame = pd.DataFrame({"site": ["a", "b"] * 60, "who": np.arange(120) // 4, "age": 50, "y": ["0", "1"] * 60})
    rows = what_trust_buys(
        RECIPE, algorithm="noisy-mb-sgd", federation=tacit.Federation.from_frame(frame, schema)
    )
    told = {row.travel: row for row in rows}
    assert told["summed"].noise_std is not None
    assert {row.predicted_metric for row in rows} == {None}
