"""Runs on another device, as far as a machine without one can tell: a device that computes on the processor but
refuses to mix tensors of both. Speed and rounding of a real device are not tested."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engine.fake_device import Placed, fake_device
from torch import nn

import tacit
from tacit.algorithms.registry import ALGORITHMS
from tacit.engine.execute import run_plan
from tacit.errors import RequestError


def test_the_fake_device_refuses_what_a_real_one_refuses() -> None:
    with fake_device() as device:
        there, here = torch.ones(2).to(device), torch.ones(2)
        assert isinstance(there, Placed)
        assert (there + there).cpu().tolist() == [2.0, 2.0]
        assert float((there * torch.tensor(2.0)).sum()) == 4.0
        with pytest.raises(RuntimeError, match="expected all tensors on one device"):
            there + here
        with pytest.raises((RuntimeError, TypeError)):
            there.numpy()


def plan(algorithm: str, model: str, **settings: object) -> tacit.Plan:
    promise = {} if ALGORITHMS[algorithm].private else {"privacy": "none", "epsilon": None, "delta": None}
    few = {"records_per_client": 20}
    recipe = tacit.Recipe(algorithm=algorithm, data="digits", clients=3, model=model, rounds=2, data_settings=few)
    recipe = recipe.with_settings(promise)
    return tacit.make_plan(recipe.with_settings(dict(settings)))


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_a_run_on_another_device_gives_the_same_bits(algorithm: str) -> None:
    made = plan(algorithm, "softmax")
    expected = tacit.simulate(made)
    with fake_device() as device:
        found = tacit.simulate(made, device=device)
    assert not isinstance(found.parameters, Placed)
    assert torch.equal(found.parameters, expected.parameters)
    assert found.last.train_loss == expected.last.train_loss


@pytest.mark.parametrize("compressor", ["identity", "rand-k:0.2", "natural", "qsgd:16", "rand-k:0.5+qsgd:16"])
@pytest.mark.parametrize("model", ["network", "softmax"])
def test_messages_are_made_on_the_processor(compressor: str, model: str) -> None:
    made = plan("soteriafl-sgd", model, **{"algorithm.compressor": compressor})
    expected = tacit.simulate(made)
    with fake_device() as device:
        assert torch.equal(tacit.simulate(made, device=device).parameters, expected.parameters)


def test_secure_sums_run_there() -> None:
    made = plan("soteriafl-sgd", "softmax", trust="sum", **{"algorithm.compressor": "rand-k:0.2"})
    expected = tacit.simulate(made)
    with fake_device() as device:
        assert torch.equal(tacit.simulate(made, device=device).parameters, expected.parameters)


def test_a_run_is_resumed_there(tmp_path: Path) -> None:
    made = plan("soteriafl-saga", "softmax", **{"algorithm.compressor": "rand-k:0.2"})
    expected = tacit.simulate(made)

    def stopped(finished: int, row: object) -> None:
        if finished == 1:
            raise KeyboardInterrupt

    with fake_device() as device:
        with pytest.raises(KeyboardInterrupt):
            tacit.simulate(made, device=device, out=tmp_path, checkpoint_every=1, progress=stopped)
        found = tacit.simulate(made, device=device, out=tmp_path, checkpoint_every=1)
    assert torch.equal(found.parameters, expected.parameters)


def test_a_network_of_the_user_runs_there() -> None:
    module = nn.Sequential(nn.Linear(64, 4), nn.Tanh(), nn.Linear(4, 10))
    federation = tacit.load("digits", clients=3, records_per_client=20)
    recipe = tacit.Recipe(algorithm="soteriafl-gd", data="custom", rounds=2)
    made = tacit.make_plan(recipe, federation=federation, model=tacit.ModuleModel(module, trainable="0.bias"))
    expected = tacit.simulate(made)
    with fake_device() as device:
        found = tacit.simulate(made, device=device)
    torch.testing.assert_close(found.parameters, expected.parameters)


def test_features_and_frozen_parts_are_computed_there() -> None:
    module = nn.Sequential(nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 10))
    federation = tacit.load("digits", clients=3, records_per_client=20)
    recipe = tacit.Recipe(
        algorithm="soteriafl-gd", data="custom", rounds=2, data_settings={"features": "random:20"}
    )

    def found(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        model = tacit.ModuleModel(module, trainable="head")
        made = tacit.make_plan(replace(recipe, device=device), federation=federation, model=model)
        return made.federation.features, run_plan(made).parameters

    here = found("cpu")
    with fake_device() as device:
        features, parameters = found(device)
        assert not isinstance(features, Placed)
        torch.testing.assert_close(features, here[0])
        torch.testing.assert_close(parameters, here[1])


def test_a_missing_device_is_refused_by_name() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    with pytest.raises(RequestError, match="device 'cuda' is not available"):
        tacit.make_plan(tacit.Recipe(device="cuda"))
