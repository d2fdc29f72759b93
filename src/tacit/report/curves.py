"""Curves of one run or several, against rounds and against bits sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.report.words import not_covered

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tacit.engine.history import History
    from tacit.engine.run import Run

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""The palette of Okabe and Ito, which is safe for all kinds of colour vision."""

STYLES = ("-", "--", "-.", ":")
"""Line styles, so that overlapping lines remain visible."""


def plot_run(run: Run) -> Figure:
    """The curves of one run: loss, utility and test metric, against rounds and against bits.

    Args:
        run: a finished run.
    """
    note = "" if run.guarantee is None else not_covered(tested=run.federation.test_is_private)
    return plot_histories({run.algorithm.name: [run.history]}, run.algorithm.work.model.metric_name, note)


def plot_histories(histories: Mapping[str, Sequence[History]], metric_name: str, note: str = "") -> Figure:
    """One row each for loss, utility and test metric; left against rounds, right against uplink bits.

    One line per name: the mean over its histories (seeds). The band spans the smallest and the largest.
    `note` stands below everything.
    """
    from matplotlib.figure import Figure

    quantities = [
        ("train_loss", "training loss", False),
        ("grad_norm_sq_mean", "utility: mean of $\\|\\nabla f\\|^2$ so far", True),
        ("test_metric", f"test {metric_name}", False),
    ]
    has_test = any(h[-1].test_metric is not None for runs in histories.values() for h in runs)
    quantities = quantities if has_test else quantities[:2]
    figure = Figure(figsize=(10, 2.9 * len(quantities) + 0.6), layout="constrained")
    axes = figure.subplots(len(quantities), 2, sharey="row", squeeze=False)
    for row, (column, label, logarithmic) in enumerate(quantities):
        for side, (x_column, x_label) in enumerate(
            [("round", "communication rounds"), ("uplink_bits_per_client", "bits sent by a client")]
        ):
            _panel(axes[row, side], histories, x_column, column)
            axes[row, side].set_xlabel(x_label)
            if side == 1:
                axes[row, side].set_xscale("log")
            if logarithmic:
                axes[row, side].set_yscale("log")
        axes[row, 0].set_ylabel(label)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)), frameon=False)
    figure.supxlabel(note, fontsize="small")
    return figure


def plot_at(
    ends: Mapping[str, Sequence[Sequence[float]]], values: Sequence[Any], setting: str, label: str, note: str = ""
) -> Figure:
    """A number at the end of a run against a setting: one line per name, whiskers over the seeds.

    `ends[name][k]` has the numbers of all seeds at `values[k]`. `note` stands below everything.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    ax = figure.subplots()
    numeric = all(isinstance(value, int | float) for value in values)
    x = np.array(values if numeric else range(len(values)), dtype=float)
    for index, (name, runs) in enumerate(ends.items()):
        means = np.array([np.mean(run) for run in runs])
        spread = np.array([[m - min(run), max(run) - m] for m, run in zip(means, runs, strict=True)]).T
        ax.errorbar(
            x, means, yerr=spread, label=name, capsize=3, linewidth=1.6, marker="o", markersize=3.5,
            color=COLOURS[index % len(COLOURS)], linestyle=STYLES[index % len(STYLES)],
        )  # fmt: skip
    if numeric and min(x) > 0:
        ax.set_xscale("log")
    ax.set_xticks(x, [f"{value:g}" if numeric else str(value) for value in values])
    ax.minorticks_off()
    ax.set_xlabel(setting)
    ax.set_ylabel(label)
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    figure.supxlabel(note, fontsize="small")
    return figure


def _panel(ax: Axes, histories: Mapping[str, Sequence[History]], x_column: str, y_column: str) -> None:
    for index, (name, runs) in enumerate(histories.items()):
        x = np.array([getattr(row, x_column) for row in runs[0]], dtype=float)
        y = np.array([[_number(getattr(row, y_column)) for row in run] for run in runs])
        style: dict[str, Any] = {
            "color": COLOURS[index % len(COLOURS)],
            "linestyle": STYLES[index % len(STYLES)],
        }
        shown = x > 0 if x_column != "round" else np.ones(len(x), dtype=bool)
        ax.plot(x[shown], y.mean(0)[shown], label=name, linewidth=1.6, **style)
        if len(runs) > 1:
            ax.fill_between(
                x[shown], y.min(0)[shown], y.max(0)[shown], color=style["color"], alpha=0.15, linewidth=0
            )
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
