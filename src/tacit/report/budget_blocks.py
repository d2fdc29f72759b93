"""What silos have spent of their budgets, and what is left, for the page of a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.privacy import Target, events
from tacit.privacy.accountant.filter import room
from tacit.privacy.promises.rounding import round_down, round_up
from tacit.report.page import Block, Paragraph, SortableTable
from tacit.report.words import counted_in


def budget_blocks(signed: Mapping[str, Mapping[str, Any]]) -> list[Block]:
    """A table of all silos that have signed a certificate."""
    counted = counted_in(signed.values())
    columns = ("silo", "budget", "this run", "all its runs", "left", "delta", counted, "noise multiplier")
    rows = []
    for site, silo in signed.items():
        budget, spent = silo["policy"]["epsilon"], silo["epsilon"]["collaboration"]
        run = silo["epsilon"]["run"]
        rows.append(
            (
                site,
                budget,
                "unlimited" if run is None else round_up(run),
                "unlimited" if spent is None else round_up(spent),
                _left(silo),
                silo["policy"]["delta"],
                silo.get("records", "protected"),
                silo["noise_multiplier"],
            )
        )
    words = (
        "Epsilons, per silo, under the limits that each silo has set itself. Costs do not simply add up: what is "
        "left is the largest release that still fits beside all runs. Before a run, a silo's own ledger decides."
    )
    return [SortableTable("privacy loss budgets", columns, tuple(rows)), Paragraph((words,))]


def _left(silo: Mapping[str, Any]) -> float:
    """What `tacit account` says of the silo's folder."""
    policy, runs = silo["policy"], events.from_dict(silo["events"]["collaboration"]).runs
    return round_down(room(runs, Target(policy["epsilon"], policy["delta"], silo["adjacency"])))
