"""The page of a simulated run, or of the same run with several seeds: report.html."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.privacy.promises.plain import plain_promise, strength
from tacit.privacy.promises.protection import NO_PROTECTION, in_words
from tacit.privacy.promises.rounding import MOST_DIGITS, round_up, up_to
from tacit.report.chart import Interval, interval_chart, line_chart
from tacit.report.evaluation_blocks import evaluation_blocks
from tacit.report.intervals import joint_interval, mean_interval, mean_line, share_interval
from tacit.report.page import (
    Block,
    Charts,
    Facts,
    Folded,
    FoldedText,
    Marked,
    Paragraph,
    Section,
    SortableTable,
    Verbatim,
    Verdict,
    render_page,
)
from tacit.report.table_blocks import SchemaTable, table_blocks
from tacit.report.terms import glossary
from tacit.report.words import (
    corrected_words,
    in_bytes,
    learned_words,
    plain_meaning,
    protected_unit,
    without_trust,
)

Summary = Mapping[str, Any]
"""A run's summary.json."""
Rows = Sequence[Mapping[str, Any]]
"""The rows of a run's history."""

NOT_COVERED = (
    "This is known only because all records are in one place here: it is a simulation, and these numbers were "
    "measured on them without noise. The promise above does not cover them. Leave this section out of what you "
    "pass on if the records are real."
)
_TO_WHOM = {
    "record": "To the people whose records the clients hold",
    "person": "To the people whose rows the clients hold",
    "client": "To every client",
}
_OUTLOOKS = {
    "clear": ("good", "Enough signal"),
    "fair": ("fair", "Enough signal for the main effects"),
    "noisy": ("fair", "Noisy"),
    "hidden": ("bad", "Hidden by noise"),
}


def correction_section(correction: Mapping[str, Any]) -> Section:
    """How a regression was corrected."""
    words = (
        f"Clipping pulls predictions towards the most usual ones. So the model was corrected: "
        f"{corrected_words(correction)}."
    )
    return Section("How the model was corrected after training", [Paragraph((words,))])


@dataclass(frozen=True)
class Repeat:
    """What somebody else needs to repeat a result."""

    command: str
    digests: Mapping[str, str]
    """SHA-256 by name of what was hashed"""
    versions: Mapping[str, str]
    recipe: str
    """the recipe, or the job, as TOML"""


def run_page(
    summaries: Sequence[Summary], histories: Sequence[Rows], repeat: Repeat, schema: SchemaTable | None = None
) -> str:
    """The page of a run, as HTML.

    Args:
        summaries: the summary of the run, or of each seed's run.
        histories: the history of each of them.
        repeat: how to repeat it.
        schema: what the table holds, if the run had a schema.
    """
    first = summaries[0]
    private = first["privacy"] != "none"
    seeds = "" if len(summaries) == 1 else f", {len(summaries)} seeds"
    tested = "test_metric" not in first.get("not_covered", ())
    sections = [
        Section("What was promised, and to whom", promise_blocks(summaries)),
        Section("The result", _result(summaries, histories), covered=tested),
        Section("What was sent", [Facts(_sent(first))]),
    ]
    if schema is not None:
        sections.insert(1, Section("What the model predicts, and from what", table_blocks(schema)))
    if first.get("evaluation"):
        sections.insert(-1, Section("How good it is for new records", evaluation_blocks(first["evaluation"])))
    if first.get("learned"):
        sections.append(
            Section("What was learned before training", [Paragraph((learned_words(first["learned"]),))])
        )
    if first.get("correction"):
        sections.append(correction_section(first["correction"]))
    if private:
        sections.append(Section("What was taken as public", public_blocks(first)))
    if ahead := first.get("outlook"):
        tone, word = _OUTLOOKS[ahead["verdict"]]
        outlook = Verdict(tone, f"{word}, as public numbers say", (ahead["sentence"],))
        sections.append(Section("What limits the result", [outlook]))
    sections.append(
        Section(
            "Only for the researcher who simulates" if private else "Training",
            _measured(summaries, histories),
            covered=not private,
        )
    )
    sections.append(Section("How to repeat it", repeat_blocks(repeat)))
    if private:
        words = glossary(unit_of(first), first["adversary"], first["adjacency"])
        sections.append(Section("The words used here", [Facts(words)]))
    title = (
        f"{first['algorithm']} on {first['data']}"
        if schema is None
        else f"A model of {schema['target']['column']}"
    )
    return render_page(
        f"{title}{seeds}",
        f"A simulation of {first['clients']} clients: {first['rounds']} rounds of {first['algorithm']}, a model "
        f"of {first['dim']} parameters. Made by tacit.",
        sections,
    )


def promise_blocks(summaries: Sequence[Summary]) -> list[Block]:
    """The promise in plain words, then formally, and whom it protects against whom."""
    first = summaries[0]
    if first["privacy"] == "none":
        why = "Nothing is promised to anybody: the noise was switched off. Do not run this on real records."
        return [Verdict("bad", "Not private", (why,))]
    epsilon, delta, unit, adjacency = first["epsilon"], first["delta"], unit_of(first), first["adjacency"]
    tone, word = strength(epsilon, delta)
    adversary = first["adversary"]
    lines = [
        plain_promise(epsilon, delta, unit, adversary, adjacency),
        plain_meaning(epsilon, delta, unit, adversary, adjacency),
        *without_trust(adversary, first.get("epsilon_without_trust")),
    ]
    if len(summaries) > 1:
        lines.append(f"This is the promise of each of the {len(summaries)} runs alone; together they cost more.")
    rows = tuple(
        (row["adversary"], row["protected"], shown_epsilon(row["epsilon"])) for row in first["protection"]
    )
    blocks: list[Block] = [
        Verdict(tone, f"{_TO_WHOM[unit]}: a {word} promise, epsilon {up_to(epsilon)}", tuple(lines)),
        Verdict("fair", "A simulation", (f"The noise is {first['entropy']}.",))
        if str(first["entropy"]).startswith("seeded")
        else Paragraph((f"The noise is {first['entropy']}.",)),
        SortableTable(
            "who is protected against whom; smaller is better", ("against", "protected", "epsilon"), rows
        ),
        Folded("The same as an auditor would quote it", (first["promise"],)),
    ]
    if first.get("clients_own"):
        blocks.append(_own_budgets(first["clients_own"]))
    return blocks


def unit_of(summary: Summary) -> str:
    """Whom the promise of a run protects."""
    return protected_unit(summary["unit"], summary.get("public", ()))


def shown_epsilon(epsilon: float | None) -> float | str:
    """An epsilon rounded up to three digits, or words if it promises nothing.

    >>> shown_epsilon(3.9991), shown_epsilon(803_911.8), shown_epsilon(None)
    (4.0, 'no protection (804,000)', 'no protection')
    """
    if epsilon is None:
        return in_words(None)
    up = round_up(epsilon)
    return f"{in_words(epsilon)} ({up:,.0f})" if epsilon >= NO_PROTECTION else up


def public_blocks(summary: Summary) -> list[Block]:
    """What the promise takes as known to everybody."""
    described = ", and the schema: columns, ranges, categories and classes" if summary.get("schema") else ""
    return [
        Paragraph(("The promise does not protect these; it takes them as known to everybody:",)),
        Paragraph((*summary.get("public", ()), f"the recipe, which is every setting of the run{described}")),
    ]


def repeat_blocks(repeat: Repeat, recipe: str = "The recipe, with every choice filled in") -> list[Block]:
    """Command, digests, versions and recipe."""
    return [
        Verbatim(repeat.command),
        Facts(tuple((f"SHA-256 of {name}", digest) for name, digest in repeat.digests.items())),
        Facts(tuple(repeat.versions.items())),
        FoldedText(recipe, repeat.recipe),
    ]


def metric_interval(name: str, summaries: Sequence[Summary]) -> tuple[Interval, str] | None:
    """The test metric with its error bar, and what the bar is; None without a test set."""
    values = [s["test_metric"] for s in summaries if s["test_metric"] is not None]
    if not values:
        return None
    records = summaries[0].get("test_records")
    if summaries[0]["test_metric_name"] == "accuracy" and records:
        sampled = share_interval(name, sum(values) / len(values), records)
        if len(values) == 1:
            return sampled, (
                f"The bar is the 95% interval (Wilson) for {records:,} test records: how it would vary with "
                "other test records. How it varies with the noise, only several seeds show (--seeds 5)."
            )
        return joint_interval(mean_interval(name, values), sampled), (
            f"The bar is the 95% interval of the mean over {len(values)} seeds (Student's t) and for {records:,} "
            "test records (Wilson) together: how it varies with noise, batches, start and test records."
        )
    if len(values) > 1:
        return mean_interval(name, values), (
            f"The bar is the 95% interval of the mean over {len(values)} seeds (Student's t): how it varies with "
            "noise, batches and start, on the same test records."
        )
    return Interval(name, values[0]), "One run has no error bar here: several seeds show one (--seeds 5)."


def _result(summaries: Sequence[Summary], histories: Sequence[Rows]) -> list[Block]:
    first = summaries[0]
    found = metric_interval(f"test {first['test_metric_name']}", summaries)
    if found is None:
        return [Paragraph(("There are no test records: nothing says how good the model is for new ones.",))]
    bar, words = found
    limits = (0.0, 1.0) if first["test_metric_name"] == "accuracy" else None
    curve = _curve(histories, "test_metric", f"test {first['test_metric_name']}")
    epsilon = _curve(histories[:1], "epsilon", "epsilon spent")
    charts = [(interval_chart([bar], bar.name, fixed=limits), words)]
    if curve is not None:
        charts.append((curve, _band(f"test {first['test_metric_name']}, round by round", histories)))
    if epsilon is not None:
        aside = "; the evaluation's part is set aside at the start" if first.get("evaluation") else ""
        words = f"the privacy that the rounds so far have cost, for the client that spends most{aside}"
        charts.append((epsilon, words))
    return [
        Charts(tuple(charts)),
        *([] if first.get("naive_metric") is None else [_compared_with_naive(first)]),
        whose_test_records(first),
    ]


def _compared_with_naive(first: Summary) -> Block:
    """What somebody would reach who looks at no column at all."""
    value, what = first["naive_metric"]
    return Paragraph((f"For comparison: {first['test_metric_name']} {value:.4g} by predicting {what}.",))


def whose_test_records(summary: Summary) -> Block:
    """Whose records the test records are, and whether the promise is about them."""
    if "test_metric" in summary.get("not_covered", ()):
        words = (
            "The test records belong to the clients, and this was measured on them without noise: only a "
            "simulation can do that. The promise does not cover it."
        )
        return Verdict("fair", "Not covered by the promise", (words,))
    if summary["privacy"] == "none":
        return Paragraph(("Measured exactly on test records.",))
    words = (
        "Measured exactly on test records that belong to no client. The promise is about the clients' records, "
        "not about these."
    )
    return Paragraph((words,))


def _sent(first: Summary) -> tuple[tuple[str, Any], ...]:
    each, total = first["uplink_bits_per_client"], first["uplink_bits_total"]
    return (
        ("by each client, in all", in_bytes(each)),
        ("by each client, per round", in_bytes(each // max(1, first["rounds"]))),
        ("by all clients", in_bytes(total)),
        ("compressed by", "nothing" if first["compressor"] == "identity" else first["compressor"]),
        ("the model as it is, for comparison", in_bytes(32 * first["dim"])),
    )


def _measured(summaries: Sequence[Summary], histories: Sequence[Rows]) -> list[Block]:
    first = summaries[0]
    blocks: list[Block] = []
    if first["privacy"] != "none":
        blocks.append(Verdict("fair", "Not covered by the promise", (NOT_COVERED,)))
    curves = [
        (
            _curve(histories, "train_loss", "training loss"),
            _band("mean loss over the clients' records", histories),
        ),
        (
            _curve(histories, "grad_norm_sq_mean", "mean squared gradient norm"),
            _band("utility: the mean over the rounds so far", histories),
        ),
    ]
    losses = mean_interval("training loss", [s["train_loss"] for s in summaries])
    spread = "" if losses.low is None or losses.high is None else f" ({losses.low:.4g} to {losses.high:.4g})"
    sizes = first["records_per_client"]
    if findings := first.get("findings"):
        blocks.append(Paragraph(("What limited the result, as found afterwards:",)))
        blocks.append(Marked(tuple(("fair", f["what"], f["change"]) for f in findings)))
    return [
        *blocks,
        Charts(tuple((svg, words) for svg, words in curves if svg is not None)),
        Facts(
            (
                ("training loss at the end", f"{losses.value:.4g}{spread}"),
                ("records per client", "protected" if sizes is None else f"{sizes[0]:,} to {sizes[1]:,}"),
                ("time", f"{sum(s['seconds'] for s in summaries):.1f} s"),
            )
        ),
    ]


def _own_budgets(rows: Sequence[Mapping[str, Any]]) -> SortableTable:
    columns = ("client", "budget", "epsilon", "delta", "noise multiplier")
    cells = tuple(
        (
            row["client"],
            row["epsilon_budget"],
            round_up(row["epsilon"]),
            up_to(row["delta"], MOST_DIGITS),
            row["noise_multiplier"],
        )
        for row in rows
    )
    return SortableTable("clients have budgets of their own", columns, cells)


def _curve(histories: Sequence[Rows], column: str, label: str) -> str | None:
    """The mean over the histories, with a band from the smallest to the largest; None if nothing was measured."""
    line = mean_line(label, histories, column)
    if len(line.x) < 2 or not any(math.isfinite(y) for y in line.y):
        return None
    return line_chart([line], "rounds", label)


def _band(words: str, histories: Sequence[Rows]) -> str:
    return words if len(histories) == 1 else f"{words}: mean, and from the smallest to the largest of the seeds"
