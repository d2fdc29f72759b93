"""Fixed features and frozen parts are kept by every way to run, deploy, load and export a model."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit.deploy.job import Job
from tacit.deploy.records import own_records
from tacit.deploy.site_records import at_site
from tacit.engine.execute import execute
from tacit.errors import DataError, RequestError
from tacit.planning.choice import choose
from tacit.sklearn import FederatedEstimator

FEATURES = {"data.features": "downsample:2+random:30"}
FEW = tacit.Recipe(algorithm="soteriafl-gd", data="digits", clients=3, rounds=3)
MODULE = """
import torch
from torch import nn

def network(classes=10, inputs=64):
    return nn.Sequential(nn.Linear(inputs, 12), nn.Tanh(), nn.Linear(12, classes))
"""


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model of the user's own, in the current directory."""
    (tmp_path / "fronts_network.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield "module:fronts_network:network"  # type: ignore[misc]
    sys.modules.pop("fronts_network", None)


@pytest.fixture
def raw() -> np.ndarray:
    found = tacit.load("digits", clients=3).test_features
    assert found is not None
    return found.numpy()[:20]


def test_a_saved_run_predicts_from_records_as_they_were(tmp_path: Path, raw: np.ndarray) -> None:
    recipe = FEW.with_settings(FEATURES)
    execute(recipe, tmp_path / "run")
    run = tacit.load_run(tmp_path / "run")
    federation = tacit.load("digits", clients=3, features=FEATURES["data.features"])
    assert federation.test_features is not None
    expected = run.trained.model.predict(run.trained.parameters, federation.test_features[:20])
    assert run.predict(raw).tolist() == [str(int(digit)) for digit in expected]
    module = run.to_torch()
    torch.testing.assert_close(
        module(torch.from_numpy(raw).double()), torch.from_numpy(run.predict_proba(raw)), rtol=1e-4, atol=1e-6
    )
    with pytest.raises(RequestError, match="use to_torch"):
        run.to_sklearn()


def test_a_saved_head_needs_the_same_frozen_weights(tmp_path: Path, raw: np.ndarray, network: str) -> None:
    execute(FEW.with_settings({"model": network, "model.trainable": "head"}), tmp_path / "run")
    run = tacit.load_run(tmp_path / "run", model=network)
    assert run.trained.parameters.shape == (12 * 10 + 10,)
    assert run.guarantee is not None
    assert any("frozen weights" in said for said in (*run.guarantee.public, *run.card.public))
    module = run.to_torch()
    found = module(torch.from_numpy(raw).double())
    torch.testing.assert_close(found, torch.from_numpy(run.predict_proba(raw)), rtol=1e-4, atol=1e-6)
    # Other frozen weights make other features.
    sys.modules.pop("fronts_network", None)
    Path("fronts_network.py").write_text(MODULE.replace("nn.Tanh()", "nn.Tanh(), nn.Linear(12, 12)"))
    with pytest.raises(DataError, match="frozen weights are not those"):
        tacit.load_run(tmp_path / "run", model=network)


def test_features_and_a_frozen_front_follow_each_other(network: str) -> None:
    settings = {"model": network, "model.trainable": "head", "model.inputs": 16, "data.features": "downsample:2"}
    plan = tacit.make_plan(FEW.with_settings(settings))
    assert plan.federation.feature_shape == (12,)
    assert plan.federation.features_by is not None
    assert plan.federation.features_by.spec == "downsample:2+front"


def test_the_estimator_maps_records_when_it_predicts(raw: np.ndarray) -> None:
    federation = tacit.load("digits", clients=3)
    X, y = federation.features.numpy(), federation.targets.numpy()
    settings = {**FEATURES, "rounds": 20}
    estimator = FederatedEstimator(algorithm="soteriafl-gd", epsilon=8, random_state=0, settings=settings)
    estimator.fit(X, y, clients=np.arange(len(y)) % 3)
    assert estimator.predict_proba(raw).shape == (20, 10)
    assert (estimator.predict(raw) == estimator.predict_proba(raw).argmax(1)).all()
    assert estimator.score(X, y) > 0.3


@pytest.mark.parametrize("front", [False, True])
def test_a_silo_maps_its_own_records(tmp_path: Path, network: str, front: bool) -> None:
    settings = {"model": network, "model.trainable": "head"} if front else FEATURES
    plan = tacit.make_plan(FEW.with_settings({**settings, "noise": "lattice"}))
    job = Job.from_plan(plan, ("a", "b", "c"))
    federation = tacit.load("digits", clients=3).client(1)
    np.savez(tmp_path / "own.npz", X=federation.features.numpy(), y=federation.targets.numpy())
    records = at_site(job, "b", own_records(str(tmp_path / "own.npz"), job))
    torch.testing.assert_close(records.features, plan.federation.client(1).features)
    assert job.algorithm.work.model.dim == plan.algorithm.work.model.dim
    assert set(plan.federation.peeks) <= set(records.peeks)


def test_plans_choose_settings_for_the_features_and_know_their_norm() -> None:
    (best, *_) = choose(FEW.with_settings({**FEATURES, "rounds": None}), algorithms=["soteriafl-gd"], trials=1)
    assert best.recipe.feature_norm == pytest.approx(2**0.5)
    assert best.recipe.algorithm_settings["clip_norm"] == pytest.approx(0.3 * 3**0.5)


def test_features_are_for_arrays_and_only_once(tmp_path: Path) -> None:
    mapped = tacit.load("digits", clients=3, features="downsample:2")
    with pytest.raises(RequestError, match="already"):
        tacit.make_plan(FEW.with_settings({"data.features": "random:30"}), federation=mapped)
    (tmp_path / "t.csv").write_text(
        "a,b,y,site\n" + "\n".join(f"{i},{i % 3},{i % 2},s{i % 2}" for i in range(40))
    )
    recipe = tacit.Recipe(data=str(tmp_path / "t.csv"), rounds=1).with_settings(
        {"data.target": "y", "data.client": "site", "data.public_schema": True, "data.features": "random:30"}
    )
    with pytest.raises(RequestError, match="a schema says how a table is prepared"):
        tacit.make_plan(recipe)


def test_a_module_with_a_frozen_part_of_its_own_is_split_too() -> None:
    module = nn.Sequential(nn.Linear(64, 6), nn.Linear(6, 10))
    module[0].requires_grad_(False)
    federation = tacit.load("digits", clients=3)
    plan = tacit.make_plan(FEW, federation=federation, model=tacit.ModuleModel(module))
    assert plan.federation.feature_shape == (6,)
    assert plan.algorithm.work.model.dim == 70
