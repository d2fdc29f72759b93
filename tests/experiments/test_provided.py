"""Experiments on files that only the user has: run on small ones, and left out with a reason without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.data import sources
from tacit.errors import DataError
from tacit.experiments import fed_spa_runs, norm_features
from tacit.experiments.cells import Runner
from tacit.experiments.experiment import PUBLISHED, Scale
from tacit.experiments.provided import provided
from tacit.experiments.registry import experiment_named
from tacit.federation import Federation


@pytest.fixture(autouse=True)
def _nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sources.ENVIRONMENT, raising=False)
    monkeypatch.setattr("tacit.experiments.provided.cache_dir", lambda: tmp_path / "cache")
    norm_features._federation.cache_clear()


@pytest.mark.parametrize("name", ["fed-spa-table2", "norm-table2b", "norm-table2c"])
def test_without_the_file_it_says_what_to_put_where(tmp_path: Path, name: str) -> None:
    experiment = experiment_named(name)
    with Runner(tmp_path / "cells", data_dir=tmp_path, workers=1) as runner, pytest.raises(DataError) as caught:
        experiment.run(runner, Scale(quick=True))
    assert f"DIR/{experiment.data}/" in str(caught.value)
    assert str(tmp_path / str(experiment.data)) in str(caught.value)


def test_the_data_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("given", "named"):
        (tmp_path / place / "x").mkdir(parents=True)
        (tmp_path / place / "x" / "f").touch()
    monkeypatch.setenv(sources.ENVIRONMENT, str(tmp_path / "named"))
    assert provided("x", "f", tmp_path / "given", "it") == tmp_path / "given" / "x" / "f"
    assert provided("x", "f", tmp_path / "other", "it") == tmp_path / "named" / "x" / "f"


def write_features(folder: Path, **changes: object) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    features = rng.standard_normal((60, 4)).astype(np.float32) + 3 * np.eye(4, dtype=np.float32)[labels]
    arrays = {
        "train_features": features,
        "train_labels": labels,
        "test_features": features[:30],
        "test_labels": labels[:30],
    }
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / norm_features.FILE, **{**arrays, **changes})  # type: ignore[arg-type]  # some are wrong


def test_features_of_the_user_make_the_table(tmp_path: Path) -> None:
    write_features(tmp_path / "cifar-10-features")
    with Runner(tmp_path / "cells", data_dir=tmp_path, workers=1) as runner:
        found = experiment_named("norm-table2b").run(runner, Scale(quick=True))
    (table,) = found.tables
    assert {line[0] for line in table.rows} == {None, 5.0, 2.0}
    free = next(line for line in table.rows if line[0] is None)
    assert free[4] > 0.6, "the classes are far apart"
    assert found.settings["clients"] == 12
    before = len(list((tmp_path / "cells").iterdir()))
    write_features(tmp_path / "cifar-10-features", test_labels=np.zeros(30, dtype=np.int64))
    with Runner(tmp_path / "cells", data_dir=tmp_path, workers=1) as runner:
        (other,) = experiment_named("norm-table2b").run(runner, Scale(quick=True)).tables
    assert other.rows != table.rows
    assert len(list((tmp_path / "cells").iterdir())) == 2 * before, "other features, other runs"


@pytest.mark.parametrize(
    "changes",
    [
        {"train_labels": np.zeros(60)},
        {"test_labels": np.zeros(7, dtype=int)},
        {"train_features": np.zeros(60)},
        {"train_labels": np.array([object()] * 60)},
    ],
)
def test_features_of_another_kind_are_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    write_features(tmp_path / "f", **changes)
    with pytest.raises(DataError, match=r"train_|test_"):
        norm_features.read_features(tmp_path / "f" / norm_features.FILE)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"\x93NUMPY", b"no archive"])
def test_a_file_that_is_no_archive_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / norm_features.FILE).write_bytes(content)
    with pytest.raises(DataError, match=norm_features.FILE):
        norm_features.read_features(tmp_path / norm_features.FILE)


def test_a_run_on_images_like_cifar(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(10 * 20, 3072, generator=generator)
    labels = torch.arange(200) % 10
    parts = [(images[20 * k : 20 * k + 20], labels[20 * k : 20 * k + 20]) for k in range(10)]
    federation = Federation.from_clients(parts, test=(images[:20], labels[:20]), classes=10)
    monkeypatch.setattr(fed_spa_runs, "federation_of", lambda data, data_dir: federation)
    settings = {
        "data": "cifar-10",
        "mode": PUBLISHED,
        "algorithm": "fed-spa",
        "ratio": 0.1,
        "label": 1.0,
        "rounds": 1,
        "local_steps": 1,
        "local_step": 0.1,
        "evaluations": 1,
        "seed": 0,
    }
    found = fed_spa_runs.run(settings, None)
    assert found["history"]["round"] == [0, 1]
    assert 0 <= fed_spa_runs.best(found) <= 1
    assert found["epsilon"] > 0
