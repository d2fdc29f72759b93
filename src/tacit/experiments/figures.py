"""The panels of the experiments' figures."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tacit.engine.workers import Result
from tacit.experiments.experiment import PUBLISHED, SUMMED, TRUE
from tacit.experiments.intervals import mean_and_interval
from tacit.privacy.promises.rounding import up_to
from tacit.report.curves import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEGEND_INCHES, _LETTER_INCHES = 0.7, 0.062
"""The width of a legend entry without its text, and of a letter of the text."""
STYLES = {PUBLISHED: "--", TRUE: "-", SUMMED: ":"}
Curve = TypeVar("Curve", bound=Hashable)
Curves = Mapping[str, tuple[Sequence[float], Sequence[Sequence[float]]]]
"""By legend: x, and y for every seed."""


def _style(mode: str) -> str:
    """The line style of a mode, or of a variant of it ("true, defaults")."""
    return STYLES.get(mode.split(",")[0], "--")


def finished(found: Mapping[Curve, Sequence[Result]]) -> dict[Curve, list[Result]]:
    """The runs that can be shown: a run may diverge with a seed other than the one it was tuned with.

    >>> finished({"a": [{"loss": 1.0}, {"error": "diverged"}], "b": [{"error": "diverged"}]})
    {'a': [{'loss': 1.0}]}
    """
    kept = {key: [result for result in results if "error" not in result] for key, results in found.items()}
    return {key: results for key, results in kept.items() if results}


def panels(rows: int, columns: int, *, height: float = 2.9) -> tuple[Figure, Any]:
    """A figure with a grid of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(5.0, 3.6 * columns), height * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def rounds_panel(ax: Axes, curves: Curves, label: str) -> None:
    """Means over the seeds on a logarithmic axis; clipping is dashed."""
    for index, (name, (x, values)) in enumerate(curves.items()):
        mean = np.array(values, dtype=float).mean(0)
        style = "--" if name.startswith("Clip") else "-"
        ax.plot(x, mean, style, color=COLOURS[index % len(COLOURS)], label=name, linewidth=1.5)
    ax.set_yscale("log")
    ax.set_xlabel("communication rounds")
    ax.set_ylabel(label)
    ax.legend(frameon=False, fontsize=7.5)


def modes_panel(
    ax: Axes,
    curves: Mapping[tuple[str, str], tuple[Sequence[float], Sequence[Sequence[float]]]],
    colours: Sequence[str],
    worth: Mapping[tuple[str, str], float] | None = None,
) -> None:
    """One line per (mode, method), the mean of the seeds: a colour per method, a line style per mode.

    `worth` has real epsilons for the legend.
    """
    real = {key: f", epsilon {up_to(epsilon)}" for key, epsilon in (worth or {}).items()}
    for (mode, method), (x, values) in curves.items():
        mean = np.array([[np.nan if v is None else v for v in one] for one in values], dtype=float).mean(0)
        shown = np.array(x, dtype=float) > 0
        ax.plot(
            np.array(x, dtype=float)[shown],
            mean[shown],
            _style(mode),
            color=COLOURS[list(colours).index(method) % len(COLOURS)],
            linewidth=1.4,
            label=f"{method}, {mode}{real.get((mode, method), '')}",
        )


def intervals_panel(
    ax: Axes,
    series: Mapping[tuple[str, str], Mapping[float, Sequence[float]]],
    colours: Sequence[str],
    worth: Mapping[str, Mapping[float, float]],
) -> None:
    """Error against epsilon with 90% intervals: a colour per method, a line style per mode.

    Below every label is the real epsilon (`worth`) of each method's published noise there, one line per method.
    """
    for (mode, method), by_epsilon in series.items():
        colour = COLOURS[list(colours).index(method) % len(COLOURS)]
        x = sorted(by_epsilon)
        stats = [mean_and_interval(by_epsilon[e]) for e in x]
        if mode.startswith("no privacy"):
            means = [mean for mean, _ in stats]
            ax.plot(x, means, color=colour, linestyle="-.", linewidth=0.9, label=f"{method}, {mode}")
            continue
        ax.errorbar(
            x,
            [m for m, _ in stats],
            [h or 0.0 for _, h in stats],
            color=colour,
            capsize=2,
            linewidth=1.3,
            markersize=3,
            marker="o",
            linestyle=_style(mode),
            label=f"{method}, {mode}",
        )
    ticks = sorted(
        {label for (mode, _), found in series.items() if not mode.startswith("no privacy") for label in found}
    )
    ax.set_xscale("log")
    below = [[f"{label:g}", *(_short(real[label]) for real in worth.values())] for label in ticks]
    ax.set_xticks(ticks, ["\n".join(lines) for lines in below], fontsize=7.5)
    ax.set_xticks([], minor=True)
    ax.set_xlabel(f"label; really: {', '.join(worth)}", fontsize=8.5)


def _short(epsilon: float) -> str:
    return up_to(epsilon, 2) if epsilon < 10 else f"{math.ceil(epsilon)}"


def path_panel(ax: Axes, paths: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Paths around the optimum at zero, in the plane of their two largest principal components, smoothed."""
    stacked = np.concatenate([np.asarray(points, dtype=float) for points in paths.values()])
    _, _, directions = np.linalg.svd(stacked - stacked.mean(0), full_matrices=False)
    for index, (name, points) in enumerate(paths.items()):
        flat = np.asarray(points, dtype=float) @ directions[:2].T
        window = max(1, len(flat) // 20)
        smooth = np.stack([np.convolve(flat[:, k], np.ones(window) / window, "valid") for k in (0, 1)], axis=1)
        line = np.concatenate([flat[:1], smooth])
        ax.plot(*line.T, "--" if index == 0 else "-", color=COLOURS[index], linewidth=1.4, label=name)
        ax.plot(*line[-1], "o", color=COLOURS[index], markersize=4)
    ax.plot(0, 0, "x", color="black", markersize=8, label="optimum")
    ax.set_xlabel("first principal component")
    ax.set_ylabel("second principal component")
    ax.legend(frameon=False, fontsize=7.5)


def legend_below(figure: Figure, ax: Axes) -> None:
    """One legend for all panels, in as many columns as fit."""
    handles, labels = ax.get_legend_handles_labels()
    widest = _LEGEND_INCHES + _LETTER_INCHES * max(map(len, labels), default=0)
    columns = max(1, int(figure.get_figwidth() / widest))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
