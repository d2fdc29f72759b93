"""A run in a notebook: what it is, what it promises, what came out."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import tacit


def test_a_run_shows_its_promise_and_its_result(tmp_path: Path) -> None:
    settings = {"data": "breast-cancer", "clients": 3, "rounds": 2, "algorithm": "soteriafl-gd"}
    run = tacit.simulate(tacit.make_plan(tacit.Recipe(**settings, epsilon=2.0, delta=1e-5)))
    private, plain = run._repr_html_(), repr(run)
    assert plain.startswith("algorithm: soteriafl-gd on breast-cancer, 2 rounds\npromise: From what")
    assert len(plain) < 1000, "without its tensors"
    assert private.startswith("<table>")
    assert "soteriafl-gd on breast-cancer, 2 rounds" in private
    assert "epsilon = 2" in private
    assert "<th>measured without noise</th><td>training loss" in private
    assert len(private) < 3000
    assert str(run.guarantee) == run.guarantee.sentence()  # type: ignore[union-attr]
    loaded = tacit.load_run(run.save(tmp_path))
    assert repr(loaded).startswith(
        f"run: {tmp_path}\nmodel: logistic, 31 parameters\npromise: From what was sent,"
    )
    assert len(repr(loaded)) < 1000 + len(str(tmp_path)), "without its tensors"
    open_ = tacit.simulate(
        tacit.make_plan(tacit.Recipe(**settings, privacy="none", epsilon=None, delta=None))
    )._repr_html_()
    assert "this run is not private" in open_


def test_a_plan_and_a_network_to_be_trained_show_a_few_lines() -> None:
    rows, labels = torch.randn(40, 4), torch.arange(40) % 2
    clients = [(rows[:20], labels[:20]), (rows[20:], labels[20:])]
    private = tacit.make_private(nn.Linear(4, 2), "cross-entropy", clients, epsilon=3, rounds=1, seed=0)
    assert repr(private.plan).startswith("algorithm: soteriafl-sgd on custom, 1 rounds\npromise: From what")
    before = repr(private)
    assert before.startswith("network: Linear, 10 trained numbers\nalgorithm: soteriafl-sgd on custom")
    assert before.endswith("training: not started: .fit() trains")
    private.fit()
    assert repr(private).endswith("training: finished, see .run")
    assert "epsilon = 3" in private._repr_html_()
