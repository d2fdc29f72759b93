"""Figures of reproductions, drawn from the tables of their pages: what each mode reaches at each label."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tacit.report.chart import Line, line_chart

MEASURES = ("test error", "utility", "accuracy")
METHODS = ("method", "algorithm")
Row = Mapping[str, str]

TABLE = re.compile(r"^(\|.*\|\n)\|[ :|-]+\|\n((?:\|.*\|\n?)+)", re.M)


def with_charts(markdown: str) -> str:
    """The page with charts above the first table that has labels, modes and methods."""
    for found in TABLE.finditer(markdown):
        headings = _cells(found[1])
        measure = next((name for name in MEASURES if name in headings), None)
        if measure and {"label", "mode"} < {*headings}:
            rows = [dict(zip(headings, _cells(line), strict=True)) for line in found[2].splitlines()]
            drawn = _charts(rows, measure)
            return f"{markdown[: found.start()]}{drawn}{markdown[found.start() :]}"
    return markdown


def _charts(rows: list[Row], measure: str) -> str:
    """One chart for each method that was run in several modes and at several labels."""
    place = ("silos", "in a round")
    first = tuple(rows[0].get(name) for name in place)
    rows = [row for row in rows if row["label"] and tuple(row.get(name) for name in place) == first]
    method = next((name for name in METHODS if name in rows[0]), None)
    charts = []
    for name in dict.fromkeys(row[method] for row in rows if method):
        own = [row for row in rows if method and row[method] == name]
        lines = [_line(mode, own, measure) for mode in dict.fromkeys(row["mode"] for row in own)]
        if len(lines) > 1 and min(len(line.x) for line in lines) > 1:
            svg = line_chart(lines, "label (epsilon that the paper states)", measure)
            charts.append(f"<figure>{svg}<figcaption>{name}</figcaption></figure>")
    if not charts:
        return ""
    where = ", ".join(f"{value} {name}" for name, value in zip(place, first, strict=True) if value)
    told = f"Drawn from the table below{f' ({where})' if where else ''}."
    return f'<div class="charts">{"".join(charts)}</div>\n\n*{told}*\n\n'


def _line(mode: str, rows: list[Row], measure: str) -> Line:
    points = sorted(
        (float(row["label"]), float(row[measure])) for row in rows if row["mode"] == mode and row[measure]
    )
    return Line(mode, [x for x, _ in points], [y for _, y in points])


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
