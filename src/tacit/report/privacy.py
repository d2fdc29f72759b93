"""The privacy cost of a run as two curves: epsilon against delta, and against rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tacit.privacy.promises.rounding import MOST_DIGITS, up_to
from tacit.report.curves import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tacit.privacy.accountant.cost import Cost


def plot_cost(cost: Cost) -> Figure:
    """Left: the epsilon of all rounds at every delta. Right: the epsilon after each round at one delta.

    >>> from tacit.privacy.accountant.cost import cost_of
    >>> from tacit.privacy.events import poisson
    >>> figure = plot_cost(cost_of(poisson(0.1, 4.0), 20, 1e-5))
    >>> [axes.get_xlabel() for axes in figure.axes]
    ['delta', 'communication rounds']
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _curve(left, cost.by_delta)
    left.set_xscale("log")
    left.set_xlabel("delta")
    left.set_title(f"after {cost.rounds} rounds", loc="left", fontsize=10)
    _curve(right, cost.by_rounds)
    right.set_xlabel("communication rounds")
    right.set_title(f"at delta {up_to(cost.delta, MOST_DIGITS)}", loc="left", fontsize=10)
    right.set_xlim(left=0)
    for axes, x in ((left, cost.delta), (right, cost.rounds)):
        if math.isfinite(cost.epsilon):
            axes.plot([x], [cost.epsilon], "o", color=COLOURS[1], label=f"epsilon {up_to(cost.epsilon)}")
            axes.legend(frameon=False)
        axes.set_ylabel(f"epsilon ({cost.adjacency})")
        axes.set_ylim(bottom=0)
    return figure


def _curve(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    shown = [(x, y) for x, y in points if math.isfinite(y)]
    axes.plot([x for x, _ in shown], [y for _, y in shown], color=COLOURS[0], linewidth=1.6)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
