"""The benchmarks run, and all that they compare computes the same thing."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from tacit.bench import cross_device, cross_silo
from tacit.bench.measure import Used, side_by_side
from tacit.bench.records import made_up_records
from tacit.cli.app import app
from tacit.client.cohort import Cohort


@pytest.mark.parametrize("task", ["T2", "sweep", "calibration", "start"])
def test_a_quick_benchmark_prints_one_json_object(task: str) -> None:
    result = CliRunner().invoke(app, ["bench", task, "--quick", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["task"] == task
    assert {"date", "processor", "load", "torch"} <= set(report["machine"])
    assert all(timing["cpu_seconds"] >= 0 for timing in report["timings"])


def _in_this_process(*arguments: str) -> Used:
    """A command without the imports of a new Python. That these are started and measured, "start" shows above."""
    module, program, *words = arguments
    assert (module, program) == ("-m", "tacit")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return Used(1.0, 1.0, 1.0)


def test_the_quick_benchmark_of_a_table_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.bench.table.python_process", _in_this_process)
    result = CliRunner().invoke(app, ["bench", "table", "--quick"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("table: ")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["T1", "T3", "scaling"])
def test_the_other_quick_benchmarks_run(task: str) -> None:
    result = CliRunner().invoke(app, ["bench", task, "--quick"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"{task}: ")


def test_turns_are_compared_with_the_first_run() -> None:
    seen: list[str] = []
    timings = side_by_side(
        {"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, repeats=2, least_seconds=0.0
    )
    assert seen == ["a", "b", "a", "b", "b", "a"]
    assert [timing.name for timing in timings] == ["a", "b"]
    assert timings[0].times_tacit == timings[0].least_times == timings[0].most_times == 1.0


def test_the_loops_of_t1_do_the_same_arithmetic_as_tacit() -> None:
    federation, members = made_up_records(6, 4, features=5), torch.arange(6)
    simulation = cross_device.private_simulation(federation, 6)
    work, point = simulation.algorithm.work, torch.zeros(60)
    silence = torch.zeros(6, dtype=torch.float64)
    cohort = Cohort(federation, members, 0, simulation.randomness)
    rows, _ = work.run(point, cohort, {}, silence)
    for contender in (cross_device.by_loop, cross_device.by_batch):
        torch.testing.assert_close(contender(federation, members, 0.0), rows.sum(0), rtol=1e-3, atol=1e-4)


def test_reading_the_bytes_back_changes_no_round_of_t2() -> None:
    federation = made_up_records(10, 20)
    kept, read = (cross_silo.private_rounds(federation, 8, read=read) for read in (False, True))
    for _ in range(2):
        point = kept()
        assert torch.equal(point, read())
    assert bool(point.isfinite().all())
