"""The scripts in examples/ run from beginning to end, with the commands that they show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tacit.engine.loaded import load_run

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, folder: Path) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "ROUNDS": "3"}
    # The accountant's answers are kept from one command to the next.
    environment["TACIT_CACHE"] = str(folder / "cache")
    words = ["bash", str(EXAMPLES / name), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def commands(name: str) -> int:
    """How many commands a script shows, apart from finding its place."""
    lines = (EXAMPLES / name).read_text().partition("\n\n")[2].splitlines()
    return len([line for line in lines if line and not line.startswith("#")])


@pytest.mark.slow
def test_five_hospitals_from_tables_to_a_certificate_to_predictions(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")
    assert commands("five_hospitals.sh") <= 10
    said = run("five_hospitals.sh", tmp_path)
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
def test_persons_with_several_visits(tmp_path: Path) -> None:
    assert commands("visits_of_persons.sh") <= 10
    said = run("visits_of_persons.sh", tmp_path)
    assert "per person" in " ".join(said.split())
    costs = pd.read_csv(tmp_path / "visits.csv")["cost"]
    predicted = pd.read_csv(tmp_path / "predictions.csv")["predicted cost"]
    assert 1 - ((costs - predicted) ** 2).mean() / costs.var() > 0.75
