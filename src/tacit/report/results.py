"""The results of runs on their pages: the test metric with its error bar, and curves of training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tacit.report.chart import Interval, interval_chart, line_chart
from tacit.report.intervals import joint_interval, mean_interval, mean_line, share_interval
from tacit.report.page import Block, Charts, Facts, Marked, Paragraph, Verdict
from tacit.report.words import counted

Summary = Mapping[str, Any]
"""A run's summary.json."""
Rows = Sequence[Mapping[str, Any]]
"""The rows of a run's history."""

NOT_COVERED = (
    "This is known only because all records are in one place here: it is a simulation, and these numbers were "
    "measured on them without noise. The promise above does not cover them. Leave this section out of what you "
    "pass on if the records are real."
)


def metric_interval(name: str, summaries: Sequence[Summary]) -> tuple[Interval, str] | None:
    """The test metric with its error bar, and what the bar is; None without a test set."""
    values = [s["test_metric"] for s in summaries if s["test_metric"] is not None]
    if not values:
        return None
    records, units = summaries[0].get("test_records"), counted(summaries[0])
    if summaries[0]["test_metric_name"] == "accuracy" and records:
        sampled = share_interval(name, sum(values) / len(values), records)
        if len(values) == 1:
            return sampled, (
                f"The bar is the 95% interval (Wilson) for {records:,} test {units}: how it would vary with "
                f"other test {units}. How it varies with the noise, only several seeds show (--seeds 5)."
            )
        return joint_interval(mean_interval(name, values), sampled), (
            f"The bar is the 95% interval of the mean over {len(values)} seeds (Student's t) and for {records:,} "
            f"test {units} (Wilson) together: how it varies with noise, batches, start and test {units}."
        )
    if len(values) > 1:
        return mean_interval(name, values), (
            f"The bar is the 95% interval of the mean over {len(values)} seeds (Student's t): how it varies with "
            "noise, batches and start, on the same test records."
        )
    return Interval(name, values[0]), "One run has no error bar here: several seeds show one (--seeds 5)."


def result_blocks(summaries: Sequence[Summary], histories: Sequence[Rows]) -> list[Block]:
    """The test metric with its error bar, its curve, and whose test records these are."""
    first = summaries[0]
    found = metric_interval(f"test {first['test_metric_name']}", summaries)
    if found is None:
        return [Paragraph(("There are no test records: nothing says how good the model is for new ones.",))]
    bar, words = found
    limits = (0.0, 1.0) if first["test_metric_name"] == "accuracy" else None
    curve = _curve(histories, "test_metric", f"test {first['test_metric_name']}")
    epsilon = _curve(histories[:1], "epsilon", "epsilon spent")
    # Curves stand side by side, below the bar, which is lower.
    above = Charts(((interval_chart([bar], bar.name, fixed=limits), words),))
    charts: list[tuple[str, str]] = []
    if curve is not None:
        charts.append((curve, _band(f"test {first['test_metric_name']}, round by round", histories)))
    if epsilon is not None:
        aside = "; the evaluation's part is set aside at the start" if first.get("evaluation") else ""
        words = f"the privacy that the rounds so far have cost, for the client that spends most{aside}"
        charts.append((epsilon, words))
    curves = [Charts(tuple(charts))] if charts else []
    return [above, *compared_with_naive(first), *curves, whose_test_records(first)]


def compared_with_naive(first: Summary) -> list[Block]:
    """What somebody would reach who looks at no column at all; nothing if that is not known."""
    if first.get("naive_metric") is None:
        return []
    value, what = first["naive_metric"]
    return [Paragraph((f"For comparison: {first['test_metric_name']} {value:.4g} ({what}).",))]


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


def measured_blocks(summaries: Sequence[Summary], histories: Sequence[Rows]) -> list[Block]:
    """What only a simulation can measure: curves of training, and what limited the result."""
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
        expected = (first.get("outlook") or {}).get("advice")
        changes = ["See above." if f["change"] == expected else f["change"] for f in findings]
        blocks.append(
            Marked(tuple(("fair", f["what"], change) for f, change in zip(findings, changes, strict=True)))
        )
    return [
        *blocks,
        Charts(tuple((svg, words) for svg, words in curves if svg is not None)),
        Facts(
            (
                ("training loss at the end", f"{losses.value:.4g}{spread}"),
                (
                    f"{counted(first)} per client",
                    "protected" if sizes is None else f"{sizes[0]:,} to {sizes[1]:,}",
                ),
                ("time", f"{sum(s['seconds'] for s in summaries):.1f} s"),
            )
        ),
    ]


def _curve(histories: Sequence[Rows], column: str, label: str) -> str | None:
    """The mean over the histories, with a band from the smallest to the largest; None if nothing was measured."""
    line = mean_line(label, histories, column)
    if len(line.x) < 2 or not any(math.isfinite(y) for y in line.y):
        return None
    return line_chart([line], "rounds", label)


def _band(words: str, histories: Sequence[Rows]) -> str:
    return words if len(histories) == 1 else f"{words}: mean, and from the smallest to the largest of the seeds"
