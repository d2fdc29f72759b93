"""The scripts in examples/ run from beginning to end, with the commands that they show."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from tests import warm

from tacit.cli.app import main
from tacit.deploy.flare import processes
from tacit.engine.loaded import load_run

EXAMPLES = Path(__file__).parents[1] / "examples"

# A function in the place of the command: it passes its words on, and waits for an exit code.
SHELL = """
tacit() { local code; printf '%s\\0' tacit "$@" > "$PIPES/words"; read -r code < "$PIPES/code"; return "$code"; }
export -f tacit
bash "$0" "$PIPES"
printf '%s\\0' end "$?" > "$PIPES/words"
"""


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], str]:
    """Runs a script, and every `tacit` of it in this process or a fork of one: PyTorch is imported once."""
    monkeypatch.setattr(processes, "_start", warm.start)

    def tacit(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", list(words))
        with pytest.raises(SystemExit) as ended:
            main()
        (tmp_path / "code").write_text(f"{ended.value.code or 0}\n")
        return "".join(capsys.readouterr())

    def call(name: str) -> str:
        monkeypatch.chdir(tmp_path)
        os.mkfifo(tmp_path / "words")
        os.mkfifo(tmp_path / "code")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "ROUNDS": "3", "PIPES": str(tmp_path)}
        said = ""
        shell = ["bash", "-c", SHELL, str(EXAMPLES / name)]
        with subprocess.Popen(shell, env=environment, start_new_session=True) as script:
            try:
                while (words := (tmp_path / "words").read_text().split("\0")[:-1])[0] == "tacit":
                    said += tacit(*words)
            except BaseException:
                # It waits for an answer.
                os.killpg(script.pid, signal.SIGKILL)
                raise
        assert words == ["end", "0"], said
        return said

    return call


def commands(name: str) -> int:
    """How many commands a script shows, apart from finding its place."""
    lines = (EXAMPLES / name).read_text().partition("\n\n")[2].splitlines()
    return len([line for line in lines if line and not line.startswith("#")])


@pytest.mark.slow
def test_five_hospitals_from_tables_to_a_certificate_to_predictions(
    tmp_path: Path, run: Callable[[str], str]
) -> None:
    pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")
    assert commands("five_hospitals.sh") <= 10
    said = run("five_hospitals.sh")
    assert "5 of 5 silos" in said
    assert "The certificate is valid" in said
    assert re.search(r"^predicted readmitted,probability of no,probability of yes$", said, re.MULTILINE)
    # The range of the blood pressure was learned over the network, and everybody can read what it became.
    schema = load_run(tmp_path / "consortium" / "server" / "state").schema
    assert schema is not None
    assert schema.learned == ("pressure",)
    low, high = schema.columns[1].range or (0.0, 0.0)
    # Half of all pressures are above 135, and the noise on a share of records is about 2%.
    assert 40 <= low < 120
    assert 150 < high <= 300
    assert (
        "Ranges that were learned" in (tmp_path / "consortium" / "server" / "state" / "report.html").read_text()
    )
    assert "patient_id" in (tmp_path / "schema.toml").read_text().partition("[left_out]")[2]


@pytest.mark.slow
def test_persons_with_several_visits(tmp_path: Path, run: Callable[[str], str]) -> None:
    assert commands("visits_of_persons.sh") <= 10
    said = run("visits_of_persons.sh")
    assert "per person" in " ".join(said.split())
    costs = pd.read_csv(tmp_path / "visits.csv")["cost"]
    predicted = pd.read_csv(tmp_path / "predictions.csv")["predicted cost"]
    assert 1 - ((costs - predicted) ** 2).mean() / costs.var() > 0.75
