"""The page of a comparison: report.html."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tacit.privacy.promises.plain import plain_promise, strength
from tacit.privacy.promises.rounding import round_up
from tacit.report.chart import interval_chart, line_chart
from tacit.report.evaluation_blocks import compared_blocks
from tacit.report.intervals import mean_interval, mean_line
from tacit.report.page import Block, Charts, Marked, Section, SortableTable, Verdict, render_page
from tacit.report.results import (
    NOT_COVERED,
    Rows,
    Summary,
    compared_with_naive,
    metric_interval,
    whose_test_records,
)
from tacit.report.run_page import Repeat, public_blocks, repeat_blocks, unit_of
from tacit.report.table_blocks import SchemaTable, table_blocks
from tacit.report.words import in_bytes, without_trust

Entry = tuple[str, Sequence[Summary], Sequence[Rows]]
"""An algorithm (with the value of the setting that is varied, if any), and summary and history of each seed."""


def comparison_page(
    entries: Sequence[Entry],
    table: Sequence[Mapping[str, Any]],
    repeat: Repeat,
    *,
    tuned: bool,
    diverged: Sequence[str],
    schema: SchemaTable | None = None,
) -> str:
    """The page of a comparison, as HTML.

    Args:
        entries: what was compared.
        table: one row for each entry, as in comparison.csv.
        repeat: how to repeat it.
        tuned: whether settings were chosen by looking at the records.
        diverged: what diverged, in words.
        schema: what the table holds, if the runs had a schema.
    """
    finished = [entry for entry in entries if entry[1]]
    first = finished[0][1][0]
    name = first["test_metric_name"]
    # Of runs with and without a promise, those with one say whose the test records are.
    private = next((one for _, (one, *_), _ in finished if one["privacy"] != "none"), first)
    shown, bare = (
        "train_loss" if private["test_metric"] is None else "test_metric",
        private.get("not_covered", ()),
    )
    sections = [
        Section("What was promised, and to whom", _promises(finished, tuned=tuned)),
        Section("The result", _result(finished, name, private), covered=shown not in bare),
        Section("What was sent, and what it gave", [_table(table, name)], covered="test_metric" not in bare),
        Section("Only for the researcher who simulates", _measured(finished), covered=False),
    ]
    evaluations = [
        (name if len(summaries) == 1 else f"{name}, seed {one['seed']}", one["evaluation"])
        for name, summaries, _ in finished
        for one in summaries
        if one.get("evaluation")
    ]
    if evaluations:
        sections.insert(2, Section("How good it is for new records", compared_blocks(evaluations)))
    if schema is not None:
        sections.insert(1, Section("What the models predict, and from what", table_blocks(schema)))
    if diverged:
        sections.append(
            Section("What diverged", [Marked(tuple(("bad", "Diverged:", what) for what in diverged))])
        )
    if public := next((s for _, (s, *_), _ in finished if s["privacy"] != "none"), None):
        sections.append(Section("What was taken as public", public_blocks(public)))
    sections.append(Section("How to repeat it", repeat_blocks(repeat, "The recipe that all runs share")))
    seeds = max(len(summaries) for _, summaries, _ in finished)
    algorithms = len({row["algorithm"] for row in table})
    return render_page(
        f"{algorithms} algorithms on {first['data']}" if algorithms > 1 else f"Comparison on {first['data']}",
        f"A simulation of {first['clients']} clients, {seeds} seed{'s' if seeds > 1 else ''} each. Made by "
        "tacit.",
        sections,
    )


def label(row: Mapping[str, Any]) -> str:
    """What a row of the table is called: the algorithm, and the value of the setting that is varied.

    >>> label({"algorithm": "cdp-sgd", "at": {"epsilon": 1}})
    'cdp-sgd, epsilon 1'
    """
    return str(row["algorithm"]) + "".join(f", {_last(key)} {value}" for key, value in row.get("at", {}).items())


def _promises(entries: Sequence[Entry], *, tuned: bool) -> list[Block]:
    alike: dict[tuple[str, str, str], list[str]] = {}
    for name, (first, *_), _ in entries:
        verdict = ("bad", "not private", "Shown only to see what privacy costs.")
        if first["privacy"] != "none":
            promise = plain_promise(
                first["epsilon"], first["delta"], unit_of(first), first["adversary"], first["adjacency"]
            )
            left = without_trust(first["adversary"], first.get("epsilon_without_trust"))
            verdict = (strength(first["epsilon"], first["delta"])[0], "", " ".join((promise, *left)))
        alike.setdefault(verdict, []).append(name)
    lines = [
        (tone, f"{'; '.join(names)}: {word}." if word else f"{'; '.join(names)}:", promise)
        for (tone, word, promise), names in alike.items()
    ]
    together = (
        "Each promise is that of one run alone. All runs used the same records, so together they cost more. "
        "Compare algorithms on public records, not on those that you want to protect."
    )
    blocks: list[Block] = [Marked(tuple(lines)), Verdict("fair", "Together they cost more", (together,))]
    if tuned:
        words = "Settings were chosen by looking at the records many times. No epsilon here includes that."
        blocks.append(Verdict("bad", "Tuning is not paid for", (words,)))
    return blocks


def _result(entries: Sequence[Entry], metric: str, private: Summary) -> list[Block]:
    found = [(name, metric_interval(name, summaries)) for name, summaries, _ in entries]
    bars = [told for _, told in found if told is not None]
    if not bars:
        losses = [mean_interval(name, [s["train_loss"] for s in summaries]) for name, summaries, _ in entries]
        words = "training loss (not covered by the promise); bars are 95% intervals over the seeds, if several"
        return [Charts(((interval_chart(losses, "training loss"), words),))]
    limits = (0.0, 1.0) if metric == "accuracy" else None
    bar = interval_chart([bar for bar, _ in bars], f"test {metric}", fixed=limits)
    charts = []
    for column, label, scale in (("round", "rounds", 1), ("uplink_bits_per_client", "kB sent by a client", 8000)):
        svg = _curves(entries, "test_metric", f"test {metric}", column, label, scale)
        bands = (
            "; bands span the smallest and largest of the seeds"
            if any(len(runs) > 1 for _, runs, _ in entries)
            else ""
        )
        charts.append((svg, f"test {metric}{bands}"))
    return [
        Charts(((bar, f"test {metric}. {bars[0][1]}"),)),
        *compared_with_naive(private),
        Charts(tuple(charts)),
        whose_test_records(private),
    ]


def _table(rows: Sequence[Mapping[str, Any]], metric: str) -> SortableTable:
    tuned = any(row["tuned"] for row in rows)
    last = ("tuned to",) if tuned else ()
    columns = ("algorithm", "seeds", "epsilon", f"test {metric}", "sent per client", "rounds", *last)
    cells = tuple(
        (
            label(row),
            row["seeds"],
            "not private" if row["privacy"] == "none" else None if (e := row["epsilon"]) is None else round_up(e),
            row["test_metric"],
            None if (bits := row["uplink_bits_per_client"]) is None else in_bytes(bits),
            row["rounds"],
            *([", ".join(f"{_last(key)} {value}" for key, value in row["tuned"].items())] if tuned else []),
        )
        for row in rows
    )
    return SortableTable("means over the seeds", columns, cells)


def _measured(entries: Sequence[Entry]) -> list[Block]:
    charts = (
        (
            _curves(entries, "train_loss", "training loss", "round", "rounds", 1),
            "mean loss over the clients' records",
        ),
        (
            _curves(entries, "grad_norm_sq_mean", "mean squared gradient norm", "round", "rounds", 1),
            "utility: the mean over the rounds so far",
        ),
    )
    return [Verdict("fair", "Not covered by any promise", (NOT_COVERED,)), Charts(charts)]


def _curves(entries: Sequence[Entry], column: str, label: str, x_column: str, x_label: str, scale: float) -> str:
    lines = [mean_line(name, histories, column, x_column, scale) for name, _, histories in entries]
    return line_chart(lines, x_label, label)


def _last(key: str) -> str:
    return key.removeprefix("algorithm.")
