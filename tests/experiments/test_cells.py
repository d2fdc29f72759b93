"""Cells are run once, whatever happens, and their results come back in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.warm import FORKS

from tacit.algorithms.settings import Settings
from tacit.engine.workers import Result
from tacit.errors import RequestError, TacitError
from tacit.experiments.cells import Cell, Runner


def count_runs(settings: Settings, data_dir: Path | None) -> Result:
    log = Path(settings["log"])
    with log.open("a") as file:
        file.write(f"{settings['x']}\n")
    return {"square": settings["x"] ** 2}


def refuse(settings: Settings, data_dir: Path | None) -> Result:
    raise RequestError("no")


def cells(tmp_path: Path, *numbers: int) -> list[Cell]:
    return [Cell(count_runs, {"x": x, "log": str(tmp_path / "log")}) for x in numbers]


def test_results_come_in_order_and_no_cell_runs_twice(tmp_path: Path) -> None:
    with Runner(tmp_path / "cells", workers=1) as runner:
        first = runner(cells(tmp_path, 3, 1, 3))
    assert [result["square"] for result in first] == [9, 1, 9]
    assert first[0]["settings"]["x"] == 3
    with Runner(tmp_path / "cells", workers=1) as runner:
        assert [result["square"] for result in runner(cells(tmp_path, 1, 2, 3))] == [1, 4, 9]
    assert (tmp_path / "log").read_text().split() == ["3", "1", "2"]


def test_what_runs_cost_is_known_also_when_an_earlier_call_did_them(tmp_path: Path) -> None:
    spent = []
    for _ in range(2):
        with Runner(tmp_path / "cells", workers=1) as runner:
            runner(cells(tmp_path, 1, 2, 1))
            runner(cells(tmp_path, 2))
            spent.append(runner.costs)
    assert spent[0] == spent[1]
    assert len(spent[0]) == 2
    assert min(spent[0].values()) > 0


def test_what_was_done_before_a_failure_is_kept(tmp_path: Path) -> None:
    with Runner(tmp_path / "cells", workers=1) as runner, pytest.raises(RequestError, match="no"):
        runner([*cells(tmp_path, 1), Cell(refuse, {})])
    with Runner(tmp_path / "cells", workers=1) as runner:
        runner(cells(tmp_path, 1))
    assert (tmp_path / "log").read_text().split() == ["1"]


def test_a_corrupted_result_is_an_error(tmp_path: Path) -> None:
    (cell,) = cells(tmp_path, 1)
    path = tmp_path / "cells" / f"{cell.digest}.json"
    path.parent.mkdir()
    for text in ("{", "[]"):
        path.write_text(text)
        with Runner(tmp_path / "cells", workers=1) as runner, pytest.raises(TacitError, match="corrupted"):
            runner([cell])


def test_the_digest_tells_cells_apart(tmp_path: Path) -> None:
    one, two = cells(tmp_path, 1, 2)
    assert one.digest == cells(tmp_path, 1)[0].digest
    assert len({one.digest, two.digest, Cell(refuse, one.settings).digest}) == 3


def test_progress_counts_what_was_there(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with Runner(tmp_path / "cells", workers=1) as runner:
        runner(cells(tmp_path, 1))
    with Runner(tmp_path / "cells", workers=1, progress=lambda done, all_: seen.append((done, all_))) as runner:
        runner(cells(tmp_path, 1, 2))
    assert seen == [(1, 2), (2, 2)]


def test_the_number_of_workers_is_checked(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="workers"):
        Runner(tmp_path, workers=0)


@pytest.mark.slow
def test_several_processes_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.engine.workers.multiprocessing.get_context", lambda kind: FORKS)
    problem = {"records": 50, "clients": 4, "epsilon": 2.0, "dim": 5, "signal": 0.3, "strongly_convex": False}
    settings = {**problem, "algorithm": "MB-SGD", "rounds": 3, "seed": 0}
    from tacit.experiments.isrl_rates_runs import run

    points = [Cell(run, {**settings, "seed": seed}) for seed in range(3)]
    with Runner(tmp_path / "alone", workers=1) as runner:
        alone = runner(points)
    with Runner(tmp_path / "together", workers=2) as runner:
        together = runner(points)
    assert [r["history"] for r in alone] == [r["history"] for r in together]
