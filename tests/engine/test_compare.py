"""Sweeps: on every core, through a kill, and never twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tacit.engine import compare as module
from tacit.engine.compare import compare
from tacit.engine.execute import stored_summary
from tacit.engine.recipe import Recipe

BASE = Recipe(data="digits", clients=3, rounds=2, epsilon=2.0, batch=0.2)
GRID: dict[str, list[Any]] = {"step": [0.05, 0.1, 0.2, 0.4]}


class Pool:
    """Runs at once, and notes how many it was asked to run at the same time."""

    asked: int | None = None

    def __init__(self, workers: int, **_: object) -> None:
        Pool.asked = workers

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Any, *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*arguments))
        return done


def test_every_core_has_a_process_unless_there_are_fewer_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    compare(BASE, ["ldp-sgd"], out=tmp_path, grid=GRID)
    assert Pool.asked == 2
    monkeypatch.setattr(module.os, "cpu_count", lambda: 64)
    compare(BASE, ["cdp-sgd"], out=tmp_path, grid=GRID)
    assert Pool.asked == 4


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_compare import BASE, GRID
from dataclasses import replace
from tacit.engine.compare import compare
if __name__ == "__main__":
    compare(replace(BASE, rounds=40), ["ldp-sgd"], out=Path(sys.argv[1]), grid=GRID, seeds=2, workers=1)
"""


def test_a_killed_sweep_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    script = tmp_path / "sweep.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
    out, other = tmp_path / "killed", tmp_path / "whole"
    sweep = subprocess.Popen([sys.executable, str(script), str(out)], start_new_session=True)
    try:
        for _ in range(1200):
            if list(out.rglob("summary.json")) or sweep.poll() is not None:
                break
            time.sleep(0.05)
    finally:
        if sweep.poll() is None:
            os.killpg(sweep.pid, signal.SIGKILL)
        sweep.wait()
    done = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    assert len(done) >= 1, "it had begun"
    for directory in (out, other):
        subprocess.run([sys.executable, str(script), str(directory)], check=True)
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
    monkeypatch.setattr(module, "ProcessPoolExecutor", Pool)
    rows = "".join(f"{k / 30},{k % 7},{k % 2}\n" for k in range(30))
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("x,z,y\n" + rows)
    files = ",".join(str(tmp_path / f"{name}.csv") for name in ("a", "b"))
    base = Recipe(data=files, data_settings={"target": "y"}, rounds=2, epsilon=2.0, batch=0.2, step=0.1)
    rivals = compare(base, ["ldp-sgd", "cdp-sgd"], out=tmp_path / "out", seeds=2)
    assert len(rivals) == 2
