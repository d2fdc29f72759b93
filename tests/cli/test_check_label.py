"""`tacit check-label` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tacit.cli.app import app
from tacit.errors import RequestError

LOCAL = ["LocalDpMod", "--clipping-norm", "1", "--sensitivity=2", "--epsilon=1", "--delta=1e-5"]


def _call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["check-label", *arguments], env={"COLUMNS": "80"})


def test_a_true_label_exits_with_zero_and_a_false_one_with_one() -> None:
    assert _call(*LOCAL, "--rounds=1").exit_code == 0
    false = _call(*LOCAL, "--rounds=10")
    assert false.exit_code == 1
    assert "is false" in false.output
    assert "a client sends 10" in false.output


def test_files_and_options_say_the_same(tmp_path: Path) -> None:
    settings = {"mechanism": "Opacus", "noise-multiplier": 1.0, "max_grad_norm": 1.0, "sample_rate": 0.01,
                "epochs": 2, "delta": 1e-5}  # fmt: skip
    (tmp_path / "label.json").write_text(json.dumps(settings))
    (tmp_path / "label.toml").write_text(
        "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
    )
    options = ["--noise-multiplier=1", "--max-grad-norm=1", "--sample-rate", ".01", "--epochs=2", "--delta=1e-5"]
    answers = [
        json.loads(_call(*words, "--json").output)
        for words in ([str(tmp_path / "label.json")], [str(tmp_path / "label.toml")], ["Opacus", *options])
    ]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0]["views"][0]["epsilon"] > 0
    over = json.loads(_call(str(tmp_path / "label.toml"), "--no-poisson-sampling", "--json").output)
    assert over["views"][0]["epsilon"] > answers[0]["views"][0]["epsilon"]


def test_mechanisms_and_what_they_need_are_listed() -> None:
    listed = _call().output
    assert "SVTPrivacy\n  needs --parameters, --rounds\n  may have" in listed
    assert "--clip" in listed.partition("gaussian\n")[2], "what is optional can be found, too"
    assert json.loads(_call("--json").output)["SVTPrivacy"]["parameters"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.toml"], "cannot read nowhere.toml"),
        (["LocalDpMd"], "did you mean 'LocalDpMod'"),
        (["LocalDpMod", "clipping_norm=1"], "a setting is given as --name value"),
        (["LocalDpMod", "--epsilon", "1", "--rounds"], "rounds of LocalDpMod needs a value"),
        (["PrivacyEngine"], "Opacus needs noise_multiplier"),
        ([__file__], "a configuration is a .toml or .json file"),
    ],
)
def test_errors(arguments: list[str], message: str) -> None:
    result = _call(*arguments)
    assert isinstance(result.exception, RequestError)
    assert message in str(result.exception)
    assert not isinstance(result.exception, typer.Exit)
