"""Sweeps: on every core, through a kill, and never twice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.warm import Warm
from torch import Tensor

from tacit.algorithms.calibrate import Calibration
from tacit.client.cohort import Cohort
from tacit.engine import identity, workers
from tacit.engine.compare import Point, compare, points
from tacit.engine.execute import stored_summary
from tacit.engine.history import History, HistoryRow, equal_bits
from tacit.engine.lock import held
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.round import client_round
from tacit.engine.simulate import simulate
from tacit.engine.simulation import Simulation
from tacit.errors import DivergedError, RequestError, TacitError

BASE = Recipe(data="digits", clients=3, rounds=2, epsilon=2.0, algorithm_settings={"batch": 0.2})
GRID: dict[str, list[Any]] = {"algorithm.step": [0.05, 0.1, 0.2, 0.4]}


class Pool:
    """Runs at once, and notes how many it was asked to run at the same time."""

    asked: int | None = None
    cancelled = False

    def __init__(self, workers: int, **_: object) -> None:
        Pool.asked = workers

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Any, *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self, *, cancel_futures: bool) -> None:
        Pool.cancelled = cancel_futures


def test_every_core_has_a_process_unless_one_run_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(workers.os, "cpu_count", lambda: 3)
    compare(BASE, ["ldp-sgd"], out=tmp_path, grid=GRID)
    assert Pool.asked == 3
    monkeypatch.setattr(Pool, "asked", None)
    compare(BASE, ["cdp-sgd"], out=tmp_path)
    assert Pool.asked is None


def sweep(out: Path) -> None:
    compare(replace(BASE, rounds=20), ["ldp-sgd"], out=out, grid=GRID, seeds=2, workers=1)


def test_a_killed_sweep_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    out, other = tmp_path / "killed", tmp_path / "whole"
    killed = Warm(sweep, out, output=tmp_path / "output.txt")
    while not list(out.rglob("summary.json")):
        assert killed.poll() is None, (tmp_path / "output.txt").read_text()
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    done = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    assert len(done) >= 1, "it had begun"
    for directory in (out, other):
        sweep(directory)
    assert {path: path.stat().st_mtime_ns for path in done} == done, "what was finished is not run again"
    points = sorted(path.name for path in (out / "points").iterdir())
    assert points == sorted(path.name for path in (other / "points").iterdir())
    assert len(points) == 4 + 1
    for name in points:
        ours, whole = (stored_summary(place / "points" / name) for place in (out, other))
        assert ours is not None
        assert whole is not None
        told = {key for key in ours if key not in ("run_dir", "peak_memory_mb") and "seconds" not in key}
        assert {key: ours[key] for key in told} == {key: whole[key] for key in told}


def test_the_users_own_files_are_compared_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    rows = "".join(f"{k / 30},{k % 7},{k % 2}\n" for k in range(30))
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("x,z,y\n" + rows)
    files = ",".join(str(tmp_path / f"{name}.csv") for name in ("a", "b"))
    base = Recipe(
        data=files,
        data_settings={"target": "y", "public_schema": True},
        rounds=2,
        epsilon=2.0,
        algorithm_settings={"batch": 0.2, "step": 0.1},
    )
    rivals = compare(base, ["ldp-sgd", "cdp-sgd"], out=tmp_path / "out", seeds=2)
    assert len(rivals) == 2


def test_what_diverged_is_shown_as_such_and_never_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid: dict[str, list[Any]] = {"algorithm.step": [0.1, 1e42]}
    (first,) = compare(BASE, ["ldp-sgd"], out=tmp_path, grid=grid, workers=1)
    assert [dict(point.tuned) for point in first.diverged] == [{"algorithm.step": 1e42}]
    assert first.tuned == {"algorithm.step": 0.1}
    assert len(first.points) == 2

    def refuse(*_: object) -> None:
        raise AssertionError("run again")

    monkeypatch.setattr(Point, "run", refuse)
    (again,) = compare(BASE, ["ldp-sgd"], out=tmp_path, grid=grid, workers=1)
    assert again == first


def test_an_algorithm_that_always_diverged_does_not_hide_the_others(tmp_path: Path) -> None:
    base = BASE.with_algorithm_settings(step=1e42)
    with pytest.raises(DivergedError, match=r"nothing is left to compare: ldp-sgd: .* use a smaller step"):
        compare(base, ["ldp-sgd"], out=tmp_path, workers=1)
    # Stages have steps of their own.
    staged = base.with_algorithm_settings(stages=[[2, 10.0]])
    lost, kept = compare(staged, ["ldp-sgd", "accelerated-mb-sgd"], out=tmp_path, workers=1)
    assert (lost.summaries, len(lost.diverged)) == ([], 1)
    assert (len(kept.summaries), kept.diverged) == (1, ())


def test_a_wrong_point_cancels_what_waits_and_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(Pool, "cancelled", False)
    with pytest.raises(RequestError, match="step must be"):
        compare(BASE, ["ldp-sgd"], out=tmp_path, grid={"algorithm.step": [0.1, -1.0]}, workers=2)
    assert Pool.cancelled
    assert len(list(tmp_path.rglob("summary.json"))) == 1


def test_a_process_that_was_killed_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(Point, "run", killed)
    with pytest.raises(TacitError, match="start it again to continue"):
        compare(BASE, ["ldp-sgd"], out=tmp_path, grid=GRID, workers=2)


HEARTBEAT = """
import multiprocessing, sys, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tacit.engine.workers import begin_worker
def beat(path):
    while True:
        Path(path).write_text(str(time.time()))
        time.sleep(0.02)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=begin_worker) as pool:
        pool.submit(beat, sys.argv[1]).result()
"""


def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script, beat = tmp_path / "parent.py", tmp_path / "beat"
    script.write_text(HEARTBEAT)
    parent = subprocess.Popen([sys.executable, str(script), str(beat)], start_new_session=True)
    try:
        for _ in range(1200):
            if beat.is_file() or parent.poll() is not None:
                break
            time.sleep(0.05)
        assert beat.is_file()
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        # On a busy machine it takes a while.
        for _ in range(60):
            last = beat.stat().st_mtime_ns
            time.sleep(0.5)
            if beat.stat().st_mtime_ns == last:
                break
        else:
            pytest.fail("the worker still works")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)


def test_points_of_a_grid_that_are_the_same_run_are_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, runs = Point.run, []

    def noted(*arguments: Any) -> dict[str, Any]:
        runs.append(arguments)
        return plain(*arguments)

    monkeypatch.setattr(Point, "run", noted)
    reports: list[tuple[int, int]] = []
    grid: dict[str, list[Any]] = {"algorithm.compressor": ["natural", "rand-k:0.5"]}
    compare(BASE, ["ldp-sgd"], out=tmp_path, grid=grid, workers=1, progress=lambda *seen: reports.append(seen))
    assert len(runs) == 1, "it sends everything, whatever the compressor"
    assert reports[-1] == (1, 1)


def _first_messages(recipe: Recipe) -> tuple[Tensor, Tensor, Calibration]:
    """The start, what every client sends in the first round, and with which noise."""
    plan, seen = make_plan(recipe), []

    def advance(simulation: Simulation, state: Any, cohort: Tensor, *, measure: bool = False) -> Any:
        point = simulation.algorithm.server.broadcast(state.server.update, 0)["point"]
        part = Cohort(simulation.federation, cohort, 0, simulation.randomness)
        multipliers = simulation.calibration.noise_multipliers
        packets, _ = client_round(simulation.algorithm, {"point": point}, part, state.clients, multipliers)
        seen.append((point, packets.dense(), simulation.calibration))
        raise DivergedError("seen enough")

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(DivergedError):
        patch.setattr(Simulation, "advance", advance)
        simulate(plan)
    return seen[0]


def test_runs_at_one_seed_share_the_start_and_no_noise(tmp_path: Path) -> None:
    """Two epsilons at one seed and start: were the noise shared, two messages would tell the gradient exactly."""
    base = replace(BASE, model="softmax").with_algorithm_settings(sampling="full", batch=None, step=0.1)
    made = [point.recipe for point in points(base, ["ldp-sgd"], {"epsilon": [1.0, 2.0]}, [0], tmp_path)]
    quiet = replace(base, privacy="none", epsilon=None, delta=None).for_algorithm("ldp-sgd")
    start, gradient, _ = _first_messages(quiet)

    def error(first: Recipe, second: Recipe) -> float:
        """How far from the gradient of the first client's records two messages are, solved for it."""
        (here, one, noise), (there, other, more) = _first_messages(first), _first_messages(second)
        assert torch.equal(here, start)
        assert torch.equal(there, start)
        a, b = (float(found.noise_stds[0]) for found in (noise, more))
        return float(((b * one - a * other) / (b - a) - gradient)[0].std()) / min(a, b)

    assert error(*made) > 1, "what is left of the noise is no less than that of one message"
    assert error(*(replace(recipe, stream=None) for recipe in made)) < 1e-4
    records = [make_plan(recipe).federation for recipe in made]
    assert torch.equal(records[0].features, records[1].features)


def test_every_run_has_a_stream_of_its_own(tmp_path: Path) -> None:
    made = points(BASE, ["ldp-sgd", "cdp-sgd"], GRID, [0, 1], tmp_path)
    assert len({point.recipe.stream for point in made}) == len(made) == 16
    assert {point.recipe.seed for point in made} == {0, 1}
    # How a run is watched changes nothing of what it releases.
    watched = points(replace(BASE, evaluate_every=1), ["ldp-sgd", "cdp-sgd"], GRID, [0, 1], tmp_path)
    assert [point.recipe.stream for point in watched] == [point.recipe.stream for point in made]
    assert not {point.place for point in watched} & {point.place for point in made}
    # A recipe that is run by itself is as it was: its stream is the seed's own.
    assert make_plan(BASE.with_algorithm_settings(step=0.1)).recipe.stream is None


def test_two_comparisons_do_not_share_a_directory_at_the_same_time(tmp_path: Path) -> None:
    with held(tmp_path, "by the test"), pytest.raises(RequestError, match="another comparison is running there"):
        compare(BASE, ["ldp-sgd"], out=tmp_path)


def test_a_result_is_that_of_its_code_its_libraries_and_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("x,y\n1,0\n")
    model = tmp_path / "my_model_of_compare.py"
    model.write_text("one = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = Recipe(data=str(mine), model="module:my_model_of_compare:one")
    seen = [identity.result_digest(recipe)]
    assert identity.result_digest(recipe) == seen[0]
    assert identity.result_digest(replace(recipe, seed=1)) != seen[0]
    mine.write_text("x,y\n1,00\n")
    seen.append(identity.result_digest(recipe))
    model.write_text("one = 10\n")
    seen.append(identity.result_digest(recipe))
    monkeypatch.setattr(identity, "libraries", lambda: ("another",))
    seen.append(identity.result_digest(recipe))
    monkeypatch.setattr(identity, "engine_digest", lambda: "another")
    seen.append(identity.result_digest(recipe))
    assert len(set(seen)) == len(seen)


def _history(every: int, rounds: int, bits: int) -> History:
    row = HistoryRow(0, 1.0, 1.0, 1.0, None, 0, 0, 0, None, 0.0)
    return History(
        tuple(replace(row, round=t, uplink_bits_per_client=t * bits) for t in range(0, rounds + 1, every))
    )


def test_equal_bits_are_not_compared_at_a_round_that_was_not_evaluated() -> None:
    history = _history(10, 20, 100)
    found = [history.at_bits(bits) for bits in (99, 300, 999, 1000, 1099, 1100, 2000, 5000)]
    assert [row and row.round for row in found] == [None, None, None, 10, 10, None, 20, 20]
    # 2000 bits pay for round 6 of the long messages, which were looked at after round 5; 1800 for round 5.
    short, long = _history(10, 100, 20), _history(5, 50, 301)
    assert equal_bits([short, long]) == 1800
    assert equal_bits([short, _history(5, 50, 5000)]) is None, "not one long message was sent"
