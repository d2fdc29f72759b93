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

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _commands(verb: str) -> list[str]:
    """The commands in fenced blocks, without comments and without those about a user's own files or cluster."""
    blocks = [block for page in PAGES for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)]
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    asked = dict.fromkeys(line for line in lines if line.startswith(f"tacit {verb} "))
    return [line for line in asked if not any(own in line for own in ("...", ".csv", "--cluster"))]


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


def test_commands_are_found() -> None:
    assert len(_commands("run")) >= 3
    assert len(_commands("compare")) >= 2


@pytest.mark.parametrize("command", _commands("run"))
def test_a_run_is_useful(command: str, summary: Any) -> None:
    found = summary(command, "--out=here")
    assert _is_useful(found["test_metric"], found["data"]), found["test_metric"]


@pytest.mark.slow
@pytest.mark.parametrize("command", _commands("compare"))
def test_every_row_of_a_comparison_is_useful(command: str, summary: Any, undrawn: None) -> None:
    """Of several epsilons the smallest, which is the hardest."""
    hardest = re.sub(
        r"--at epsilon=([\d.,]+)", lambda at: f"--at epsilon={min(at[1].split(','), key=float)}", command
    )
    rows = summary(hardest, "--workers=1", "--seeds=1", "--out=here")["rows"]
    words = shlex.split(command)
    data = words[words.index("--data") + 1] if "--data" in words else "digits"
    metrics = {f"{row['algorithm']} {row.get('at', '')}": row["test_metric"] for row in rows}
    assert all(_is_useful(metric, data) for metric in metrics.values()), metrics
