"""`tacit list`."""

from __future__ import annotations

import json

from tacit.cli import options as o

HELP = "List the algorithms, models, data sets, partitions, compressors and samplings that there are."


def list_names(as_json: o.Json = False) -> None:
    """Everything that has a name."""
    from rich.console import Console
    from rich.table import Table

    groups = _groups()
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
            **{name: e.summary + ("" if e.embedded else " (from files)") for name, e in DATASETS.items()},
            "quadratic": "one synthetic quadratic a client (DP-NormFedAvg, F)",
        },
        "partitions": {p.spelling(name): p.summary for name, p in PARTITIONERS.items()},
        "compressors": {
            "identity": "32 bits a coordinate",
            "rand-k:FRACTION|COUNT": "a random subset of the coordinates; the indices follow from a seed",
            "qsgd:LEVELS": "random dithering to a few levels",
            "natural": "random rounding to powers of two, 9 bits a coordinate",
            "rand-k:...+qsgd:...": "a subset, quantised",
            "top-k:FRACTION|COUNT": "the largest coordinates; biased, for algorithms with error feedback",
        },
        "samplings": {
            "poisson": "every record by a coin of its own (the default)",
            "without-replacement": "a random set of exactly so many records",
            "with-replacement": "so many independent draws",
            "one-pass": "disjoint batches: every record in at most one step",
            "full": "every record, every round",
        },
    }
