"""Which experiments have been run, with how many seeds, in what time, and with which verdicts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tacit._version import __version__
from tacit.engine.files import write_atomically
from tacit.engine.workers import read_result
from tacit.experiments.experiment import VERDICTS, Experiment, Findings

FILE = "status.json"
COLUMNS = ("experiment", "run", "promise", *VERDICTS.values(), "seeds", "processor minutes")


def write_status(findings: Findings, facts: dict[str, Any], directory: Path) -> Path:
    """Writes what `--status` shows about an experiment beside its page."""
    claims = [{"claim": c.text, "verdict": c.verdict, "promise": c.promise} for c in findings.claims]
    said = {**facts, "version": __version__, "seeds": findings.settings.get("seeds"), "claims": claims}
    path = directory / FILE
    write_atomically(path, (json.dumps(said, indent=1) + "\n").encode())
    return path


def status(experiments: Iterable[Experiment], pages: Path) -> list[dict[str, Any]]:
    """One row per experiment, from the files in a directory of pages. One that has not been run says so."""
    rows: list[dict[str, Any]] = []
    for experiment in experiments:
        stored = read_result(pages / experiment.name / FILE)
        if stored is None:
            rows.append({"experiment": experiment.name, "run": "no"})
            continue
        counts = Counter(claim["verdict"] for claim in stored["claims"])
        promises = [claim["verdict"] for claim in stored["claims"] if claim["promise"]]
        rows.append(
            {
                "experiment": experiment.name,
                "run": f"tacit {stored['version']}",
                "seeds": None if stored["seeds"] is None else len(stored["seeds"]),
                "processor minutes": round(stored["processor_seconds"] / 60, 1),
                **{verdict: counts[verdict] for verdict in VERDICTS.values()},
                "promise": promises[0] if promises else None,
            }
        )
    return rows
