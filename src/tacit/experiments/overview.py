"""A page that links to the others: every experiment, its verdicts, and what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.engine.files import write_atomically
from tacit.report.page import Link, Paragraph, Section, SortableTable, render_page


def write_overview(done: Sequence[Mapping[str, Any]], directory: Path) -> Path:
    """Writes the page about what `tacit reproduce` did, beside the experiments' own directories."""
    ran = [one for one in done if "files" in one]
    left_out = tuple(f"{one['experiment']}: {one['skipped']}" for one in done if "skipped" in one)
    failed = tuple(f"{one['experiment']}: {one['failed']}" for one in done if "failed" in one)
    verdicts = tuple(
        (_link(one, directory), claim["verdict"], claim["claim"]) for one in ran for claim in one["claims"]
    )
    times = tuple((_link(one, directory), one["title"], one["seconds"]) for one in ran)
    sections = [
        Section("Verdicts", [SortableTable("Every claim", ("experiment", "verdict", "claim"), verdicts)]),
        Section("Experiments", [SortableTable("Every page", ("experiment", "what", "seconds"), times)]),
    ]
    sections += [
        Section(heading, [Paragraph(lines)])
        for heading, lines in (("Left out", left_out), ("Failed", failed))
        if lines
    ]
    counts = Counter(verdict for _, verdict, _ in verdicts)
    told = ", ".join(f"{verdict} {many}" for verdict, many in sorted(counts.items()))
    lead = f"Experiments: {len(ran)}. Claims: {told or 'none'}."
    path = directory / "index.html"
    write_atomically(path, render_page("The papers' tables and figures", lead, sections).encode())
    return path


def _link(one: Mapping[str, Any], directory: Path) -> Link:
    return Link(one["experiment"], Path(one["files"]["page"]).relative_to(directory).as_posix())
