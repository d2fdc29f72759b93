"""Columns may be called anything: brackets are no markup, and no name commands anybody's terminal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from tacit.cli.app import app, main
from tacit.cli.say import print_data

WEIGHT, AGE = "weight [/kg]", "age\x1b[2J\x9b31m\u202e"
SPELLED = r"age\x1b[2J\x9b31m\u202e"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({WEIGHT: rng.normal(70, 9, 200).round(), AGE: rng.integers(20, 90, 200)})
    frame["ward"] = rng.choice(["a [red]", "b\x1b[0m"], 200)
    frame["ill [bold]"] = np.where(frame[WEIGHT] > 70, "yes [b]", "no\x07")
    frame["site"] = rng.choice(["x", "y\x1b[1m"], 200)
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def said(*words: object) -> str:
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    assert not set(done.output) & {"\x1b", "\x07", "\x9b", "\u202e"}
    return " ".join(done.output.split())


def test_names_are_printed_as_they_are_and_command_no_terminal(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    schema, out = table.with_name("s.toml"), table.with_name("run")
    drafted = said("schema", "draft", table, "--target", "ill [bold]", "--client", "site", "--out", schema)
    assert SPELLED in drafted
    said("schema", "check", table, schema)
    said(
        *("run", "--data", table, "--schema", schema, "--public-schema", "--epsilon", 4, "--rounds", 2),
        *("--model", "logistic", "--out", out),
    )
    account = said("account", out)
    assert WEIGHT in account
    assert SPELLED in account
    assert WEIGHT in said("account", out / "recipe.toml")
    used = CliRunner().invoke(app, ["predict", str(out), str(table), "--coefficients"])
    assert SPELLED in used.stderr
    assert WEIGHT in used.stderr
    assert "\x1b" not in used.stderr
    # A program gets the names as they are.
    assert "probability of no\x07" in used.stdout


def test_data_are_spelled_out_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal in (True, False):
        monkeypatch.setattr("sys.stdout.isatty", lambda terminal=terminal: terminal)
        print_data(f"{AGE}\n1\n")
    assert capsys.readouterr().out == f"{SPELLED}\n1\n{AGE}\n1\n"


def test_errors_command_no_terminal(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tacit", "schema", "draft", str(table), "--target", "none"])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert "\x1b[2J".encode("unicode_escape").decode() in told
