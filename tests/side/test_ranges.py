"""Ranges that a schema leaves open: what they cost, that they are found, and where they are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.data.schema import Column, Predicted, Schema
from tacit.data.schema.records import TableSource, federate
from tacit.engine.account import account_run
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy import Target
from tacit.side import ranges
from tacit.side.ranges import Limits, private_ranges

TARGET = Target(0.8, 1e-5)
LIMITS = (Limits("dose", 0, 1000), Limits("load", 1e-3, 1e6, logarithmic=True))


def clients(records: int, number: int = 4) -> Federation:
    blank = torch.zeros(records, 1)
    return Federation(blank, blank[:, 0], torch.tensor([records // number] * number), torch.arange(number))


def numbers(records: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    found = np.stack([rng.normal(200, 20, records), np.exp(rng.normal(3, 1, records))], axis=1)
    found[rng.random(records) < 0.3, 0] = np.nan
    return found


def test_ranges_are_found_though_a_third_is_missing() -> None:
    found = private_ranges(clients(8000), numbers(8000), LIMITS, target=TARGET, seed=1)
    (low, high), (least, most) = found.value
    assert 120 < low < 175
    assert 225 < high < 280
    assert 1 < least < 5
    assert 100 < most < 400
    # The exact formula for Gaussian noise (Balle and Wang 2018): a replaced record moves 17 sums by two bounds.
    ratio = 2 * math.sqrt(ranges.HALVINGS + 1) / found.noise_multiplier
    phi = NormalDist().cdf
    delta = phi(ratio / 2 - 0.8 / ratio) - math.exp(0.8) * phi(-ratio / 2 - 0.8 / ratio)
    assert delta == pytest.approx(1e-5, rel=1e-2)
    assert found.guarantee.epsilon <= 0.8


def test_no_record_moves_a_message_farther_than_its_noise_is_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages without noise of neighbouring tables, with the same thresholds, differ by at most two bounds."""
    sums: list[list[torch.Tensor]] = []

    def exact(self: ranges.NoisyMeans, own: torch.Tensor, release: int = 0) -> torch.Tensor:
        sums[-1].append(own)
        return torch.zeros_like(own)  # so thresholds do not depend on the records

    monkeypatch.setattr(ranges.NoisyMeans, "messages", exact)
    base = numbers(400)
    for row in ([np.nan, np.nan], [0.0, 1e6], [1000.0, 1e-3], [np.nan, 5.0]):
        other = base.copy()
        other[7] = row
        sums.clear()
        for table in (base, other):
            sums.append([])
            private_ranges(clients(400), table, LIMITS, target=TARGET, seed=1)
        bound = math.sqrt(2 * len(LIMITS)) / 2
        moved = [float((a - b).norm()) for a, b in zip(*sums, strict=True)]
        assert len(moved) == ranges.HALVINGS + 1
        assert max(moved) <= 2 * bound + 1e-9


SCHEMA = Schema(
    Predicted("ill", "binary", classes=("no", "yes")),
    (
        Column("dose", "number", within=(0, 1000), missing="indicate"),
        Column("load", "number", within=(1e-3, 1e6), scale="log"),
    ),
    client="site",
)


def table(rows: int = 3000) -> pd.DataFrame:
    found = pd.DataFrame(numbers(rows), columns=["dose", "load"])
    found["ill"] = np.where(found["load"] > np.exp(3), "yes", "no")
    return found.assign(site=np.arange(rows) % 3, patient=np.arange(rows) // 2)


def recipe(folder: Path, schema: Schema = SCHEMA, **more: object) -> tacit.Recipe:
    table().to_csv(folder / "t.csv", index=False)
    (folder / "schema.toml").write_text(schema.to_toml())
    data = {"schema": str(folder / "schema.toml")}
    return tacit.Recipe(data=str(folder / "t.csv"), data_settings=data, epsilon=4.0, rounds=3, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("person", [None, "patient"])
def test_a_run_learns_charges_and_accounts(tmp_path: Path, person: str | None) -> None:
    schema = replace(SCHEMA, person=person, rows=2) if person else SCHEMA
    assert Schema.from_toml(schema.to_toml()) == schema
    made = tacit.make_plan(recipe(tmp_path, schema))
    again = tacit.make_plan(recipe(tmp_path, schema))
    assert made.federation.schema == again.federation.schema  # a resumed run finds the same ranges
    assert made.federation.schema is not None
    assert made.federation.schema.learned == ("dose", "load")
    given = recipe(tmp_path, replace(made.federation.schema, learned=()))
    assert made.calibration.noise_multipliers[0] > tacit.make_plan(given).calibration.noise_multipliers[0]
    run = tacit.simulate(made)
    run.save(tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["learned"]["epsilon_alone"] == pytest.approx(0.8, rel=1e-2)
    assert not account_run(tmp_path / "run").differences  # the ledger gives the same epsilon
    assert summary["epsilon"] <= 4.0


def test_adversaries_who_see_more_see_the_ranges_too(tmp_path: Path) -> None:
    """What others are promised beside the main promise has the evaluation in it, and the ranges."""
    settings = {"trust": "sum", "evaluation.held_back": 0.2}
    made = tacit.make_plan(recipe(tmp_path).with_settings(settings))
    assert made.evaluation is not None
    assert made.calibration.beside
    for promise in made.calibration.beside:
        parts = [part for event in promise.events for part in event.events]  # type: ignore[attr-defined]
        flat = [leaf for part in parts for leaf in getattr(part, "events", [part])]
        assert flat.count(made.federation.charged) == made.federation.clients
        assert flat.count(made.evaluation.exposed) == made.federation.clients


def test_refused_where_it_cannot_be_charged(tmp_path: Path) -> None:
    source = TableSource(table(), "t.csv")
    with pytest.raises(RequestError, match="must be charged to a promise"):
        federate([source], SCHEMA)
    with pytest.raises(RequestError, match="only for simulations"):
        tacit.make_plan(recipe(tmp_path, noise="lattice"))
    with pytest.raises(RequestError, match="accounted per record"):
        tacit.make_plan(recipe(tmp_path, algorithm="dp-fedavg"))
    with pytest.raises(RequestError, match="needs limits where it surely lies"):
        Schema.from_toml(SCHEMA.to_toml().replace("within = [0, 1000]\n", ""))
