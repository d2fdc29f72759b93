"""How far the best points of the grids fall behind themselves: the regret of a tuner who knew the test set.

    python benchmarks/oracle.py docs/results/defaults.md --data-dir DIR --out oracle.jsonl [--table]

A grid's best point is chosen by the test metric, with one seed. Its result is partly luck, so not even the same
point reaches it again. For every row of the page about a small test set, the default runs with seeds 0 to 2 as
in `benchmarks/defaults.py`; then both it and the best point run with five fresh seeds, on which nothing was
chosen. Three numbers follow, in points:

    regret          best of grid - default (seeds 0 to 2), as it is judged
    its own         best of grid - the same point on fresh seeds: what choosing by the test metric gains by luck
    on fresh seeds  the best point - the default, both on fresh seeds

The best point also runs with seed 0, and a row whose result is no longer that of the page is marked. What is in
the file already is not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from defaults import SEEDS, SETTINGS, SLOW, _finished, _spread, read

FRESH = tuple(range(40, 45))
HEADINGS = ("data", "epsilon, clients, partition", "algorithm", "default", "best of grid", "regret", "its own",
            "on fresh seeds", "best point")  # fmt: skip


@dataclass(frozen=True)
class Picked:
    """A row of the page: a case, and the best point of its grid."""

    data: str
    setting: int
    algorithm: str
    point: dict[str, Any]
    metric: float
    """in percent, as the page has it"""


def main() -> None:
    """Run what is missing, or show what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="show the table of what is there, and run nothing")
    options = parser.parse_args()
    rows = list(picked(options.page.read_text()))
    if not options.table:
        for row in rows:
            run(row, options.out, options.data_dir)
    print(table(rows, read(options.out)))


def picked(page: str) -> Iterator[Picked]:
    """The rows with a best point, except those of large test sets and of data that are not tacit's."""
    heads: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0] == "data":
            heads = cells
        row = dict(zip(heads, cells, strict=False))
        if row.get("data") not in ("digits", "breast-cancer", "insurance", "obesity") or "best point" not in row:
            continue
        epsilon, clients, partition = row["epsilon, clients, partition"].split(", ")
        number = SETTINGS.index((float(epsilon), int(clients), partition))
        yield Picked(
            row["data"],
            number,
            row["algorithm"],
            _point(row["best point"]),
            float(row["best of grid"].split()[0]),
        )


def _point(text: str) -> dict[str, Any]:
    words = dict(item.split(" ") for item in text.split(", "))
    return {
        name: int(value) if name == "rounds" else value if name == "compressor" else float(value)
        for name, value in words.items()
    }


def run(row: Picked, out: Path, data_dir: Path | None) -> None:
    """Every run of a row that the file does not hold yet."""
    assert row.data not in SLOW
    cases = [row.point, *({"seed": seed} for seed in SEEDS)]
    cases += [{**settings, "seed": seed} for seed in FRESH for settings in ({}, row.point)]
    _finished(row.data, row.setting, row.algorithm, read(out), out, data_dir, cases)


def table(rows: list[Picked], lines: dict[str, dict[str, Any]]) -> str:
    """All three numbers of every row that is complete, and their medians and 90th percentiles."""
    shown, judged, own, honest, seconds = [], [], [], [], 0.0
    for row in rows:
        usual, again = _found(row, lines, {}, SEEDS), _found(row, lines, row.point, ())
        plain, tuned = _found(row, lines, {}, FRESH), _found(row, lines, row.point, FRESH)
        if not again or len(usual) < len(SEEDS) or len(plain) + len(tuned) < 2 * len(FRESH):
            continue
        default, fresh, point = (100 * mean(line["metric"] for line in part) for part in (usual, plain, tuned))
        best = 100 * again[0]["metric"]
        seconds += sum(line["seconds"] for line in (*usual, *again, *plain, *tuned))
        judged, own, honest = [*judged, best - default], [*own, best - point], [*honest, point - fresh]
        least, most = (100 * end(line["metric"] for line in usual) for end in (min, max))
        epsilon, clients, partition = SETTINGS[row.setting]
        cells = [
            row.data,
            f"{epsilon:g}, {clients}, {partition}",
            row.algorithm,
            f"{default:.1f} ({least:.1f} to {most:.1f})",
            f"{best:.1f}" + ("" if abs(best - row.metric) < 0.06 else f" ({row.metric:.1f} when the grid ran)"),
            *(f"{value:+.1f}" for value in (judged[-1], own[-1], honest[-1])),
            ", ".join(f"{name} {value}" for name, value in row.point.items()),
        ]
        shown.append(f"| {' | '.join(cells)} |")
    if not shown:
        return "nothing is complete yet"
    head = f"| {' | '.join(HEADINGS)} |\n| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"
    counted = (
        f"{len(shown)} cases, {seconds / 60:.0f} minutes of one core. Regret: {_spread(judged)}. "
        f"Its own: {_spread(own)}. On fresh seeds: {_spread(honest)}."
    )
    return "\n".join([head, *shown, "", counted])


def _found(
    row: Picked, lines: dict[str, dict[str, Any]], settings: dict[str, Any], seeds: tuple[int, ...]
) -> list[dict[str, Any]]:
    """The results of these settings with these seeds, or with the grid's, as far as they are there."""
    cases = [{**settings, "seed": seed} for seed in seeds] if seeds else [settings]
    there = [lines.get(json.dumps([row.data, SETTINGS[row.setting], row.algorithm, case])) for case in cases]
    return [line for line in there if line is not None and "metric" in line]


if __name__ == "__main__":
    main()
