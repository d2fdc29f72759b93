"""The experiments themselves: small pieces of them, and what they leave behind."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.client.bounds import ClipEachCoordinate, ClipNorm
from tacit.client.local_steps import NoisyLocalSteps
from tacit.engine.objective import objective
from tacit.errors import DataError, RequestError
from tacit.experiments import (
    fed_spa_defaults,
    fed_spa_runs,
    isrl_claims,
    isrl_rates,
    isrl_rates_runs,
    isrl_rates_studies,
    isrl_runs,
    norm_quadratic,
    norm_quadratic_runs,
    norm_theorems_runs,
    registry,
    soteriafl_claims,
    soteriafl_runs,
)
from tacit.experiments.cells import Runner
from tacit.experiments.experiment import (
    PUBLISHED,
    SUMMED,
    TRUE,
    Claim,
    Experiment,
    Findings,
    Picture,
    Scale,
    Table,
)
from tacit.experiments.figures import panels
from tacit.experiments.outputs import Made, summary, write_outputs
from tacit.experiments.verdicts import against, at_most
from tacit.federation import Federation
from tacit.models.linear import softmax_regression
from tacit.models.quadratic import Quadratic
from tacit.models.registry import build_model


def findings() -> Findings:
    figure, axes = panels(1, 1)
    axes[0][0].plot([1, 2], [1, 2])
    return Findings(
        [{"x": 1, "y": None}, {"x": 2, "y": 0.5}],
        (Picture("line", figure, "a line"),),
        (Table("numbers", ("n", "word"), ((1.5, "one"), (None, "none"))),),
        (Claim("It holds.", True, "seen"), Claim("It does not.", False, "not seen")),
        ("We do it otherwise.",),
        {"seeds": [0, 1]},
        tuned=True,
    )


def toy(runner: Runner, scale: Scale) -> Findings:
    return findings()


def no_data(runner: Runner, scale: Scale) -> Findings:
    raise DataError("the file is not there; put it there")


def broken(runner: Runner, scale: Scale) -> Findings:
    raise ZeroDivisionError("division by zero")


TOY = Experiment("toy", "A toy", "papers/none", toy)


def test_everything_is_written(tmp_path: Path) -> None:
    files = write_outputs(findings(), Made(TOY, Scale(quick=True), 12.3, 20.0), tmp_path)
    assert pd.read_csv(files["results"]).shape == (2, 2)
    assert pd.read_parquet(files["parquet"]).shape == (2, 2)
    assert (tmp_path / "line.png").stat().st_size > 1000
    page = Path(files["page"]).read_text()
    assert "NOT borne out: It does not." in page
    assert "Borne out: It holds." in page
    assert "data:image/svg+xml" in page
    assert "is not included in any epsilon" in page


def test_the_summary_names_seeds_versions_time_and_departures() -> None:
    text = summary(findings(), Made(TOY, Scale(), 12.3, 20.0))
    for words in (
        "seeds: [0, 1]",
        "tacit 0",
        "torch",
        "12 s",
        "processor time: 20 s",
        "We do it otherwise.",
        "| 1.5 | one |",
        "not included",
    ):
        assert words in text


def test_names_are_unique_and_unknown_ones_refused() -> None:
    assert {
        "norm-fig2",
        "soteriafl-fig3",
        "isrl-fig5",
        "isrl-fig6",
        "norm-table2a",
    } <= registry.EXPERIMENTS.keys()
    with pytest.raises(RequestError, match="norm-fig2"):
        registry.experiment_named("norm-fig22")


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {"empty": no_data, "broken": broken}
    known = {name: Experiment(name, "No result", "papers/none", run) for name, run in others.items()}
    monkeypatch.setattr(registry, "EXPERIMENTS", {"toy": TOY, **known})
    call = CliRunner()
    listed = json.loads(call.invoke(app, ["reproduce", "--list", "--json"]).stdout)
    assert [one["name"] for one in listed] == ["toy", "empty", "broken"]
    assert "toy" in call.invoke(app, ["reproduce", "--list"]).stdout
    out = str(tmp_path / "out")
    every = call.invoke(app, ["reproduce", "--all", "--out", out, "--json"])
    assert every.exit_code == 1, "one failed"
    done = json.loads(every.stdout)
    assert done[0]["claims"][1] == {
        "claim": "It does not.",
        "held": False,
        "verdict": "NOT borne out",
        "evidence": "not seen",
    }
    assert done[1] == {"experiment": "empty", "skipped": "the file is not there; put it there"}
    assert done[2] == {"experiment": "broken", "failed": "ZeroDivisionError: division by zero"}
    overview = (tmp_path / "out" / "index.html").read_text()
    assert '<a href="toy/index.html">toy</a>' in overview
    assert "Experiments: 1. Claims: Borne out 1, NOT borne out 1." in overview
    assert "empty: the file is not there; put it there" in overview
    assert "broken: ZeroDivisionError: division by zero" in overview
    rows = json.loads(call.invoke(app, ["reproduce", "--status", "--out", out, "--json"]).stdout)
    assert [row["run"] for row in rows[1:]] == ["no", "no"]
    assert (rows[0]["seeds"], rows[0]["Borne out"], rows[0]["NOT borne out"]) == (2, 1, 1)
    assert "1 of 3 experiments have been run" in call.invoke(app, ["reproduce", "--status", "--out", out]).stdout
    call.invoke(app, ["reproduce", "toy", "--quick", "--out", out])
    assert "mode: quick" in (tmp_path / "out" / "quick" / "toy" / "index.html").read_text()
    assert "mode: full" in (tmp_path / "out" / "toy" / "index.html").read_text(), "neither overwrites the other"
    assert "NOT borne out" in call.invoke(app, ["reproduce", "toy", "--out", out]).stdout
    assert isinstance(call.invoke(app, ["reproduce", "empty", "--out", out]).exception, DataError)
    assert isinstance(call.invoke(app, ["reproduce"]).exception, RequestError)
    assert isinstance(call.invoke(app, ["reproduce", "toy", "--all"]).exception, RequestError)


def test_seeds_are_those_that_were_asked_for() -> None:
    assert Scale(quick=True).trials(1, 3) == [0]
    assert Scale().trials(1, 3) == [0, 1, 2]
    assert Scale(seeds=2).trials(1, 3) == [0, 1]
    with pytest.raises(RequestError, match="seeds"):
        Scale(seeds=0).trials(1, 3)


@pytest.mark.parametrize(("start", "share"), [("I1", 1.0), ("I2", 0.2)])
def test_the_quadratic_starts_as_far_from_its_minimum_as_the_paper_says(start: str, share: float) -> None:
    federation, minimum = norm_quadratic_runs._problem(start, 0)
    _, slope = objective(Quadratic(200, 20), minimum, federation)
    assert float(slope.abs().max()) < 1e-4
    # Coordinates of the way are uniform on (0, share): mean square share^2 / 3.
    assert float(minimum.square().mean()) == pytest.approx(share**2 / 3, rel=0.15)
    assert float(-minimum.min()) > 0
    assert float((-minimum).max()) <= share


def test_normalising_and_clipping_get_the_same_noise() -> None:
    settings = {"start": "I1", "clip_norm": 0.01, "step": 0.001, "rounds": 2, "seed": 1}
    runs = [norm_quadratic_runs.run({**settings, "bound": bound}, None) for bound in norm_quadratic.NAMES]
    # No update is shorter than this C, where both bounds are the same map.
    assert runs[0]["history"]["train_loss"] == pytest.approx(runs[1]["history"]["train_loss"], rel=1e-6)
    assert runs[0]["epsilon"] <= 5.0


def test_paths_begin_at_the_start() -> None:
    settings = {"start": "I2", "clip_norm": 50.0, "step": 0.001, "rounds": 2, "seed": 0, "bound": "clip"}
    points = torch.tensor(norm_quadratic_runs.walk(settings, None)["history"]["seen"])
    assert points.shape == (3, 200)
    torch.testing.assert_close(points[0], -norm_quadratic_runs._problem("I2", 0)[1])


def test_published_grids_keep_the_papers_settings_and_true_ones_the_labels() -> None:
    plans = {1.0: {"rounds": 100, "clip_norm": 2.0}}
    made = soteriafl_runs.grids(soteriafl_runs.A9A, (1.0,), Scale(), plans)
    theirs = made[1.0, PUBLISHED, "soteriafl-sgd"]
    assert {point["clip_norm"] for point in theirs} == {0.5}
    assert [point["step"] for point in theirs] == list(soteriafl_runs.STEPS)
    assert {point["rounds"] for point in theirs} == {25}
    ours = made[1.0, TRUE, "soteriafl-sgd"]
    assert {(point["rounds"], point["clip_norm"]) for point in ours} == {(100, 2.0)}, "as the planner says"
    assert [point["step"] for point in ours] == list(soteriafl_runs.STEPS)
    assert soteriafl_runs._batch(soteriafl_runs.A9A, "soteriafl-svrg", 1.0) == ("poisson", 54), "Corollary 2"
    assert soteriafl_runs._batch(soteriafl_runs.A9A, "soteriafl-saga", 1.0) == ("poisson", 659), "Corollary 3"
    quick = soteriafl_runs.grids(soteriafl_runs.A9A, (1.0,), Scale(quick=True), plans)
    assert sum(map(len, quick.values())) < sum(map(len, made.values())) / 3


def test_isrl_grids_have_the_papers_four_methods_and_more() -> None:
    plans = {label: {"rounds": 12, "clip_norm": 1e4} for label in isrl_runs.INSURANCE.full.labels}
    made = isrl_runs.grids(isrl_runs.INSURANCE, 10, 5, Scale(), plans)
    assert {(mode, method) for _, mode, method in made} == set(isrl_runs.SERIES)
    assert len(made[1.0, PUBLISHED, isrl_runs.MB]) == 40
    assert len(made[3.0, isrl_runs.NO_PRIVACY, isrl_runs.LOCAL]) == 10
    assert {point["rounds"] for point in made[1.0, TRUE, isrl_runs.SHUFFLED]} == {12}
    for mode, method in ((PUBLISHED, isrl_runs.MB), (TRUE, isrl_runs.ONE_PASS)):
        assert {point["rounds"] for point in made[1.0, mode, method]} == {35}


@pytest.mark.parametrize("task", isrl_runs.TASKS.values())
def test_quick_steps_are_some_of_the_papers(task: isrl_runs.IsrlTask) -> None:
    for method in (isrl_runs.MB, isrl_runs.LOCAL):
        full, quick = (isrl_runs._steps(task, method, Scale(quick=q)) for q in (False, True))
        low, high = task.log_steps[method]
        assert len(full) == task.number_of_steps
        assert (full[0], full[-1]) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-3)
        assert set(quick) < set(full)


@pytest.mark.parametrize("algorithm", isrl_rates_runs.SERVERS)
def test_a_measured_rate_stays_below_its_bound(algorithm: str) -> None:
    base = {"records": 96, "clients": 4, "epsilon": 2.0, "dim": 6, "rounds": 8, "seed": 0, "algorithm": algorithm}
    strongly = algorithm.endswith("multi-stage")
    found = isrl_rates_runs.run(
        {**base, "signal": 0.3, "curvature": 1.0, "heterogeneity": 0.5, "strongly_convex": strongly}, None
    )
    excess = found["history"]["train_loss"][-1] - found["least"]
    assert 0 <= excess <= found["upper"]
    if algorithm.endswith("no noise"):
        assert found["epsilon"] is None
    else:
        assert found["epsilon"] <= 2.0
    rows = [
        {"signal": a, "curvature": 0.0, "excess_risk": b, "upper": 3.0}
        for a, b in ((0.1, 1.0), (0.1, 2.0), (0.5, 9.0), (0.5, 1.0))
    ]
    assert isrl_rates.worst(rows) == ([9.0, 1.0], 3.0)


@pytest.mark.parametrize("bound", ["clip", "normalise"])
def test_theorem_4_bounds_what_it_is_measured_against(bound: str) -> None:
    asked = {"like": True, "bound": bound, "rounds": 6, "epsilon": 5.0, "seed": 0}
    found = norm_theorems_runs.run(asked, None)
    assert 0 < found["above"] <= found["left"] <= found["right"]
    problem = norm_theorems_runs.problem_of(True, 0)
    assert float(problem.losses(problem.minimum).max()) < 1e-8, "like clients share a minimum"
    assert found["epsilon"] <= 5.0


def test_silos_of_different_sizes_have_the_mean_that_was_asked_for() -> None:
    silos = isrl_rates_runs.federation_of(6, 90, 3, 0.5, 0.2, 2.0)
    assert silos.sizes.tolist() == [60, 120] * 3
    # Theorem H.1: 1/n becomes sqrt(mean 1/n_i^2).
    stated = math.sqrt((60**-2 + 120**-2) / 2) * 90
    assert isrl_rates_studies.spread(2.0) == pytest.approx(stated)


def test_references_without_privacy_have_the_rounds_of_what_they_are_compared_with() -> None:
    def runs(error: float) -> list[dict[str, Any]]:
        history = {"test_metric": [1 - error]}
        return [{"settings": {"data": "mnist"}, "history": history, "scale": 1.0, "epsilon": 1.0}]

    mb, local = isrl_runs.MB, isrl_runs.LOCAL
    found = {
        (12.0, PUBLISHED, mb): runs(0.1),
        (12.0, isrl_runs.NO_PRIVACY, local): runs(0.2),
        (12.0, TRUE, mb): runs(0.15),
        (12.0, isrl_runs.AS_LONG, local): runs(0.12),
        # Below the epsilon that the paper names, nothing is claimed.
        (6.0, PUBLISHED, mb): runs(0.9),
        (6.0, isrl_runs.NO_PRIVACY, local): runs(0.2),
    }
    claims = isrl_claims.claims_of("mnist", {(25, 25): found}, in_most=False)
    as_published, true = (claim for claim in claims if "without privacy" in claim.text)
    assert as_published.held is True
    assert true.held is False, "in as many rounds the reference is better"
    # "In line with" allows a tenth.
    insurance = {(2.0, mode, method): runs for (_, mode, method), runs in found.items()}
    insurance[2.0, PUBLISHED, mb] = runs(0.21)
    (close, _) = (
        claim
        for claim in isrl_claims.claims_of("insurance", {(10, 10): insurance}, in_most=False)
        if "without privacy" in claim.text
    )
    assert close.held is True


def test_runs_that_tell_nothing_bear_nothing_out() -> None:
    assert at_most([([0.1], [0.1]), ([0.2], [0.2])]) is None
    assert at_most([]) is None
    assert at_most([([0.1], [0.1]), ([0.1], [0.2])]) is True
    assert at_most([([0.1], [0.2]), ([0.3], [0.2])]) is False
    inf = math.inf
    assert at_most([([inf, 1.0], [2.0, 2.0])]) is False, "who diverges is not at most anything"
    assert at_most([([2.0, 2.0], [inf, 1.0])]) is True
    assert against([inf, 1.0], [1.0, inf]) == "inf against inf"
    assert against([-inf, 0.8], [0.7, -inf]) == "-inf against -inf"


def test_what_may_be_chance_decides_nothing() -> None:
    wide, narrow = ([1.0, 9.0, 2.0], [2.0, 4.0, 3.0]), ([2.0, 2.1, 1.9], [1.0, 1.0, 1.1])
    assert at_most([wide]) is None
    assert at_most([wide, narrow]) is False
    # Seed by seed: the splits differ more from each other than the methods do.
    paired = ([1.1, 5.1, 9.2], [1.0, 5.0, 9.0])
    assert at_most([paired]) is False
    # Of many looks, one may be out of its own interval by chance.
    assert at_most([paired, *(([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]),) * 30]) is None
    assert Claim("It is open.", None, "").verdict == "Not decided"


def test_equal_bits_are_not_compared_at_a_round_that_was_not_evaluated() -> None:
    history = {"round": [0, 10, 20], "uplink_bits_per_client": [0, 1000, 2000], "loss": [9.0, 4.0, 1.0]}
    assert soteriafl_claims.after_bits([{"history": history}], 1090, "loss") == [4.0]
    assert soteriafl_claims.after_bits([{"history": history}], 90, "loss") is None, "not one message was sent"
    # 300 bits pay for three rounds; the start would be unfair.
    assert soteriafl_claims.after_bits([{"history": history}], 300, "loss") is None
    # A twentieth of the coordinates, rounded down: 200 short messages fall just short of ten long ones.
    assert soteriafl_claims.after_bits([{"history": history}], 999.5, "loss") == [4.0]
    assert soteriafl_claims.after_bits([{"history": history}], 998, "loss") is None


def small_federation(clients: int, shape: tuple[int, ...], classes: int) -> Federation:
    generator = torch.Generator().manual_seed(0)
    parts = [(torch.randn(20, *shape, generator=generator), torch.arange(20) % classes) for _ in range(clients)]
    made = Federation.from_clients(parts, classes=classes)
    return replace(made, test_features=made.features[:50], test_targets=made.targets[:50])


def test_sums_keep_the_label_with_a_share_of_the_noise_in_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    images = small_federation(100, (1, 28, 28), 10)
    monkeypatch.setattr(fed_spa_defaults, "federation_of", lambda *_: images)
    base = {"data": "mnist", "algorithm": "noisy-mb-sgd, softmax", "label": 1.0, "rounds": 2, "evaluations": 1}
    alone, summed = (
        fed_spa_defaults.run({**base, "mode": mode, "seed": 0}, None) for mode in fed_spa_runs.AT_A_TRUE_EPSILON
    )
    assert 0.99 < alone["epsilon"] <= 1.0
    assert 0.99 < summed["epsilon"] <= 1.0
    assert summed["beside"]["server"] > 5, "a message alone has a seventieth of the variance"
    table = small_federation(10, (5,), 2)
    monkeypatch.setattr(soteriafl_runs, "_federation", lambda *_: table)
    for name in soteriafl_runs.ALGORITHMS:
        asked = {"data": "a9a", "label": 1.0, "rounds": 3, "clip_norm": 1.0, "step": 0.1, "evaluations": 3}
        found = soteriafl_runs.run({**asked, "algorithm": name, "mode": SUMMED, "seed": 0}, None)
        assert found["epsilon"] <= 1.0 < found["beside"]["server"]
        sent = found["history"]["uplink_bits_per_client"][-1] / 3
        assert 0 < found["payload_bits"] < sent, "the envelope is not payload"


def test_as_published_clips_every_coordinate_to_an_unprotected_median() -> None:
    images = small_federation(5, (1, 28, 28), 10)
    model = build_model("mnist-cnn", images)
    bound = fed_spa_runs._bound({"mode": PUBLISHED, "seed": 0}, model, images)
    assert isinstance(bound, ClipEachCoordinate)
    assert 0 < bound.limit < 0.1
    assert fed_spa_runs._bound({"mode": TRUE}, model, images) == ClipNorm(1.0)


def test_bits_are_counted_on_the_wire_and_by_payload() -> None:
    history = {
        "round": [0, 1, 2, 3, 4],
        "uplink_bits_per_client": [0, 50, 100, 150, 200],
        "loss": [9, 4, 3, 2, 1],
    }
    result = {"history": history, "payload_bits": 20.0}
    assert soteriafl_claims.after_bits([result], 60, "loss") == [4.0]
    assert soteriafl_claims.after_bits([result], 60, "loss", soteriafl_claims.payload) == [2.0]
    found = {(1.0, PUBLISHED, "cdp-sgd"): [result], (1.0, TRUE, "cdp-sgd"): [{"error": "diverged"}]}
    assert soteriafl_claims.equal_bits(found, 1.0) == 200
    assert soteriafl_claims.equal_bits(found, 1.0, soteriafl_claims.payload) == 80


@pytest.mark.parametrize("ratio", fed_spa_runs.RATIOS)
def test_fed_spa_keeps_the_share_of_coordinates_that_it_says(ratio: float) -> None:
    settings = {"data": "mnist", "algorithm": "fed-spa", "local_steps": 30, "local_step": 0.1}
    model = softmax_regression(features=99, classes=10)
    work = fed_spa_runs._algorithm({**settings, "ratio": ratio}, model, ClipNorm(1.0)).work
    assert isinstance(work, NoisyLocalSteps)
    # 1.0 is all of them, not one of them.
    assert work.bounded == pytest.approx(ratio * model.dim, abs=1)
    assert work.steps * work.step_size == pytest.approx(30 * 0.1)
