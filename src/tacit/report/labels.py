"""Plots the distribution of targets over the clients.

The plot shows private data. It is for a researcher's own simulation, not for a deployment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from tacit.federation import Federation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_BARS = 60
_BINS = 40
_INK = "#333333"
_PALETTE = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee",
    "#aa3377", "#bbbbbb", "#ee8866", "#44bb99", "#332288",
)  # fmt: skip
"""Paul Tol's bright colours and three of his others, which colour-blind readers can also tell apart."""


def plot_labels(federation: Federation, ax: Axes | None = None) -> Axes:
    """The targets of each client: stacked bars of classes, boxes for regression, an image for many clients.

    Args:
        federation: the federation whose targets are plotted.
        ax: where to draw; by default a new figure that pyplot does not know
            (`plot_labels(f).figure.savefig(path)`).
    """
    if ax is None:
        ax = _new_axes(federation)
    if federation.clients > _MOST_BARS:
        _draw_image(federation, ax)
    elif federation.classes is None:
        _draw_boxes(federation, ax)
    else:
        _draw_bars(federation, ax)
    plural = "" if federation.clients == 1 else "s"
    ax.set_title(
        f"{federation.name}: {federation.records:,} records of {federation.clients:,} client{plural}",
        loc="left",
        color=_INK,
        fontsize=11,
        pad=10,
    )
    return ax


def label_counts(federation: Federation) -> npt.NDArray[np.int64]:
    """(clients, classes): how many records of each class a client holds; bins of equal width for regression.

    >>> from tacit.federation import Federation
    >>> label_counts(Federation.from_clients([([[0.0], [0.0]], [0, 1]), ([[0.0]], [1])])).tolist()
    [[1, 1], [0, 1]]
    """
    targets = federation.targets.cpu()
    if federation.classes is None:
        edges = torch.linspace(float(targets.min()), float(targets.max()), _BINS + 1)
        columns, groups = _BINS, torch.bucketize(targets.to(edges.dtype), edges[1:-1], right=True)
    else:
        columns, groups = federation.classes, targets
    flat = federation.batch().owners().cpu() * columns + groups
    counts = torch.bincount(flat, minlength=federation.clients * columns)
    table: npt.NDArray[np.int64] = counts.reshape(federation.clients, columns).numpy()
    return table


def _new_axes(federation: Federation) -> Axes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = 4.6 if federation.clients > _MOST_BARS else 1.5 + max(3, federation.clients) * 0.24
    figure = Figure(figsize=(7.6, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Axes = figure.subplots()
    return axes


def _draw_bars(federation: Federation, ax: Axes) -> None:
    counts = label_counts(federation)
    names = federation.class_names or tuple(str(label) for label in range(counts.shape[1]))
    starts = np.zeros(len(counts))
    for label, name in enumerate(names):
        ax.barh(
            np.arange(len(counts)),
            counts[:, label],
            left=starts,
            height=0.78,
            color=_colour(label, len(names)),
            edgecolor="white",
            linewidth=0.4,
            label=name,
        )
        starts += counts[:, label]
    _name_clients(federation, ax)
    ax.set_xlabel("records", color=_INK)
    ax.set_xlim(0, starts.max() * 1.02)
    ax.legend(
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        fontsize=8.5,
        handlelength=1.0,
        handleheight=1.0,
        ncols=1 + (len(names) - 1) // 24,
    )


def _draw_boxes(federation: Federation, ax: Axes) -> None:
    targets = federation.targets.cpu().numpy()
    parts = np.split(targets, federation.offsets[1:-1].numpy())
    low, first, median, third, high = (
        np.array([np.quantile(part, level) for part in parts]) for level in (0.05, 0.25, 0.5, 0.75, 0.95)
    )
    rows = np.arange(len(parts))
    ax.hlines(rows, low, high, color=_PALETTE[0], linewidth=1.2)
    ax.barh(rows, third - first, left=first, height=0.56, color=_PALETTE[0], alpha=0.85, linewidth=0)
    ax.vlines(median, rows - 0.28, rows + 0.28, color="white", linewidth=1.8)
    _name_clients(federation, ax)
    ax.xaxis.set_major_formatter("{x:,g}")
    ax.set_xlabel("target (median, middle half, 5% to 95%)", color=_INK)


def _draw_image(federation: Federation, ax: Axes) -> None:
    counts = label_counts(federation)
    shares = counts / counts.sum(axis=1, keepdims=True)
    columns = (-0.5, counts.shape[1] - 0.5)
    if federation.classes is None:
        low, high = float(federation.targets.min()), float(federation.targets.max())
        columns = (low, high) if low < high else (low - 0.5, high + 0.5)
    extent = (*columns, len(shares) - 0.5, -0.5)
    image = ax.imshow(shares, aspect="auto", cmap="Blues", vmin=0, extent=extent, interpolation="nearest")
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02)
    bar.set_label("share of the client's records", color=_INK)
    bar.ax.tick_params(colors=_INK, labelsize=8.5)
    bar.outline.set_visible(False)
    ax.set_ylabel("client", color=_INK)
    ax.tick_params(colors=_INK, labelsize=8.5)
    for spine in ax.spines.values():
        spine.set_color("#dddddd")
    if federation.classes is None:
        ax.xaxis.set_major_formatter("{x:,g}")
        ax.set_xlabel("target", color=_INK)
        return
    ax.set_xlabel("class", color=_INK)
    if federation.classes <= 20:
        names = federation.class_names or tuple(str(label) for label in range(federation.classes))
        tilt = 30 if max(map(len, names)) > 4 else 0
        ax.set_xticks(range(federation.classes), names, rotation=tilt, ha="right" if tilt else "center")


def _name_clients(federation: Federation, ax: Axes) -> None:
    names = federation.names or tuple(f"client {number}" for number in federation.ids.tolist())
    ax.set_yticks(range(federation.clients), [name if len(name) <= 24 else f"{name[:23]}…" for name in names])
    ax.set_ylim(federation.clients - 0.4, -0.6)
    ax.tick_params(colors=_INK, labelsize=8.5, length=0)
    ax.grid(axis="x", color="#dddddd", linewidth=0.8)
    ax.set_axisbelow(True)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _colour(label: int, classes: int) -> object:
    if classes <= len(_PALETTE):
        return _PALETTE[label]
    from matplotlib import colormaps

    return colormaps["turbo"](label / (classes - 1))
