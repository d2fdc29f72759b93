"""A Dask cluster: a stand-in for Dask in the usual tests, and two real workers where Dask is installed."""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tacit.engine.cluster import run_elsewhere
from tacit.engine.compare import compare, points
from tacit.engine.history import History
from tacit.engine.recipe import Recipe
from tacit.engine.workers import Result, Workers
from tacit.errors import DataError, RequestError, TacitError
from tacit.experiments.cells import Cell, Runner

BASE = Recipe(data="digits", clients=3, rounds=2, epsilon=2.0, algorithm_settings={"batch": 0.2})
GRID: dict[str, list[Any]] = {"algorithm.step": [0.1, 0.2]}
ADDRESS = "tcp://host:8786"


class Client:
    """Runs what it is given at once, after a trip through pickle as on the way to another machine."""

    loop = None
    workers: dict[str, int]
    versions: dict[str, dict[str, str]]
    closed = cancelled = 0

    def __init__(self, address: str, **_: Any) -> None:
        if "nowhere" in address:
            raise OSError("timed out")

    def nthreads(self) -> dict[str, int]:
        return Client.workers

    def get_versions(self, packages: list[str]) -> dict[str, Any]:
        here = dict.fromkeys(packages, "1.0")
        there = {name: {"packages": {**here, **Client.versions.get(name, {})}} for name in Client.workers}
        return {"client": {"packages": here}, "workers": there}

    def submit(self, function: Callable[..., Any], *given: Any, pure: bool) -> Any:
        function, given = pickle.loads(pickle.dumps((function, given)))
        future: Future[Any] = Future()
        try:
            # A worker has been started in a directory of its own.
            with contextlib.chdir("/"):
                future.set_result(pickle.loads(pickle.dumps(function(*given))))
        except BaseException as error:
            future.set_exception(error)
        future.key, future.release = id(future), lambda: None  # type: ignore[attr-defined]
        return future

    def cancel(self, futures: list[Any]) -> None:
        Client.cancelled += len(futures)

    def close(self) -> None:
        Client.closed += 1


@pytest.fixture(autouse=True)
def _dask(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real" in request.node.name:
        return
    module: Any = ModuleType("distributed")
    module.Client = Client
    module.as_completed = lambda futures, loop: reversed(futures)
    module.get_worker = lambda: SimpleNamespace(address="tcp://b:2")
    monkeypatch.setitem(sys.modules, "distributed", module)
    monkeypatch.setattr(Client, "workers", {"tcp://a:1": 1, "tcp://b:2": 1}, raising=False)
    monkeypatch.setattr(Client, "versions", {}, raising=False)
    monkeypatch.setattr(Client, "closed", 0)
    monkeypatch.setattr(Client, "cancelled", 0)


def without_clocks(point: Path) -> tuple[Any, ...]:
    """All that a point left behind, except for times, memory and its own place."""
    summary = json.loads((point / "summary.json").read_text())
    assert summary["run_dir"] == str(point)
    kept = {key: v for key, v in summary.items() if key not in ("seconds", "peak_memory_mb", "run_dir")}
    rows = [replace(row, seconds=0.0) for row in History.read(point / "history.csv")]
    files = ("model.safetensors", "ledger.jsonl", "recipe.toml")
    return kept, rows, *((point / name).read_bytes() for name in files)


def same_points(one: Path, other: Path) -> None:
    names = sorted(path.name for path in (one / "points").iterdir())
    assert names == sorted(path.name for path in (other / "points").iterdir())
    for name in names:
        assert without_clocks(one / "points" / name) == without_clocks(other / "points" / name)


def test_a_comparison_on_a_cluster_gives_the_same_bits_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    settings: dict[str, Any] = {"grid": GRID, "seeds": 2}
    compare(BASE, ["ldp-sgd"], out=tmp_path / "here", workers=1, **settings)
    compare(
        BASE, ["ldp-sgd"], out=tmp_path / "there", cluster=ADDRESS, progress=lambda *s: seen.append(s), **settings
    )
    same_points(tmp_path / "here", tmp_path / "there")
    assert seen[0] == (0, 3)
    assert seen[-1] == (3, 3)
    assert Client.closed == 1
    monkeypatch.setattr(Client, "submit", None)
    compare(BASE, ["ldp-sgd"], out=tmp_path / "there", cluster=ADDRESS, **settings)


def tripled(settings: Any, data_dir: Path | None) -> Result:
    if settings["number"] < 0:
        raise DataError("there is no such data set here")
    return {"result": 3 * settings["number"], "threads": torch.get_num_threads()}


def test_cells_return_their_results_to_the_caller_who_stores_them(tmp_path: Path) -> None:
    cells = [Cell(tripled, {"number": number}) for number in (1, 2, 1)]
    with Runner(tmp_path / "cells", cluster=ADDRESS) as runner:
        results = runner(cells)
    assert [result["result"] for result in results] == [3, 6, 3]
    assert {result["threads"] for result in results} == {1}
    assert len(list((tmp_path / "cells").iterdir())) == 2
    with Runner(tmp_path / "cells", workers=1) as runner:
        assert runner(cells) == results


def test_what_a_worker_cannot_do_is_told_with_its_name_and_cancels_the_rest(tmp_path: Path) -> None:
    cells = [Cell(tripled, {"number": number}) for number in (-1, 5)]
    refusal = pytest.raises(DataError, match="tcp://b:2: there is no")
    with Runner(tmp_path / "cells", cluster=ADDRESS) as runner, refusal:
        runner(cells)
    assert Client.cancelled == 2
    assert [path.name for path in (tmp_path / "cells").iterdir()] == [f"{cells[1].digest}.json"]


def test_a_worker_with_other_code_or_files_refuses(tmp_path: Path) -> None:
    (point,) = points(BASE, ["ldp-sgd"], {}, [0], tmp_path)
    told = rf"tcp://b:2.*copy the files to the same paths. Relative paths count from {Path.cwd()} there"
    with pytest.raises(DataError, match=told):
        run_elsewhere(point.at(tmp_path / "ldp-sgd-0123456789abcdef"), "/a/folder/that/only/the/caller/has")


def noted(settings: Any, data_dir: Path | None) -> Result:
    return {"note": Path("note.txt").read_text()}


def test_relative_paths_count_from_the_callers_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "note.txt").write_text("here")
    with Runner(tmp_path / "cells", cluster=ADDRESS) as runner:
        (result,) = runner([Cell(noted, {})])
    assert result["note"] == "here"


KilledWorker = type("KilledWorker", (Exception,), {"__module__": "distributed.scheduler"})


@pytest.mark.parametrize("error", [CancelledError("lost"), KilledWorker("died")])
def test_a_cluster_that_is_lost_is_told_of(tmp_path: Path, error: Exception) -> None:
    def lost(futures: Any, loop: Any) -> Iterator[Any]:
        raise error
        yield

    sys.modules["distributed"].as_completed = lost  # type: ignore[attr-defined]
    with pytest.raises(TacitError, match="start it again to continue"):
        compare(BASE, ["ldp-sgd"], out=tmp_path, cluster=ADDRESS)
    assert Client.closed == 1


@pytest.mark.parametrize(
    ("workers", "versions", "message"),
    [
        ({}, {}, "no workers"),
        ({"tcp://a:1": 4}, {}, r"tcp://a:1 \(4\)"),
        ({"tcp://a:1": 1, "tcp://b:2": 1}, {"tcp://b:2": {"torch": "0.9"}}, "tcp://b:2 has torch 0.9, not 1.0"),
        ({"tcp://a:1": 1}, {"tcp://a:1": {"tacit": None}}, "tcp://a:1 has tacit not at all"),
        ({f"tcp://{k}:1": 2 for k in range(9)}, {}, "and 4 more"),
    ],
)
def test_workers_that_differ_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, workers: Any, versions: Any, message: str
) -> None:
    monkeypatch.setattr(Client, "workers", workers)
    monkeypatch.setattr(Client, "versions", versions)
    with pytest.raises(RequestError, match=message):
        Workers(cluster=ADDRESS)
    assert Client.closed == 1


@pytest.mark.parametrize("address", ["nonsense", "tcp://host", "host:port"])
def test_an_address_has_a_port(address: str) -> None:
    with pytest.raises(RequestError, match=r"such as tcp://host:8786"):
        Workers(cluster=address)


def test_requests_that_cannot_be_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="no Dask scheduler can be reached there"):
        Workers(cluster="nowhere:1")
    with pytest.raises(RequestError, match="--workers is for this machine"):
        Workers(2, cluster=ADDRESS)
    lattice = BASE.with_settings({"noise": "lattice"})
    with pytest.raises(RequestError, match="second release"):
        compare(lattice, ["ldp-sgd"], out=tmp_path, cluster=ADDRESS)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(RequestError, match=r"tacit\[cluster\]"):
        Workers(cluster=ADDRESS)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_two_real_workers_give_the_same_bits(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    compare(BASE, ["ldp-sgd"], out=tmp_path / "here", grid=GRID, workers=1)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        compare(BASE, ["ldp-sgd"], out=tmp_path / "there", grid=GRID, cluster=cluster.scheduler_address)
    same_points(tmp_path / "here", tmp_path / "there")
