"""The label plot: what it draws, and that it leaves pyplot alone."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from tacit.data import load
from tacit.federation import Federation
from tacit.report.labels import label_counts, plot_labels


def regression(clients: int, spread: float = 1.0) -> Federation:
    targets = torch.linspace(0, spread, 4 * clients)
    sizes = torch.full((clients,), 4)
    return Federation(torch.zeros(4 * clients, 1), targets, sizes, torch.arange(clients))


def test_bars_are_the_counts() -> None:
    federation = load("digits", clients=6, partition="dirichlet:0.3")
    axes = plot_labels(federation)
    drawn = np.array([[bar.get_width() for bar in container] for container in axes.containers]).T
    np.testing.assert_array_equal(drawn, label_counts(federation))
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == list("0123456789")
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [f"client {i}" for i in range(6)]


def test_counts_cover_all_records() -> None:
    federation = load("diabetes", clients=4)
    counts = label_counts(federation)
    np.testing.assert_array_equal(counts.sum(axis=1), federation.sizes.numpy())
    assert counts.shape == (4, 40)


def test_boxes_for_regression() -> None:
    axes = plot_labels(regression(5, spread=19.0))
    assert axes.containers[0][0].get_x() == pytest.approx(0.75)
    assert axes.containers[0][0].get_width() == pytest.approx(1.5)


@pytest.mark.parametrize("spread", [1.0, 0.0])
def test_an_image_for_many_clients(spread: float) -> None:
    axes = plot_labels(regression(61, spread))
    np.testing.assert_allclose(np.asarray(axes.images[0].get_array()).sum(axis=1), 1)
    axes.figure.canvas.draw()
    axes = plot_labels(load("digits", clients=70))
    assert np.asarray(axes.images[0].get_array()).shape == (70, 10)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list("0123456789")


def test_more_classes_than_colours() -> None:
    targets = torch.arange(30)
    federation = Federation(torch.zeros(30, 1), targets, torch.tensor([30]), torch.arange(1), classes=30)
    colours = {bar[0].get_facecolor() for bar in plot_labels(federation).containers}
    assert len(colours) == 30


def test_draws_into_given_axes() -> None:
    axes = Figure().subplots()
    assert plot_labels(regression(3), axes) is axes


def test_pyplot_is_left_alone() -> None:
    plot_labels(regression(3)).figure.canvas.draw()
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_long_names_are_cut() -> None:
    federation = Federation.from_clients([([[0.0]], [0.5])], names=["a" * 40])
    assert plot_labels(federation).get_yticklabels()[0].get_text() == "a" * 23 + "…"
