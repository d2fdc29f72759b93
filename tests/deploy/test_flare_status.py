"""The board, its page on loopback, and a silo's own records."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.deploy.test_sums import RECORDS

from tacit.deploy.flare.parties import new_board
from tacit.deploy.frames import Reply
from tacit.deploy.job import Job
from tacit.deploy.records import own_records
from tacit.deploy.rounds import RoundReport
from tacit.deploy.seam import Code
from tacit.deploy.site_records import at_site
from tacit.deploy.status import Board, SiloStatus, serving
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError

RECIPE = Recipe(
    algorithm="soteriafl-gd",
    model="softmax",
    rounds=5,
    noise="lattice",
    algorithm_settings={"compressor": "natural", "step": 0.1},
)


@pytest.fixture
def board() -> Board:
    board = Board("a <run>", 5, {"berlin": SiloStatus(), "lyon": SiloStatus()})
    reply = Reply(Code.OK, "berlin", epsilon=1.5, body=bytes(2048))
    board.update(RoundReport(1, 5, ("berlin",), {"lyon": Code.NO_ANSWER}, 2048, {"berlin": reply}, 0.25))
    board.saw(("lyon",))
    return board


def test_the_board_says_who_answered_and_what_it_costs(board: Board) -> None:
    assert board.rows() == [
        ("berlin", "no", "1", "", "2.0", "1.5"),
        ("lyon", "yes", "0", "no-answer (round 1)", "0.0", ""),
    ]
    assert board.caption().startswith("round 1 of 5, 0.25 s")
    assert replace(board, insecure=True).caption().startswith("NO PRIVACY")


def test_with_sums_the_board_says_against_whom_epsilons_hold(consortium: Callable[..., Any]) -> None:
    shown = new_board(SimpleNamespace(job=consortium(**RECORDS).job, quorum=4))  # type: ignore[arg-type]
    assert "Epsilons hold against a server that can open nothing but" in shown.caption()
    assert "even if 1 of the other clients helps it" in shown.to_dict()["epsilons_hold_against"]
    alone = new_board(SimpleNamespace(job=consortium().job, quorum=3))  # type: ignore[arg-type]
    assert "hold against" not in alone.caption()


def test_a_released_loss_has_a_column_and_stays_until_the_next(board: Board) -> None:
    assert "noisy loss" not in board.columns
    shown = replace(board, reports=True)
    for number, loss in ((2, 0.61234), (3, None)):
        reply = Reply(Code.OK, "berlin", epsilon=1.5, loss=loss)
        shown.update(RoundReport(number, 5, ("berlin",), {}, 0, {"berlin": reply}, 0.25))
    assert [row[-1] for row in shown.rows()] == ["0.6123", ""]
    assert "noisy loss" in shown.page()
    assert shown.to_dict()["silos"]["berlin"]["loss"] == 0.61234


def test_the_page_can_be_read_here_and_nothing_else(board: Board) -> None:
    with serving(board) as address:
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=10) as page:
            text = page.read().decode()
        assert "a &lt;run&gt;" in text
        assert "no-answer" in text
        assert "What to do: look at its console" in text
        with urllib.request.urlopen(address + "status.json", timeout=10) as page:
            assert json.load(page) == board.to_dict()
        for request in (
            urllib.request.Request(address, data=b"x", method="POST"),
            urllib.request.Request(address + "../etc/passwd"),
            urllib.request.Request(address, headers={"Host": "evil.example.org"}),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=10)
            assert refused.value.code in (404, 501)
            refused.value.close()


def _job(**data_settings: object) -> Job:
    return Job(replace(RECIPE, data_settings=dict(data_settings)), ("berlin",), (2,), 2)


@pytest.fixture
def arrays(tmp_path: Path) -> str:
    np.savez(tmp_path / "own.npz", X=[[3.0, 4.0], [0.3, 0.4]], y=[1, 0])
    return str(tmp_path / "own.npz")


def test_a_silos_file_becomes_one_client(arrays: str) -> None:
    records = own_records(arrays, _job())
    assert (records.clients, records.classes) == (1, 2)
    np.testing.assert_allclose(records.features, [[3, 4], [0.3, 0.4]])
    assert at_site(_job(), "berlin", records).ids.tolist() == [0]


def test_the_job_says_how_many_features_sparse_records_have(tmp_path: Path) -> None:
    """A silo none of whose records has the last feature takes part like the others."""
    (tmp_path / "own.svmlight").write_text("1 1:3\n0 1:2\n")
    records = own_records(str(tmp_path / "own.svmlight"), _job())
    assert records.features.tolist() == [[3, 0], [2, 0]]
    assert not records.peeks


def test_each_records_own_scaling_is_done_at_home_once(arrays: str) -> None:
    job = _job(unit_norm=True)
    np.testing.assert_allclose(own_records(arrays, job).features, [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6)
    np.testing.assert_allclose(own_records(arrays, job, prepared=True).features, [[3, 4], [0.3, 0.4]])


def test_a_preparation_that_needs_everybodys_records_is_refused(arrays: str) -> None:
    with pytest.raises(RequestError, match="all silos at once"):
        own_records(arrays, _job(normalise=True))


def test_a_table_needs_a_schema_that_all_agreed_on(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("age,dose,sick\n3,4,1\n0.3,0.4,0\n")
    with pytest.raises(RequestError, match="the job has no schema"):
        own_records(str(tmp_path / "own.csv"), _job())


def test_records_from_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ward.py").write_text("def records():\n    return [[1.0, 2.0], [3.0, 4.0]], [0, 1]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert own_records("ward:records", _job()).records == 2
    with pytest.raises(RequestError, match="ward:nothing"):
        own_records("ward:nothing", _job())
    sys.modules.pop("ward")
