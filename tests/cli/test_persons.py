"""Where all rows of one person are a record, every number of records is said to be one of persons."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from tacit.cli.app import app

SCHEMA = """
[target]
column = "ill"
task = "binary"
classes = ["no", "yes"]
[client]
column = "site"
[person]
column = "who"
rows = 4
[columns.x]
type = "number"
range = [-3, 3]
"""


def test_a_run_counts_persons(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(300), rng.geometric(0.4, 300))
    frame = pd.DataFrame({"who": who, "site": np.array(["a", "b"])[who % 2], "x": rng.normal(size=len(who))})
    frame["ill"] = np.where(frame["x"] > 0, "yes", "no")
    frame.to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    words = ["run", "--data", str(tmp_path / "visits.csv"), "--schema", str(tmp_path / "schema.toml")]
    words += ["--epsilon", "4", "--rounds", "2", "--evaluate", "0.2", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "2 clients with 96 persons" in said
    assert "48 persons, with 95% bars" in said
    assert "% of the persons" in said
