"""One simulation in several processes: the same bits whatever their number, and clear refusals."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.processes_of_a_run import run_all
from tests.warm import Warm
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.engine.execute import execute
from tacit.engine.history import History
from tacit.engine.objective import objective
from tacit.engine.recipe import Recipe
from tacit.engine.together import ALONE, Division, Together
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models.linear import softmax_regression


def left_behind(run: Path) -> tuple[Any, ...]:
    """What a run left behind, except for its times."""
    rows = [replace(row, seconds=0.0) for row in History.read(run / "history.csv")]
    return rows, *((run / name).read_bytes() for name in ("model.safetensors", "ledger.jsonl", "recipe.toml"))


def test_processes_that_compute_together_give_the_same_bits_as_one(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    code = Warm(run_all, tmp_path, output=output).wait()
    said = output.read_text()
    assert code == 0, said
    for name in ("shifts", "whole clients", "sums"):
        one, two, three = (left_behind(tmp_path / f"{name} {size}") for size in (1, 2, 3))
        assert one == two == three
    assert left_behind(tmp_path / "resumed") == left_behind(tmp_path / "longer")
    # The recipe that was written says how many groups there are, so one process repeats it without torchrun.
    again = Recipe.read(tmp_path / "shifts 2" / "recipe.toml")
    assert again.client_groups == 4
    execute(again, tmp_path / "again")
    assert left_behind(tmp_path / "again") == left_behind(tmp_path / "shifts 2")
    for told in (
        "process 1: process 1 of 3 lost the others",
        "lattice: processes compute together only what all of them can draw",
        "past points: with this model, soteriafl-svrg remembers past points that several clients share",
        "groups: 2 processes cannot share 1 group(s) of clients",
        "process 1: data, recipe, code and libraries must be the same in all processes, but differ in process 1",
    ):
        assert told in said


@pytest.mark.slow
def test_torchrun_starts_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "tacit"]
    settings = ["run", "--rounds", "3", "--out", tmp_path / "two", "--json"]
    done = subprocess.run([*command, *settings], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    execute(Recipe.read(tmp_path / "two" / "recipe.toml"), tmp_path / "one")
    assert left_behind(tmp_path / "one") == left_behind(tmp_path / "two")


def test_groups_are_consecutive_and_of_about_equal_load() -> None:
    loads = torch.tensor([9.0, 1, 1, 1, 3, 3, 3, 3, 0, 0])
    parts = [Division.of(loads, 4, Together(rank, 2)).own(torch.arange(10)) for rank in range(2)]
    assert [part.tolist() for own in parts for part in own] == [[0], [1, 2, 3], [4, 5], [6, 7, 8, 9]]
    assert Division.of(loads, 4, Together(0, 2)).first_clients == [0, 4, 10]
    everyone = Division.of(loads, 3, Together(1, 2)).own(torch.tensor([0, 3, 9]))
    assert torch.cat(everyone).tolist() == [3, 9]


def test_clients_without_memory_are_divided_by_their_place_in_the_cohort() -> None:
    cohort = torch.tensor([1, 2, 3, 4, 5, 9])
    divisions = [Division.of(torch.ones(10), 2, Together(rank, 2)) for rank in range(2)]
    assert [own.tolist() for one in divisions for own in one.own(cohort)] == [[1, 2, 3, 4], [5, 9]]
    dealt = [own.tolist() for one in divisions for own in one.own(cohort, remember=False)]
    assert dealt == [[1, 2, 3], [4, 5, 9]]
    # A client with as much to compute as all others together is a group of its own.
    heavy = Division.of(torch.tensor([1.0, 1, 1, 3]), 2)
    assert [own.tolist() for own in heavy.own(torch.arange(4), remember=False)] == [[0, 1, 2], [3]]


def test_sums_of_groups_are_added_in_their_order() -> None:
    sums = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])
    assert Division.of(torch.ones(4), 4).added(sums.clone()).item() == 1.0
    assert Division.of(torch.ones(4), 4).added(sums[[0, 2, 1, 3]]).item() == 2.0


def test_a_group_for_every_client_changes_only_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.rand(35, 3, generator=generator), torch.randint(0, 2, (35,), generator=generator)
    federation = Federation.from_arrays(features, targets, [number // 5 for number in range(35)])
    model = softmax_regression(features=3, classes=2)
    point = torch.rand(model.dim, generator=generator)
    whole, grouped = (
        objective(model, point, federation, division=division)
        for division in (Division(), Division.of(federation.sizes, 20))
    )
    torch.testing.assert_close(whole, grouped)


def test_a_process_alone_talks_to_nobody() -> None:
    rows = torch.rand(2, 3)
    assert ALONE.from_first("it") == "it"
    assert ALONE.stacked(rows, [2]) is rows
    assert ALONE.tensors_from_first({"a": rows}) == {"a": rows}
    ALONE.check_same("nothing", "mine")
    ALONE.collect(rows, [0, 2])


def test_a_run_without_torchrun_is_resumed_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.cli.run import _asked

    execute(Recipe(algorithm="cdp-sgd", clients=3, rounds=1), tmp_path)
    with pytest.raises(RequestError, match="begun without torchrun"):
        _asked(None, {}, None, None, tmp_path, True, Together(by_torchrun=True))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    result = CliRunner().invoke(app, ["compare"])
    assert "torchrun divides one simulation" in str(result.exception)
