"""Every kind of experiment makes its page from its runs, also where some diverged; the runs here are made up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import DpEvent
from matplotlib.figure import Figure

from tacit.engine.workers import Result
from tacit.experiments.cells import Cell
from tacit.experiments.experiment import PUBLISHED, Findings, Scale
from tacit.experiments.outputs import Made, summary, write_outputs
from tacit.experiments.registry import experiment_named
from tacit.experiments.simulated import KEPT
from tacit.privacy import calibrate_noise
from tacit.privacy.events import gaussian, repeated, to_dict

MAY_DIVERGE = ("soteriafl-fig1", "soteriafl-fig2", "isrl-fig5", "norm-table2a", "fed-spa-table1", "fed-spa-fig1")
CANNOT_DIVERGE = ("norm-fig1", "norm-fig2", "norm-theorems", "soteriafl-tables", "isrl-fig3-table", "isrl-rates")
"""Bounded steps on quadratics, in a ball, or no runs at all."""


@lru_cache
def run_of(epsilon: float) -> DpEvent:
    """Ten releases with the least noise for this epsilon."""
    noise = calibrate_noise(lambda z: repeated(gaussian(z), 10), epsilon=epsilon, delta=1e-5)
    return repeated(gaussian(noise), 10)


class MadeUp:
    """Stands in for a runner; runs with some seed may diverge."""

    data_dir = None

    def __init__(self, diverges_with: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())) -> None:
        self.diverges_with = diverges_with

    def __call__(self, cells: Sequence[Cell]) -> list[Result]:
        return [{**self._result(cell), "settings": dict(cell.settings)} for cell in cells]

    def _result(self, cell: Cell) -> dict[str, Any]:
        settings = cell.settings
        facts = {"batch": 7.0, "payload_bits": 80.0, "scale": 1.0, "least": 0.0, "upper": 2.0, "right": 2.0}
        facts |= {"above": 0.5, "left": 1.0}
        # With another seed in every mode, so that no seed is left in which nothing diverged.
        published = settings.get("mode") == PUBLISHED
        if "rehearsal" not in settings and settings.get("seed") in self.diverges_with[published]:
            return {**facts, "error": "it diverged"}
        rounds = settings.get("rounds") or 10
        draw = random.Random(cell.digest)
        history: dict[str, list[Any]] = {name: [draw.random() for _ in range(rounds + 1)] for name in KEPT}
        history["round"] = list(range(rounds + 1))
        history["uplink_bits_per_client"] = [100.0 * t for t in range(rounds + 1)]
        history["seen"] = history["test_metric"]
        if cell.work.__name__ == "walk":
            history["seen"] = [[draw.random() for _ in range(4)] for _ in range(rounds + 1)]
        label = settings.get("label") or settings.get("epsilon") or 5.0
        epsilon = 43.21 if published else settings.get("run_epsilon", label)
        return {
            **facts,
            "epsilon": epsilon,
            "events": [{"event": to_dict(run_of(epsilon)), "delta": 1e-5}],
            "beside": {},
            "adjacency": "replace-one",
            "step": 0.1,
            "noise_multiplier": 1.0,
            "noise_std": 0.1,
            "seconds": 0.5,
            "rounds": rounds,
            "uplink_bits_per_client": 800.0,
            "history": history,
        }


def found(name: str, runner: MadeUp, scale: Scale) -> Findings:
    return experiment_named(name).run(runner, scale)  # type: ignore[arg-type]  # whatever runs cells


@pytest.mark.parametrize("name", MAY_DIVERGE + CANNOT_DIVERGE)
def test_a_page_comes_of_every_experiment(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Figure.savefig

    def once(figure: Figure, place: Any, **how: Any) -> None:
        """The picture of the page; that of a file is the same one, of another kind."""
        drawn(figure, place, **how) if how.get("format") else place.write_bytes(b"drawn already")

    monkeypatch.setattr(Figure, "savefig", once)
    findings = found(name, MadeUp(), Scale(quick=True))
    assert findings.claims
    assert findings.departures
    files = write_outputs(findings, Made(experiment_named(name), Scale(quick=True), 1.0, 2.0), tmp_path)
    page = Path(files["page"]).read_text()
    assert page.count("data:image/svg+xml") == len(findings.pictures)
    for path in files.values():
        assert Path(path).stat().st_size > 0


@pytest.mark.parametrize("name", MAY_DIVERGE)
def test_runs_that_diverge_do_not_take_the_page_with_them(name: str) -> None:
    findings = found(name, MadeUp(diverges_with=((1,), (2,))), Scale(quick=True, seeds=3))
    assert findings.claims[0].text in summary(findings, Made(experiment_named(name), Scale(), 1.0, 2.0))


@pytest.mark.parametrize("name", ["soteriafl-fig1", "isrl-fig5", "norm-table2a"])
def test_charged_choices_keep_the_label(name: str) -> None:
    # Runs of search k of seed 0 have the seeds 10000 and up.
    findings = found(
        name, MadeUp(diverges_with=((10_000, 10_002), ())), Scale(quick=True, seeds=2, charge_tuning=True)
    )
    costs = findings.tables[1]
    assert findings.charged
    assert len(costs.rows) > 0
    for row in costs.rows:
        cells = dict(zip(costs.columns, row, strict=True))
        label = cells.get("label", cells.get("epsilon"))
        assert (
            cells["epsilon of one run"] < cells["epsilon of the choice"] <= label < cells["epsilon of all runs"]
        )
    epsilons = {row["epsilon"] for row in findings.rows if row.get("run_epsilon") is not None}
    assert epsilons <= {cells for row in costs.rows for cells in row}, "the file tells what the choice is worth"


def test_the_real_epsilon_stands_beside_the_label_in_the_figure() -> None:
    (curves,) = found("soteriafl-fig1", MadeUp(), Scale(quick=True)).pictures
    legend = [text.get_text() for text in curves.figure.legends[0].get_texts()]
    assert "cdp-sgd, as published, epsilon 43.3" in legend
    assert "cdp-sgd, true, epsilon 1" in legend
    for name in ("isrl-fig6", "fed-spa-fig1"):
        (picture,) = found(name, MadeUp(), Scale(quick=True)).pictures
        ticks = [label.get_text().split("\n") for label in picture.figure.axes[0].get_xticklabels()]
        assert all(len(lines) == 3 and set(lines[1:]) == {"44"} for lines in ticks), "a line for each method"


def test_on_the_network_svrg_takes_the_step_of_sgd_and_another_stands_for_ldp_svrg() -> None:
    findings = found("soteriafl-fig2", MadeUp(), Scale(seeds=1))
    steps = {(row["mode"], row["algorithm"]): row["step"] for row in findings.rows}
    for mode in ("true", "summed"):
        assert steps[mode, "soteriafl-svrg"] == steps[mode, "soteriafl-sgd"]
        assert (mode, "ldp-svrg") not in steps
    assert "no run at the label" not in findings.claims[0].evidence
    assert "label 1, ldp-svrg" in findings.claims[0].evidence


@pytest.mark.parametrize("name", ["norm-fig1", "norm-fig2", "isrl-fig5", "fed-spa-fig1", "soteriafl-fig1"])
def test_every_axis_has_a_label(name: str) -> None:
    """Panels of one row share the label of the first."""
    for picture in found(name, MadeUp(), Scale(quick=True)).pictures:
        for ax in picture.figure.axes:
            assert ax.get_xlabel(), (name, picture.name)
            first = ax.get_subplotspec().is_first_col()
            assert ax.get_ylabel() or not first, (name, picture.name)


def test_soteriafl_shows_utility_loss_and_accuracy_against_rounds_and_bits() -> None:
    pictures = found("soteriafl-fig3", MadeUp(), Scale(quick=True)).pictures
    assert [picture.name for picture in pictures] == [f"curves-label-{label}" for label in (1, 5, 10)]
    for picture in pictures:
        axes = picture.figure.axes
        assert [ax.get_ylabel() for ax in axes[::2]] == ["utility", "training loss", "test accuracy"]
        assert all(len(ax.lines) == 3 * 7 for ax in axes), "seven in each of three modes"
