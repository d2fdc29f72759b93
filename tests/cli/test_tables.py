"""Lists and tables in a terminal of 80 columns: nothing is cut, and sentences are not squeezed."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tacit.algorithms.registry import ALGORITHMS
from tacit.cli.app import app
from tacit.cli.show_account import _number, show_protection
from tacit.cli.show_comparison import _cells
from tacit.cli.show_plan import show_needs
from tacit.cli.verify import _rounded
from tacit.engine.outlook import Outlook
from tacit.engine.recipe import Recipe
from tacit.experiments.registry import EXPERIMENTS
from tacit.planning.needs import Need, Needs
from tacit.privacy.promises.protection import Protection
from tacit.report.run_page import shown_epsilon


def _call(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert "…" not in done.output
    assert max(map(len, done.output.splitlines())) <= 80
    return done.output


def test_the_experiments_are_a_list_that_can_be_read() -> None:
    said = _call("reproduce", "--list")
    lines = said.splitlines()
    assert len(lines) < 2.5 * len(EXPERIMENTS)
    for name, experiment in EXPERIMENTS.items():
        line = next(line for line in lines if line.split()[:1] == [name])
        assert line.split(maxsplit=1)[1].startswith(experiment.title[:20])


def test_the_status_of_experiments_has_whole_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = _call("reproduce", "--status", "--out", "here")
    assert all(name in said for name in EXPERIMENTS)
    assert "promise" in said


def test_names_of_everything() -> None:
    said = _call("list")
    assert all(name in said for name in ALGORITHMS)


def test_a_plan_has_whole_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ahead = Outlook(0.29, "hidden", "Little can be learned.")
    need = Need(
        "shuffled-accelerated",
        300,
        300,
        "without-replacement",
        14.25,
        0.1,
        20.79,
        0.1799,
        8.0,
        "shuffler",
        None,
        13_590_400,
        ahead,
    )
    show_needs(Needs(Recipe(), (need,), ((0.01, need), (1.0, need))))
    said = capsys.readouterr().out
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80
    assert all(number in said for number in ("0.29", "20.79", "1698.8"))
    assert "Little can be learned." in said
    assert "if all other parties help the server: no protection (shuffled-accelerated)" in " ".join(said.split())


def test_epsilons_that_protect_nobody_read_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of the pages."""
    monkeypatch.setenv("COLUMNS", "80")
    rows = [
        ("the server and all other parties", "all records of a client", 29800.0, "no protection"),
        ("the client that holds the records", "one record", math.inf, "no protection"),
        ("another client", "whether a record is used", 3.549, "3.55"),
    ]
    show_protection(tuple(Protection(who, what, "replace-one", e, 1e-5, "Why.") for who, what, e, _ in rows))
    said = capsys.readouterr().out
    lines = [line.strip() for line in said.splitlines() if "against" in line][1:]
    assert lines == [f"{told}  {what}, against {who}" for who, what, _, told in rows]
    assert shown_epsilon(29800.0) == "no protection (29,800)"
    assert "29800" not in said


def test_a_run_says_the_result_first_and_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = _call("run", "--data=breast-cancer", "--epsilon=1", "--rounds=20", "--out=here", "--evaluate=0.2")
    rows = [line.split()[0] for line in said.splitlines() if line[:1].strip() and "━" not in line]
    assert " ".join(rows) == "Outlook Result Held Promise Limits Public Caution Data Chosen Sent Took Files"
    assert said.count("\n") < 40
    text = " ".join(said.split())
    told = re.split(r"(?<=[.]) (?=[A-Z])", text)
    assert len(told) == len(set(told))
    assert text.count("epsilon = 1 ") == 1
    for what in ("always the most common class: 0.6", "report.html", "what it takes as public", "seeded"):
        assert what in text


def test_a_promise_to_whole_clients_in_addition_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["run", "--data=breast-cancer", "--rounds=3"]
    both = " ".join(_call(*asked, "--set=client_epsilon=30", "--out=both").split())
    assert "For all records of a client at once the same adversary learns no more than epsilon = 30" in both
    assert "the run was planned to keep it at most 30" in both
    assert "For all records" not in _call(*asked, "--out=records")


def test_what_exists_before_a_run_is_not_searched_for_garbage() -> None:
    code = (
        "import gc, sys\n"
        "from tacit.cli.imports import imports\n"
        "with imports():\n"
        "    print(gc.isenabled())\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 1000)\n"
        "gc.unfreeze()\n"
        "sys.modules['torch'] = sys\n"
        "with imports():\n"
        "    print(gc.isenabled(), gc.get_freeze_count())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True", "True", "0"]


def test_epsilons_are_rounded_up() -> None:
    """A table never promises more than was computed."""
    row: dict[str, Any] = defaultdict(lambda: None, algorithm="a", epsilon=1.0041, privacy="record", seeds=1)
    assert _cells(row, "accuracy")["epsilon"] == "1.01"
    assert _number(1.00041) == "1.001"
    assert _rounded(1.00041) == "1.001"
