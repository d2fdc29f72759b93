"""`tacit list`."""

from __future__ import annotations

import json

import typer

from tacit.cli import complete
from tacit.cli import options as o
from tacit.errors import unknown_name

HELP = "List the available algorithms, models, data sets, partitions, compressors and samplings."

KINDS = ("algorithms", "models", "data", "partitions", "compressors", "samplings")


def list_names(
    kind: str | None = typer.Argument(
        None,
        help=f"Only these: {', '.join(KINDS[:-1])} or {KINDS[-1]}.",
        show_default=False,
        autocompletion=complete.words(*KINDS),
    ),
    as_json: o.Json = False,
) -> None:
    """List everything that can be chosen by name."""
    from rich.console import Console
    from rich.table import Table

    groups = _groups()
    if kind is not None:
        if kind not in groups:
            raise unknown_name("kind of names", kind, groups)
        groups = {kind: groups[kind]}
    if as_json:
        print(json.dumps(groups))
        return
    console = Console()
    for title, entries in groups.items():
        table = Table(
            title=title, title_justify="left", title_style="bold", box=None, show_header=False, padding=(0, 2)
        )
        table.add_column(style="cyan", no_wrap=True)
        table.add_column()
        for name, summary in entries.items():
            table.add_row(name, summary)
        console.print(table, "")


def _mark(private: bool) -> str:
    return "" if private else " - NOT PRIVATE"


def _groups() -> dict[str, dict[str, str]]:
    from tacit.algorithms.registry import ALGORITHMS
    from tacit.data import DATASETS, PARTITIONERS
    from tacit.models.registry import MODELS

    return {
        "algorithms": {name: f"{e.summary} ({e.paper}){_mark(e.private)}" for name, e in ALGORITHMS.items()},
        "models": {name: e.summary for name, e in MODELS.items()},
        "data": {
            **{
                name: f"{e.summary}; licence: {e.licence}{'' if e.embedded else '; from files'}"
                for name, e in DATASETS.items()
            },
            "quadratic": "one synthetic quadratic per client (DP-NormFedAvg, appendix F)",
        },
        "partitions": {p.spelling(name): p.summary for name, p in PARTITIONERS.items()},
        "compressors": {
            "identity": "no compression, 32 bits per coordinate",
            "rand-k:FRACTION|COUNT": "a random subset of the coordinates; the indices follow from a seed",
            "qsgd:LEVELS": "random rounding to a few levels",
            "natural": "random rounding to powers of two, 9 bits per coordinate",
            "rand-k:...+qsgd:...": "a subset, quantised",
            "top-k:FRACTION|COUNT": "the largest coordinates; biased, for algorithms with error feedback",
        },
        "samplings": {
            "poisson": "each record is drawn independently (the default)",
            "without-replacement": "a random set of a fixed number of records",
            "with-replacement": "a fixed number of independent draws",
            "one-pass": "disjoint batches: each record is used in at most one step",
            "full": "every record, every round",
        },
    }
