"""What a page's text must keep, however its lines are filled."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_table_has_a_line_for_each_row() -> None:
    """Filling the lines of a page once made one paragraph of its largest table."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 20
    for page in pages:
        for line in page.read_text().splitlines():
            if "| ---" in line:
                assert re.fullmatch(r"\|[ |:-]+\|", line.strip()), f"{page.name}: {line}"
