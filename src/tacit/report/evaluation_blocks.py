"""How a page shows a private evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tacit.privacy.promises.rounding import up_to
from tacit.report.chart import Interval, interval_chart
from tacit.report.page import Block, Charts, Paragraph, SortableTable

NAMES = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "calibration": "calibration error",
    "error": "error",
    "loss": "mean loss",
}
_RANGES = {"accuracy": (0.0, 1.0), "auc": (0.0, 1.0), "calibration": (-1.0, 1.0)}

CALIBRATION = "calibration error: the mean predicted probability minus how often it came true; 0 is best"

EvaluationResult = Mapping[str, Any]
"""An evaluation as plain data: what a summary has under `evaluation`."""


def evaluation_blocks(evaluation: EvaluationResult, units: str = "records") -> list[Block]:
    """Pooled numbers, each client's, the groups' and their gaps, and the reliability of probabilities.

    units: "records", or "persons" if a record is a person.
    """
    pooled, clients = evaluation["all"], evaluation["clients"]
    cost = evaluation.get("epsilon_alone")
    left_out = evaluation.get("left_out")
    sent = (
        "Only the noisy sum over all clients was opened"
        if left_out
        else "Every client sent one noisy sum about them"
    )
    paid = (
        "There is no noise: nothing is promised here."
        if cost is None
        else f"{sent}. The promise above covers it; alone it would cost epsilon = {up_to(cost)}."
    )
    intro = (
        f"Measured on {pooled['records']:,} {units} that the clients held back from training. {paid} Bars are "
        "95% intervals for noise and sampling together. Where noise hides a number, its bar spans all that is "
        "possible."
    )
    everywhere = [pooled, *clients.values()]
    asked = _shown(pooled)
    seen = [name for name in asked if any(own[name]["value"] is not None for own in everywhere)]
    blocks: list[Block] = [Paragraph((intro,)), Charts(tuple(_chart(name, pooled, clients) for name in seen))]
    if hidden := [NAMES[name] for name in asked if name not in seen]:
        blocks.append(Paragraph((f"Hidden by noise everywhere, and not shown: {', '.join(hidden)}.",)))
    if pooled["groups"]:
        blocks += [_gaps(pooled["groups"]), Charts(tuple(_group_charts(pooled["groups"], asked)))]
    if shown := [bin for bin in pooled["reliability"] if bin[2]["value"] is not None]:
        words = (
            "Are the probabilities right? Each row: among records whose predicted probability (of the second "
            "class; with more than two classes, of the prediction) was in the range at the left, how often it "
            "came true. The share should lie in that range, too."
        )
        if lost := len(pooled["reliability"]) - len(shown):
            words += f" Noise hides {lost} of {len(pooled['reliability'])} ranges; they are not shown."
        rows = [_interval(f"{low:g} to {high:g}", one) for low, high, one in shown]
        blocks.append(Charts(((interval_chart(rows, "reliability", fixed=(0.0, 1.0)), words),)))
    meaning = (
        *([f"error: {evaluation['error_is']}"] if "error_is" in evaluation else []),
        *([CALIBRATION] if "calibration" in pooled else []),
        *(
            [f"mean loss: each record's loss counts as at most {evaluation['loss_bound']:g}"]
            if "loss" in asked
            else []
        ),
        *([f"left out: {left_out}"] if left_out else []),
    )
    return [*blocks, Paragraph(meaning)]


def compared_blocks(evaluations: Sequence[tuple[str, EvaluationResult]]) -> list[Block]:
    """The pooled numbers of several evaluations, by the name of what was evaluated."""
    intro = (
        "Measured on records that the clients held back from training. Bars are 95% intervals for noise and "
        "sampling together. Each promise above covers the evaluation of its own run."
    )
    pooled = [(label, evaluation["all"]) for label, evaluation in evaluations]
    charts = []
    for name in (name for name in NAMES if all(name in _shown(own) for _, own in pooled)):
        bars = [_interval(label, own[name]) for label, own in pooled]
        charts.append((interval_chart(bars, NAMES[name], fixed=_RANGES.get(name)), NAMES[name]))
    errors = dict.fromkeys(evaluation["error_is"] for _, evaluation in evaluations if "error_is" in evaluation)
    meaning = [Paragraph(tuple(f"error: {what}" for what in errors))] if errors else []
    return [Paragraph((intro,)), Charts(tuple(charts)), *meaning]


def _shown(own: EvaluationResult) -> list[str]:
    """The names of what is shown. A regression's error stands for its loss, in a unit that people know."""
    return [name for name in NAMES if name in own and not (name == "loss" and "error" in own)]


def _chart(name: str, pooled: EvaluationResult, clients: Mapping[str, EvaluationResult]) -> tuple[str, str]:
    rows = [_interval("all together", pooled[name])]
    if len(clients) > 1:
        rows += [_interval(f"client {client}", own[name]) for client, own in clients.items()]
    return interval_chart(rows, NAMES[name], fixed=_RANGES.get(name)), NAMES[name]


def _group_charts(groups: Mapping[str, EvaluationResult], asked: Sequence[str]) -> list[tuple[str, str]]:
    return [
        (
            interval_chart([_interval(group, own[name]) for group, own in groups.items()], NAMES[name]),
            f"{NAMES[name]} of each group",
        )
        for name in asked
        if all(name in own for own in groups.values())
    ]


def _gaps(groups: Mapping[str, EvaluationResult]) -> SortableTable:
    rows = []
    # Of two groups, one has the gap of the other turned round: two estimates of it would contradict each other.
    for group, own in list(groups.items())[: 1 if len(groups) == 2 else None]:
        for key, gap in own.items():
            name, is_gap, _ = key.partition("_gap")
            if not is_gap or name not in _shown(own):
                continue
            low, high = gap["low"], gap["high"]
            verdict = "no difference can be seen" if low <= 0 <= high else "higher" if low > 0 else "lower"
            rows.append((group, NAMES[name], gap["value"], low, high, verdict))
    others = "gap to all others" if len(groups) > 2 else f"gap to {list(groups)[-1]}"
    columns = ("group", "quantity", others, "at least", "at most", "in words")
    return SortableTable("gaps between groups, with 95% bars", columns, tuple(sorted(rows)))


def _interval(name: str, one: EvaluationResult) -> Interval:
    return Interval(name, one["value"], one["low"], one["high"])
