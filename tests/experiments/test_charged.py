"""Charged tuning: a random search, and an epsilon for each of those who may look."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pytest
from dp_accounting import DpEvent
from typer.testing import CliRunner

from tacit.algorithms.settings import Settings
from tacit.cli.app import app
from tacit.engine.workers import Result
from tacit.errors import RequestError
from tacit.experiments.cells import Runner
from tacit.experiments.charged import cost_table, selected
from tacit.experiments.tuning import grid
from tacit.privacy import calibrate_noise, epsilon
from tacit.privacy.accountant.selection import RandomTrials, selection_epsilon
from tacit.privacy.events import gaussian, repeated, to_dict


@lru_cache
def run_of(asked: float) -> DpEvent:
    """Ten releases with the least noise for this epsilon."""
    noise = calibrate_noise(lambda z: repeated(gaussian(z), 10), epsilon=asked, delta=1e-5)
    return repeated(gaussian(noise), 10)


def work(settings: Settings, data_dir: Path | None) -> Result:
    asked = settings.get("run_epsilon", 1.0)
    if "priced" not in settings:
        with (Path(settings["log"])).open("a") as file:
            said = [settings["split"], settings["seed"], settings["step"], settings["looks"]]
            file.write(json.dumps(said) + "\n")
    return {
        "loss": settings["step"],
        "epsilon": asked,
        "adjacency": "replace-one",
        "events": [{"event": to_dict(run_of(asked)), "delta": 1e-5}],
    }


def test_the_best_of_a_random_search_is_shown_with_its_price(tmp_path: Path) -> None:
    points = grid({"log": str(tmp_path / "log"), "looks": 1}, step=[0.3, 0.1, 0.2])
    with Runner(tmp_path / "cells", workers=1) as runner:
        found = selected(
            runner,
            work,
            {(1.0, "true", "a"): points},
            seeds=range(6),
            score=lambda result: result["loss"],
            final={"looks": 9},
        )
    runs = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert len({seed for _, seed, _, _ in runs}) == len(runs), "every run has noise of its own"
    assert {looks for *_, looks in runs} == {9}
    (results,) = found.values()
    assert len(results) == 6
    for seed, result in enumerate(results):
        own = [step for split, _, step, _ in runs if split == seed]
        assert result["loss"] == min(own)
    assert len({sum(split == seed for split, *_ in runs) for seed in range(6)}) > 1, "their number is random"
    price = results[0]["tuning"]
    assert selection_epsilon(run_of(results[0]["epsilon"]), RandomTrials(3.0), 1e-5) == price["model"]
    assert price["model"] == pytest.approx(1.0, rel=2e-3), "the choice has the epsilon that was asked for"
    assert price["model"] <= 1.0
    assert price["server"] == epsilon(repeated(run_of(results[0]["epsilon"]), price["most"]), 1e-5)
    assert results[0]["epsilon"] < price["model"] < price["server"]
    (table,) = cost_table(found)
    assert table.rows[0] == (
        1.0,
        "true",
        "a",
        results[0]["epsilon"],
        3,
        price["model"],
        price["most"],
        price["server"],
    )
    assert cost_table({("x",): [{"loss": 1}]}) == ()


def unlike(settings: Settings, data_dir: Path | None) -> Result:
    run = repeated(gaussian(40.0), settings["rounds"])
    return {"epsilon": 1.0, "adjacency": "replace-one", "events": [{"event": to_dict(run), "delta": 1e-5}]}


def test_runs_that_release_different_things_are_not_chosen_from(tmp_path: Path) -> None:
    """The theorem is about one run's law; the best one's own event need not bound that of the others."""
    points = grid({}, rounds=list(range(1, 9)))
    with Runner(tmp_path, workers=1) as runner, pytest.raises(RequestError, match="different things"):
        selected(runner, unlike, {"a": points}, seeds=range(4), score=lambda result: 0.0)


def test_an_experiment_without_such_tuning_refuses(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["reproduce", "norm-fig2", "--charge-tuning", "--out", str(tmp_path)])
    assert isinstance(said.exception, RequestError)
    assert "--charge-tuning" in str(said.exception)
