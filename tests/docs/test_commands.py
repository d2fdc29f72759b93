"""Every `tacit run` and `tacit compare` of the README and the guides gives a useful model as it is written."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.cli.app import main
from tacit.compress import parse_compressor

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/how-to").glob("*.md")]
OWN = ("...", "your.csv", "patients.csv", "--cluster", "module:", "--data a9a", "--data fashion-mnist")
"""Marks of commands that need a user's own files, another machine, or data that are not embedded."""


def _commands(verb: str) -> list[str]:
    """The commands in fenced blocks, without comments and logs."""
    texts = [page.read_text().replace("\\\n", " ") for page in sorted(PAGES)]
    blocks = [
        block for text in texts for block in re.findall(r"```(?:bash|sh|console)?\n(.*?)```", text, re.DOTALL)
    ]
    lines = [line.removeprefix("$ ").split("#")[0] for block in blocks for line in block.splitlines()]
    plain = [" ".join(re.sub(r" --log \S+", "", line).split()) for line in lines]
    asked = dict.fromkeys(line for line in plain if f"{line} ".startswith(f"tacit {verb} "))
    return [line for line in asked if not any(own in line for own in OWN)]


@pytest.fixture
def summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in an empty directory and reads what it prints as JSON."""

    def call(command: str, *more: str) -> Any:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [*shlex.split(command), "--json", *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return json.loads(capsys.readouterr().out)

    return call


def _is_useful(accuracy: float, data: str) -> bool:
    """At least half of the way from the accuracy of the most common class to perfection."""
    targets = tacit.load(data, clients=2).test_targets
    assert targets is not None
    naive = float(targets.bincount().max() / len(targets))
    return accuracy >= (naive + 1) / 2


def test_commands_are_found_on_every_kind_of_page() -> None:
    runs, comparisons = _commands("run"), _commands("compare")
    assert {"tacit run", "tacit run --data digits --clients 10 --epsilon 4"} <= set(runs)  # how-to, start page
    assert len(runs) >= 7
    assert len(comparisons) >= 5


@pytest.mark.parametrize(("data", "constant"), [("digits", 0.12), ("breast-cancer", 0.65)])
def test_a_constant_is_not_useful(data: str, constant: float) -> None:
    """So a command whose model learns nothing fails its test."""
    assert not _is_useful(constant, data)
    assert _is_useful(0.85, data)


@pytest.mark.parametrize("command", _commands("run"))
def test_a_run_is_useful(command: str, summary: Any) -> None:
    found = summary(command, "--out=here")
    assert _is_useful(found["test_metric"], found["data"]), found["test_metric"]


def _hardest(command: str) -> str:
    """With the smallest of several epsilons, the first of several compressors, and one seed.

    A comparison of compressors is to show what the others cost; their names are read, and that is all.
    """
    command = re.sub(
        r"--at epsilon=([\d.,]+)", lambda at: f"--at epsilon={min(at[1].split(','), key=float)}", command
    )
    for several in re.findall(r"--at algorithm\.compressor=(\S+)", command):
        first, *_ = [parse_compressor(name) for name in several.split(",")]
        command = command.replace(f"compressor={several}", f"compressor={first.spec()}")
    return re.sub(r" --seeds \d+", "", command) + " --seeds 1"


@pytest.mark.slow
@pytest.mark.parametrize("command", dict.fromkeys(map(_hardest, _commands("compare"))))
def test_every_row_of_a_comparison_is_useful(command: str, summary: Any, undrawn: None) -> None:
    """Commands that differ only in how often they do the same are run once."""
    rows = summary(command, "--workers=1", "--out=here")["rows"]
    words = shlex.split(command)
    data = words[words.index("--data") + 1] if "--data" in words else "digits"
    for row in rows:
        assert _is_useful(row["test_metric"], data), row
