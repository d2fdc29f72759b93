"""The verbs of a deployment, as far as they go without starting anything."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tomli_w
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.cli.server import show_finished
from tacit.deploy.flare import parties
from tacit.deploy.party_folder import PartyFolder
from tacit.deploy.records import own_records
from tacit.engine.recipe import Recipe
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
        (["server", "heart"], "heart/party.toml: No such file"),
        (["deploy", "--local", "0"], "--local"),
        (["deploy", "--resume"], "--out"),
        (["provision", "consortium.toml"], "never overwritten"),
    ):
        assert reason in _refusal(*words), words


def test_a_silo_checks_its_table_before_anything_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")
    monkeypatch.chdir(tmp_path)
    recipe = Recipe(algorithm="soteriafl-gd", data="heart.csv", rounds=3, epsilon=2.0)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    rows = "".join(f"{20 + k},{'no' if k % 3 else 'yes'}\n" for k in range(50))
    (tmp_path / "own.csv").write_text(f"age,ill\n{rows}")
    drafted = CliRunner().invoke(app, ["schema", "draft", "own.csv", "--target", "ill", "--out", "schema.toml"])
    assert drafted.exit_code == 0, drafted.output
    text = (tmp_path / "schema.toml").read_text()
    (tmp_path / "schema.toml").write_text(re.sub("looked_at = .*", "", text))
    agreed = {"name": "heart", "recipe": "recipe.toml", "silos": ["berlin", "lyon"], "schema": "schema.toml"}
    (tmp_path / "consortium.toml").write_text(tomli_w.dumps({**agreed, "min_records": 30}))
    made = CliRunner().invoke(app, ["provision", "consortium.toml"])
    assert made.exit_code == 0, made.output
    assert "schema " in made.stdout
    assert "holds back 20% of the rows of every silo" in " ".join(made.stdout.split())
    checked = CliRunner().invoke(app, ["silo", "heart/lyon", "--data", "own.csv", "--check"])
    assert checked.exit_code == 0, checked.output
    assert "40 records" in checked.stdout
    assert "earlier row" not in checked.stdout
    (tmp_path / "twice.csv").write_text(f"age,ill\n{rows}20,yes\n21,no\n")
    repeated = CliRunner().invoke(app, ["silo", "heart/lyon", "--data", "twice.csv", "--check"])
    assert "2 rows repeat an earlier row in every column" in repeated.stdout
    (tmp_path / "other.csv").write_text((tmp_path / "own.csv").read_text().replace("yes", "ja"))
    assert "target 'ill' holds 'ja'" in _refusal("silo", "heart/lyon", "--data", "other.csv", "--check")
    assert not (tmp_path / "heart" / "lyon" / "state").exists()


def test_a_silo_counts_persons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text(Recipe(algorithm="soteriafl-gd", rounds=3, epsilon=2.0).to_toml())
    rows = "".join(f"{k // 2},{20 + k},{'no' if k % 3 else 'yes'}\n" for k in range(100))
    (tmp_path / "own.csv").write_text(f"who,age,ill\n{rows}")
    target = '[target]\ncolumn = "ill"\ntask = "binary"\nclasses = ["no", "yes"]\n[test]\nshare = 0.0\n'
    age = '[person]\ncolumn = "who"\n[columns.age]\ntype = "number"\nrange = [0, 200]\n'
    (tmp_path / "schema.toml").write_text(f"{target}{age}")
    agreed = {"name": "heart", "recipe": "recipe.toml", "silos": ["lyon"], "schema": "schema.toml"}
    (tmp_path / "consortium.toml").write_text(tomli_w.dumps({**agreed, "min_records": 30}))
    assert CliRunner().invoke(app, ["provision", "consortium.toml"]).exit_code == 0
    monkeypatch.setattr(parties, "_answer_until_stopped", lambda party, answerer, say: None)
    said: list[str] = []
    party = PartyFolder.open(tmp_path / "heart" / "lyon")
    parties.run_silo(party, own_records("own.csv", party.job), said.append)
    assert any(line.startswith("lyon: 50 persons, ") for line in said)


def test_silos_with_the_same_promise_share_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def silo(promise: str) -> dict[str, Any]:
        return {"epsilon": 4.0, "rounds_answered": 2, "promise": promise}

    silos = {
        "berlin": silo("Long words."),
        "lyon": silo("Long words."),
        "porto": silo("Others."),
        "turin": None,
        "york": None,
    }
    told = {"rounds": 2, "largest_epsilon": 4.0, "insecure_reproducible": False, "silos": silos}
    party = SimpleNamespace(state=tmp_path, job=SimpleNamespace(sites=tuple(silos)))
    finished = SimpleNamespace(
        run="0" * 32, certificate=json.dumps(told), problems={}, answered={"turin": 1}, correction=None
    )
    show_finished(cast("Any", party), cast("Any", finished), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert "berlin, lyon: answered 2 rounds each. Long words." in lines
    assert "porto: answered 2 rounds. Others." in lines
    assert "turin: sent no certificate; ask the silo for it" in lines
    assert "york: took no part" in lines
