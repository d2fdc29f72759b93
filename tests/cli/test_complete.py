"""What the Tab key offers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from tacit.algorithms.registry import ALGORITHMS
from tacit.bench.registry import BENCHES
from tacit.cli import complete
from tacit.cli.app import app
from tacit.cli.list_names import KINDS, _groups
from tacit.client.sampling import SAMPLINGS
from tacit.compress.parse import parse_compressor
from tacit.data.schema.column import TASKS
from tacit.engine.audit.recipe import METHODS
from tacit.engine.compare import SELECTORS
from tacit.experiments.registry import EXPERIMENTS
from tacit.models.registry import MODELS
from tacit.privacy import Adjacency
from tacit.privacy.labels import MECHANISMS
from tacit.theory.published import PAPERS


def test_everything_that_tacit_list_knows_is_offered() -> None:
    groups = _groups()
    assert complete.algorithms("") == list(ALGORITHMS)
    assert complete.models("") == [*MODELS, "module:"]
    assert set(groups["data"]) <= set(complete.data(""))
    spelled = [name.partition(":")[0] + ":" * (":" in name) for name in groups["partitions"]]
    assert complete.partitions("") == spelled
    assert {parse_compressor(name).spec() for name in complete.compressors("")} == set(complete.compressors(""))
    assert {name.partition(":")[0] for name in groups["compressors"]} == {
        name.partition(":")[0] for name in complete.compressors("")
    }
    assert list(KINDS) == list(groups)
    assert complete.benches("") == list(BENCHES)
    assert complete.mechanisms("") == list(MECHANISMS)
    assert sorted(complete.experiments("")) == sorted(EXPERIMENTS)
    assert complete.samplings("") == [*SAMPLINGS, "full"]
    assert complete.papers("") == list(PAPERS)


@pytest.mark.parametrize(
    ("command", "option", "values"),
    [
        ("audit", "method", METHODS),
        ("compare", "select", SELECTORS),
        ("account", "adjacency", [one.value for one in Adjacency]),
        ("schema draft", "task", TASKS),
    ],
)
def test_fixed_choices_are_offered_whole(command: str, option: str, values: Sequence[str]) -> None:
    found: Any = typer.main.get_command(app)
    for name in command.split():
        found = found.commands[name]
    context = click.Context(found)
    parameter = next(one for one in found.params if one.name == option)
    assert [one.value for one in parameter.shell_complete(context, "")] == list(values)


def test_lists_go_on_after_their_separator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete.algorithms("cdp-sgd,ldp-s") == ["cdp-sgd,ldp-sgd", "cdp-sgd,ldp-svrg"]
    assert complete.compressors("rand-k:0.1+qs") == ["rand-k:0.1+qsgd:16"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    for name in ("tables/a.csv", "tables/b.csv", "tables/notes.txt", "digits.csv"):
        (tmp_path / name).touch()
    assert complete.data("dig") == ["digits", "digits.csv"]
    assert complete.data("ta") == ["tables/"]
    assert complete.data("tables/a.csv,tables/") == ["tables/a.csv,tables/a.csv", "tables/a.csv,tables/b.csv"]
    assert complete.data("nowhere/") == []


OFFERED = {
    ("tacit run --algorithm cdp", 3): "cdp-sgd",
    ("tacit list sam", 2): "samplings",
    ("tacit bench sw", 2): "sweep",
    ("tacit check-label Loc", 2): "LocalDpMod",
    ("tacit reproduce norm-th", 2): "norm-theorems",
    ("tacit plan --algorithm cdp", 3): "cdp-sgd",
    ("tacit audit --method o", 3): "one-run",
    ("tacit compare --select tr", 3): "train_loss",
    ("tacit account --published so", 3): "soteriafl",
    ("tacit account --adjacency a", 3): "add-remove",
    ("tacit schema draft --task b", 4): "binary",
}

AS_A_SHELL_ASKS = """
import json, os, sys
from tacit.cli.app import app
os.environ["_TACIT_COMPLETE"] = "complete_bash"
for typed, word in json.loads(sys.argv[1]):
    os.environ.update(COMP_WORDS=typed, COMP_CWORD=str(word))
    try:
        app(prog_name="tacit")
    except SystemExit:
        print(" ", "torch" in sys.modules)
"""


def test_a_shell_gets_names_and_does_not_wait_for_pytorch() -> None:
    """A shell starts a process every time; here one process is asked everything: what it has imported stays."""
    done = subprocess.run(
        [sys.executable, "-c", AS_A_SHELL_ASKS, json.dumps(list(OFFERED))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line.split() for line in done.stdout.split("False")[:-1]] == [[one] for one in OFFERED.values()], done
