"""A sweep pays once for what its runs share, and each run is the one that it would have been alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tacit.engine import compare as sweeps
from tacit.engine.execute import execute
from tacit.engine.identity import own_stream
from tacit.engine.recipe import Recipe
from tacit.federation import Federation
from tacit.privacy.accountant.groups import _group_epsilon

BASE = Recipe(algorithm="soteriafl-sgd", data="digits", clients=5, rounds=3, epsilon=2.0, delta=1e-5)


def test_runs_of_a_sweep_share_their_records_and_their_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Federation] = []
    plain = sweeps.load_federation

    def noted(recipe: Recipe, data_dir: Path | None) -> Federation:
        read.append(plain(recipe, data_dir))
        return read[-1]

    monkeypatch.setattr(sweeps, "load_federation", noted)
    sweeps._records.cache_clear()
    _group_epsilon.cache_clear()
    grid = {"algorithm.step": [0.02, 0.05, 0.1]}
    (outcome,) = sweeps.compare(BASE, ["soteriafl-sgd"], out=tmp_path, grid=grid, seeds=2, workers=1)
    assert len(read) == 1
    assert _group_epsilon.cache_info().misses == len(set(read[0].sizes.tolist()))
    plain = replace(BASE, seed=1, data_settings={"seed": 0})
    tuned = own_stream(plain.with_algorithm_settings(step=outcome.tuned["algorithm.step"]))
    alone = execute(tuned, tmp_path / "alone")
    for name in ("train_loss", "epsilon", "noise_std", "protection", "test_metric"):
        assert outcome.summaries[1][name] == alone[name]
