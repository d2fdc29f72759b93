"""The outputs of an experiment: tidy results, figures, one page, and a summary in words."""

from __future__ import annotations

import importlib.util
import io
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tacit._version import __version__
from tacit.engine.files import write_atomically
from tacit.experiments.experiment import Claim, Experiment, Findings, Scale, Table
from tacit.experiments.status import write_status
from tacit.report.page import Folded, Image, Paragraph, Section, SortableTable, render_page, show_value

TUNING = (
    "Settings were chosen by looking at the private data many times. What that choice costs is not included in "
    "any epsilon here; --charge-tuning counts it where it can be."
)
CHARGED = (
    "The true mode was tuned by a random search, a new one for every seed, so noisy that the choice has the "
    "epsilon of the label against anyone who sees only the chosen model; what all its runs are worth is in the "
    "table of what tuning costs. The search compares accuracies on the test records, which are taken as public: "
    "nothing is promised to them. What is published is tuned as in the paper, and not charged; nor is the true "
    "mode where a fixed number of clients takes part in a round. What is said above of tuning holds for what is "
    "not charged."
)
SIMULATED = (
    "A simulation from seeds: the epsilons are those of the same procedure with secret coins, of which nobody "
    "sees more than the promise says. Losses, accuracies and times on this page are no part of it."
)


@dataclass(frozen=True)
class Made:
    """How a set of findings was produced."""

    experiment: Experiment
    scale: Scale
    seconds: float
    processor_seconds: float
    """CPU seconds of all its runs, including those done by an earlier call"""

    @property
    def facts(self) -> dict[str, Any]:
        """Versions, machine, time."""
        return {
            "experiment": self.experiment.name,
            "paper": self.experiment.paper,
            "mode": "quick" if self.scale.quick else "full",
            "wall time": f"{self.seconds:.0f} s, without what earlier calls had already done",
            "processor time": f"{self.processor_seconds:.0f} s for all runs, whenever they were done",
            "versions": f"tacit {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        }


def write_outputs(findings: Findings, made: Made, directory: Path) -> dict[str, str]:
    """Writes everything into a directory; returns the paths by kind of output."""
    import pandas as pd

    directory.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(list(findings.rows))
    paths = {"results": directory / "results.csv"}
    frame.to_csv(paths["results"], index=False)
    if importlib.util.find_spec("pyarrow") is not None:
        paths["parquet"] = directory / "results.parquet"
        frame.to_parquet(paths["parquet"], index=False)
    images = []
    for picture in findings.pictures:
        svg = io.BytesIO()
        # The file has no date, so that the same results give the same bytes.
        picture.figure.savefig(svg, format="svg", metadata={"Date": None})
        write_atomically(directory / f"{picture.name}.svg", svg.getvalue())
        # Both have the same layout, which takes longer to find than to draw.
        picture.figure.set_layout_engine("none")
        picture.figure.savefig(directory / f"{picture.name}.png", dpi=140)
        paths[picture.name] = directory / f"{picture.name}.svg"
        images.append(Image(svg.getvalue(), picture.caption))
    paths["page"] = directory / "index.html"
    write_atomically(paths["page"], _page(findings, made, images).encode())
    paths["summary"] = directory / "summary.md"
    write_atomically(paths["summary"], summary(findings, made).encode())
    times = {"seconds": made.seconds, "processor_seconds": made.processor_seconds}
    paths["status"] = write_status(findings, times, directory)
    return {name: str(path) for name, path in paths.items()}


def _page(findings: Findings, made: Made, images: Sequence[Image]) -> str:
    tables = [SortableTable(table.caption, table.columns, table.rows) for table in findings.tables]
    sections = [
        *([Section("Figures", images)] if images else []),
        Section("Claims", [_claim(claim) for claim in findings.claims]),
        Section("Numbers", tables),
        Section("Departures from the paper", [Paragraph(findings.departures or ("None.",))]),
        Section("How it was made", [Paragraph(tuple(_lines(findings, made)))]),
    ]
    return render_page(made.experiment.title, f"{made.experiment.name}: {made.experiment.paper}.", sections)


def _claim(claim: Claim) -> Folded:
    return Folded(f"{claim.verdict}: {claim.text}", _evidence(claim))


def _told(claim: Claim) -> list[str]:
    return [f"- {claim.verdict}: {claim.text}", *(f"  - {line}" for line in _evidence(claim))]


def _evidence(claim: Claim) -> tuple[str, ...]:
    return tuple((claim.evidence or "no evidence").split("; "))


def _lines(findings: Findings, made: Made) -> list[str]:
    facts = {**made.facts, **findings.settings}
    return [f"{name}: {value}" for name, value in facts.items()] + [SIMULATED, *_tuning(findings)]


def _tuning(findings: Findings) -> list[str]:
    return [CHARGED if findings.charged else TUNING] if findings.tuned else []


def summary(findings: Findings, made: Made) -> str:
    """The findings as Markdown, ready for the documentation."""
    parts = [
        f"# {made.experiment.title}\n",
        f"`tacit reproduce {made.experiment.name}`: {made.experiment.paper}.\n",
    ]
    parts += ["## Claims\n", *(line for claim in findings.claims for line in _told(claim)), ""]
    for table in findings.tables:
        parts += [f"## {table.caption}\n", _markdown(table), ""]
    parts += ["## Departures from the paper\n", *(f"- {line}" for line in findings.departures), ""]
    parts += ["## How it was made\n", *(f"- {line}" for line in _lines(findings, made)), ""]
    return "\n".join(parts)


def _markdown(table: Table) -> str:
    head = f"| {' | '.join(table.columns)} |\n|{' --- |' * len(table.columns)}"
    lines = [f"| {' | '.join(show_value(value) for value in row)} |" for row in table.rows]
    return "\n".join([head, *lines])
