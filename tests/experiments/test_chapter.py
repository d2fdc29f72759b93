"""`benchmarks/chapter.py` publishes finished reproductions; the two runs here are made up."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import chapter
from matplotlib.figure import Figure

from tacit.experiments.experiment import Claim, Findings, Picture, Scale
from tacit.experiments.outputs import Made, write_outputs
from tacit.experiments.registry import experiment_named

PROMISE = "At the epsilon that the paper claims, the true mode is no worse."


def finished(runs: Path, name: str, *, scale: Scale | None = None, picture: bool = False) -> None:
    """A finished run with three claims."""
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1], [1, 0])
    claims = (Claim(PROMISE, True, "1 against 2"), Claim("It is faster.", None, ""), Claim("It wins.", False, ""))
    pictures = (Picture("loss-curve", figure, "loss"),) if picture else ()
    findings = Findings([{"a": 1}], pictures, claims=claims, settings={"seeds": [0, 1, 2]})
    made = Made(experiment_named(name), scale or Scale(), seconds=3.0, processor_seconds=90.0)
    write_outputs(findings, made, runs / name)


def test_two_finished_runs_become_pages_and_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures come before claims, what a page replaces goes; the index counts verdicts and says what is old."""
    monkeypatch.setattr(chapter, "not_private", lambda: ["| paper |"])
    runs, results = tmp_path / "reproduced", tmp_path / "results"
    finished(runs, "norm-table2a", picture=True)
    finished(runs, "isrl-fig5")
    (results / "quick").mkdir(parents=True)
    (results / "full").mkdir()
    for old in ("quick/norm-table2a.md", "quick/norm-fig3.md", "full/norm-fig2.md"):
        (results / old).write_text("# Old\n\n## Claims\n\n- Borne out: It was so.\n")
    (results / "norm-fashion-mnist.md").write_text("# Partial\n")
    (results / "fed-spa-mnist.md").write_text("# Partial\n")

    chapter.main(runs, results)

    page = (results / "full" / "norm-table2a.md").read_text()
    assert page.index("![loss curve](norm-table2a-loss-curve.png)") < page.index("## Claims")
    assert (results / "full" / "norm-table2a-loss-curve.png").read_bytes().startswith(b"\x89PNG")
    assert not (results / "quick" / "norm-table2a.md").exists()
    assert not (results / "norm-fashion-mnist.md").exists()

    index = (results / "reproduce.md").read_text()
    assert "In full: 3 of" in index
    assert "3 borne out, 2 not borne out, 2 not decided" in index
    assert "Run only in quick versions (one or two seeds, fewer rounds): 1 of them" in index
    rows = {line.split("]")[0].removeprefix("| ["): line for line in index.splitlines() if line.startswith("| [")}
    assert rows["isrl-fig5"].endswith("| full | 3 | 1.5 | 1 | 1 | 1 | Borne out |")
    assert "| full, earlier version |" in rows["norm-fig2"]
    assert "| quick |" in rows["norm-fig3"]
    assert "[Fed-SPA on MNIST](fed-spa-mnist.md)" in index
    assert "Fashion-MNIST](norm-fashion" not in index
    assert "![loss curve](full/norm-table2a-loss-curve.png)" in index


def test_a_quick_run_is_not_published_as_a_full_one(tmp_path: Path) -> None:
    finished(tmp_path / "quick", "isrl-fig5", scale=Scale(quick=True))
    with pytest.raises(SystemExit, match="not a run in full"):
        chapter.main(tmp_path / "quick", tmp_path / "results")
    assert not (tmp_path / "results").exists()
