"""The verbs of a deployment, as far as they go without starting anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = """\
algorithm = "soteriafl-gd"
model = "softmax"
rounds = 2
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


def _tacit(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tacit", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_verbs_are_named_without_waiting_for_torch_or_flare() -> None:
    code = (
        "import sys; from tacit.cli.app import app; "
        "names = {c.name for c in app.registered_commands}; "
        "assert {'provision', 'server', 'silo', 'deploy', 'verify'} <= names; "
        "assert not {'torch', 'nvflare', 'grpc'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_without_flare_the_error_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['nvflare'] = None; import importlib.util; "
        "importlib.util.find_spec = lambda name: None; "
        "from tacit.deploy.flare.parties import require_flare; require_flare()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "pip install 'tacit[deploy]'" in done.stderr


def test_from_a_file_to_folders_and_what_their_owners_do_wrong(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "consortium.toml").write_text(CONSORTIUM)
    made = _tacit("provision", str(tmp_path / "consortium.toml"), "--out", str(tmp_path / "heart"))
    assert made.returncode == 0, made.stderr
    assert "tacit silo . --data RECORDS" in made.stdout
    for words, reason in (
        (["silo", "heart/lyon"], "--data is missing"),
        (["silo", "heart/lyon", "--data", "none.csv", "--target", "y"], "no such file"),
        (["server", "heart/lyon"], "tacit silo"),
        (["server", "recipe.toml"], "not a party's folder"),
        (["deploy", "--local", "0"], "--local"),
        (["deploy", "--resume"], "--out"),
        (["provision", "consortium.toml", "--out", "heart"], "never written over"),
    ):
        paths = [str(tmp_path / word) if (tmp_path / word.split("/")[0]).exists() else word for word in words]
        done = _tacit(*paths)
        assert done.returncode == 2, (words, done.stderr)
        assert reason in " ".join(done.stderr.split()), words
