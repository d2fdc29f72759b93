"""The verbs of a deployment, as far as they go without starting anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.errors import RequestError

RECIPE = """\
model = "softmax"
rounds = 2
[algorithm]
name = "soteriafl-gd"
compressor = "natural"
step = 0.1
"""
CONSORTIUM = """\
name = "heart"
recipe = "recipe.toml"
silos = ["berlin", "lyon"]
feature_shape = [2]
classes = 2
[server]
host = "localhost"
"""


def _refusal(*words: str) -> str:
    """Why a command is refused as a wrong request."""
    error = CliRunner().invoke(app, list(words)).exception
    assert isinstance(error, RequestError), error
    return str(error)


def test_the_verbs_are_named_without_waiting_for_torch_or_flare() -> None:
    code = (
        "import sys; from tacit.cli.app import app; "
        "names = {c.name for c in app.registered_commands}; "
        "assert {'provision', 'server', 'shuffler', 'silo', 'deploy', 'verify'} <= names; "
        "assert not {'torch', 'nvflare', 'grpc'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_without_flare_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for words in (["provision", "x.toml"], ["server"], ["silo"], ["shuffler"], ["deploy", "--local", "2"]):
        assert "pip install 'tacit[deploy]'" in _refusal(*words)


def test_from_a_file_to_folders_and_what_their_owners_do_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "consortium.toml").write_text(CONSORTIUM)
    made = CliRunner().invoke(app, ["provision", "consortium.toml"])
    assert made.exit_code == 0, made.output
    assert "tacit silo . --data RECORDS" in made.stdout
    for words, reason in (
        (["silo", "heart/lyon"], "--data is missing"),
        (["silo", "heart/lyon", "--data", "none.npz"], "does not exist"),
        (["server", "heart/lyon"], "tacit silo"),
        (["shuffler", "heart/lyon"], "tacit silo"),
        (["deploy", "--local", "2", "--report", "10"], "EVERY,LOSS_BOUND,EPSILON"),
        (["server", "recipe.toml"], "not a party's folder"),
        (["deploy", "--local", "0"], "--local"),
        (["deploy", "--resume"], "--out"),
        (["provision", "consortium.toml"], "never overwritten"),
    ):
        assert reason in _refusal(*words), words
