"""Audits play what clients release beside their messages: correct releases pass, sabotage is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.engine.audited import ALGORITHMS, promises
from torch import Tensor

from tacit.algorithms.secure_sum import SecureSum
from tacit.data.schema import Column, Predicted, Schema
from tacit.engine.audit import audit_recipe
from tacit.engine.audit.joint import JointStage
from tacit.engine.audit.measured import measured
from tacit.engine.audit.promises import Promise
from tacit.engine.audit.release_stage import Played, ReleaseStage
from tacit.engine.audit.releases import (
    PlayedCorrection,
    PlayedEvaluation,
    PlayedMiddle,
    PlayedRanges,
    PlayedSizes,
)
from tacit.engine.audit.side import SideStage
from tacit.engine.audit.stage import AuditStage, Tactic
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.noise.randomness import Randomness
from tacit.privacy import Adjacency, Adversary, Target
from tacit.privacy.accountant import accounting
from tacit.side.correction import Moments
from tacit.side.noisy_total import NoisyTotal
from tacit.side.ranges import Limits, RangeSearch
from tacit.side.release import NoisyMeans
from tacit.side.scoring import Groups, Scoring
from tacit.side.sizes import SizesRelease, sizes_release

TARGET = Target(0.8, 1e-5)
MOMENTS = Moments(low=-0.3)
SUM = SecureSum(9, 7, 3)
LIMITS = (Limits("dose", 0, 1000), Limits("load", 1e-3, 1e6, logarithmic=True))
TWO_GROUPS = Groups(2, (40.0,), ("young", "old"))
SCORINGS = {
    "two classes": Scoring(2, 4.0),
    "four classes, groups": Scoring(4, 4.0, groups=TWO_GROUPS),
    "regression": Scoring(None, 1.0, groups=TWO_GROUPS),
}


def stage_of(played: Played) -> ReleaseStage:
    return ReleaseStage.of(played, 2, Randomness(3), 3)


def evaluation(scoring: Scoring, target: Target = TARGET) -> ReleaseStage:
    return stage_of(PlayedEvaluation(target, scoring))


def ranges(target: Target = TARGET) -> ReleaseStage:
    return stage_of(PlayedRanges(target, LIMITS))


def sizes(target: Target = TARGET) -> ReleaseStage:
    blank = torch.zeros(3000, 4)
    held = Federation(blank, blank[:, 0], torch.tensor([3000]), torch.zeros(1).long())
    release = sizes_release(held, target=target, seed=3)
    assert release is not None
    assert release.columns == 4
    return stage_of(PlayedSizes(target, release))


def middle(target: Target = TARGET) -> ReleaseStage:
    return stage_of(PlayedMiddle(target, 16))


def correction(target: Target = TARGET) -> ReleaseStage:
    return stage_of(PlayedCorrection(target, MOMENTS))


def correction_sum(target: Target = TARGET) -> ReleaseStage:
    return stage_of(PlayedCorrection(target, MOMENTS, trust=SUM))


def evaluation_sum(target: Target = TARGET) -> ReleaseStage:
    return stage_of(PlayedEvaluation(target, SCORINGS["two classes"], trust=SUM))


def together(*sides: SideStage) -> Promise:
    """Minibatch gradients with these releases beside them."""
    return promises(ALGORITHMS["sgd"], sides=sides)[0]


STAGES: dict[str, Callable[[Target], SideStage]] = {
    **{name: lambda target, scoring=scoring: evaluation(scoring, target) for name, scoring in SCORINGS.items()},
    "ranges": ranges,
    "sizes": sizes,
    "middle": middle,
    "correction": correction,
    "correction in a sum": correction_sum,
    "evaluation in a sum": evaluation_sum,
    "correction in a sum, all others help": lambda target: correction_sum(target).shown,
    "evaluation in a sum, all others help": lambda target: evaluation_sum(target).shown,
}


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("name", STAGES)
def test_correct_releases_pass_and_reach_far(name: str, adjacency: Adjacency) -> None:
    """The canary moves them by most of what is charged: by all of it where that is possible."""
    stage = STAGES[name](replace(TARGET, adjacency=adjacency))
    checks = measured(stage, 0)
    assert [check for check in checks if check.violated] == []
    assert checks[0].measured > (0.95 if name in ("ranges", "middle") else 0.7) * checks[0].promised


@pytest.mark.parametrize(
    ("name", "squares"),
    [
        # Accuracy, calibration and loss by 1 each, one cell of the histogram for another.
        ("two classes", 1 + 1 + 1 + 2),
        # In two groups each is 1/2 against nothing, twice (3/8 once, for the calibration of a right guess).
        # Two more parts are one cell for another.
        ("four classes, groups", 1 / 2 + (1 / 4 + 9 / 64) + 1 / 2 + 2 + 2 + 2),
        ("regression", 1 / 2 + 2),
    ],
)
def test_no_two_records_are_further_apart_than_the_canary_and_its_neighbour(name: str, squares: float) -> None:
    """By hand, from the parts of the vector."""
    stage = evaluation(SCORINGS[name])
    one, other = stage.signals(np.array([1.0, -1.0]), 0, Tactic())[:, 0]
    assert float(((one - other) ** 2).sum()) == pytest.approx(squares)


def test_without_its_neighbour_the_canary_moves_an_evaluation_by_all_that_is_charged() -> None:
    stage = evaluation(SCORINGS["two classes"], replace(TARGET, adjacency=Adjacency.ADD_REMOVE))
    one, none = stage.signals(np.array([1.0, 0.0]), 0, Tactic())[:, 0]
    assert np.linalg.norm(one - none) == pytest.approx(stage.bound)


@pytest.mark.parametrize(("pull", "squares"), [(-1.0, 3 * 4), (0.0, 5)])
def test_hardly_two_records_correct_a_model_more_differently_than_the_canary_and_its_neighbour(
    pull: float, squares: float
) -> None:
    """Three of five numbers turn around, and others could move 1% more; against no record, all five move by 1."""
    moved, still = correction().signals(np.array([1.0, pull]), 0, Tactic())[:, 0]
    assert float(((moved - still) ** 2).sum()) == pytest.approx(squares)
    grid = torch.linspace(-3, 3, 25, dtype=torch.float64)
    every = MOMENTS.of(*torch.cartesian_prod(grid, grid).T)
    most = torch.cdist(every, every).max() if pull else every.norm(dim=1).max()
    assert math.sqrt(squares) * (1 - 1e-12) <= float(most) <= math.sqrt(squares) * (1.01 if pull else 1 + 1e-12)


# Sabotage


def _halve(patch: pytest.MonkeyPatch, word: str) -> None:
    """Half of the noise in releases about this question."""
    whole = NoisyMeans.messages

    def half(self: NoisyMeans, sums: Tensor, release: int = 0) -> Tensor:
        noise = whole(self, sums, release) - sums
        return sums + (noise / 2 if self.question.startswith(word) else noise)

    patch.setattr(NoisyMeans, "messages", half)


def _silence(patch: pytest.MonkeyPatch, word: str) -> None:
    whole = NoisyMeans.messages
    patch.setattr(
        NoisyMeans,
        "messages",
        lambda self, s, r=0: s.clone() if self.question.startswith(word) else whole(self, s, r),
    )


def _same_noise(patch: pytest.MonkeyPatch, word: str) -> None:
    """The noise of the first step in all steps."""
    whole = NoisyMeans.messages
    patch.setattr(NoisyMeans, "messages", lambda self, s, r=0: whole(self, s, 0))


def _count_twice(patch: pytest.MonkeyPatch, word: str) -> None:
    """The loss also counts where accuracy does, and nobody pays for it."""
    whole = Scoring.vectors

    def twice(self: Scoring, *args: Any) -> Tensor:
        made = whole(self, *args)
        made[:, self.parts["accuracy"]] -= 2 * made[:, self.parts["loss"]]
        return made

    patch.setattr(Scoring, "vectors", twice)


def _leave_out_of_the_bound(patch: pytest.MonkeyPatch, word: str) -> None:
    """The histogram is released, and the bound forgets it."""
    whole = Scoring.bound.fget  # type: ignore[attr-defined]
    patch.setattr(Scoring, "bound", property(lambda self: math.sqrt(whole(self) ** 2 - 0.95)))


def _no_clip(patch: pytest.MonkeyPatch, word: str) -> None:
    """Losses below zero and above the bound count in full."""
    clamp = Tensor.clamp
    patch.setattr(Tensor, "clamp", lambda self, *a, **k: self / 1e2 if a == (0, 4.0) else clamp(self, *a, **k))


def _beyond_the_limits(patch: pytest.MonkeyPatch, word: str) -> None:
    """A number counts by how far it lies beyond the limits."""
    whole = RangeSearch.contributions

    def longer(self: RangeSearch, numbers: Any) -> Any:
        return whole(self, numbers) * np.where(np.nan_to_num(np.abs(numbers[:, :1])) > 1e4, 2.0, 1.0)

    patch.setattr(RangeSearch, "contributions", longer)


def _sizes_beyond(patch: pytest.MonkeyPatch, word: str) -> None:
    """A size counts by how far it lies beyond what is measured."""
    whole = SizesRelease.contributions
    patch.setattr(SizesRelease, "contributions", lambda self, rows: whole(self, rows) * (1 + (rows[:, :1] > 1e5)))


def _predictions_beyond(patch: pytest.MonkeyPatch, word: str) -> None:
    """A prediction counts by how far it lies beyond the range."""
    whole = Moments.of
    patch.setattr(Moments, "of", lambda self, y, p: whole(self, y, p) * (1 + (p > 5)[:, None]))


def _halve_sums(patch: pytest.MonkeyPatch, word: str) -> None:
    """Half of the noise in sums."""
    whole = NoisyTotal.with_shares

    def half(self: NoisyTotal, total: Tensor, *rest: int) -> Tensor:
        return (whole(self, total, *rest) + total) / 2

    patch.setattr(NoisyTotal, "with_shares", half)


def _count_helpers(patch: pytest.MonkeyPatch, word: str) -> None:
    """Shares as small as if nobody helped the server, and nobody vanished."""
    share = property(lambda self: self.noise_multiplier / math.sqrt(self.clients))
    patch.setattr(NoisyTotal, "share_multiplier", share)


def _same_noise_in_sums(patch: pytest.MonkeyPatch, word: str) -> None:
    whole = NoisyTotal.generators
    patch.setattr(NoisyTotal, "generators", lambda self, number: whole(self, 0))


SABOTAGED: dict[str, tuple[Callable[[pytest.MonkeyPatch, str], None], str]] = {
    "half of the evaluation's noise": (_halve, "evaluation"),
    "half of the ranges' noise": (_halve, "ranges"),
    "an evaluation without noise": (_silence, "evaluation"),
    "ranges without noise": (_silence, "ranges"),
    "the same noise in all steps": (_same_noise, "ranges"),
    "a record in two metrics": (_count_twice, "evaluation"),
    "a metric that the bound forgets": (_leave_out_of_the_bound, "evaluation"),
    "losses that are not clipped": (_no_clip, "evaluation"),
    "numbers that are not clipped": (_beyond_the_limits, "ranges"),
    "half of the sizes' noise": (_halve, "sizes"),
    "sizes without noise": (_silence, "sizes"),
    "sizes that are not clipped": (_sizes_beyond, "sizes"),
    "half of the targets' noise": (_halve, "middle"),
    "targets without noise": (_silence, "middle"),
    "targets that are not clipped": (_beyond_the_limits, "middle"),
    "half of the correction's noise": (_halve, "correction"),
    "a correction without noise": (_silence, "correction"),
    "predictions that are not clipped": (_predictions_beyond, "correction"),
    "half of the noise of a sum": (_halve_sums, "correction in a sum"),
    "half of the noise of an evaluation's sum": (_halve_sums, "evaluation in a sum"),
    "shares that count on colluding clients": (_count_helpers, "correction in a sum"),
    "the same noise in all sums": (_same_noise_in_sums, "evaluation in a sum"),
    "predictions in a sum that are not clipped": (_predictions_beyond, "correction in a sum"),
}


SEEN_BESIDE = ("half of the evaluation's noise", "a record in two metrics", "ranges without noise")


def test_a_correct_run_with_both_passes() -> None:
    checks = measured(together(ranges(), evaluation(SCORINGS["two classes"])).stage, 0)
    assert {check.name for check in checks} == {"noise", "law", "freshness", "draws", "others"}
    assert [check for check in checks if check.violated] == []


@pytest.mark.parametrize("name", SABOTAGED)
def test_sabotage_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, and in the game whose adversary sees training as well."""
    sabotage, word = SABOTAGED[name]
    scoring = SCORINGS["two classes"]
    sabotage(monkeypatch, word)
    stages = ranges(), evaluation(scoring)
    others = {
        "sizes": sizes,
        "middle": middle,
        "correction": correction,
        "correction in a sum": correction_sum,
        "evaluation in a sum": evaluation_sum,
    }
    played: list[AuditStage] = [
        others[word]() if word in others else dict(zip(("ranges", "evaluation"), stages, strict=True))[word]
    ]
    played += [together(*stages).stage] if name in SEEN_BESIDE else []
    for stage in played:
        assert any(check.violated for check in measured(stage, 0)), stage.name


def test_the_promise_of_a_run_covers_all_that_is_seen() -> None:
    """It is the printed one: training leaves room for the releases, and guesses use all of them."""
    stages = ranges(Target(2.0, 1e-5)), evaluation(SCORINGS["two classes"], Target(2.0, 1e-5))
    found = promises(ALGORITHMS["sgd"], sides=stages)
    main, alone = found[0], found[1:]
    assert isinstance(main.stage, JointStage)
    assert 3.9 < main.claim.epsilon <= 4.0
    assert [promise.claim.epsilon for promise in alone] == pytest.approx([2.0, 2.0], rel=1e-2)
    assert main.stage.noise > promises(ALGORITHMS["sgd"])[0].stage.noise
    assert main.make_event is not None
    event = main.make_event(main.stage.noise)
    assert accounting.epsilon(event, 1e-5) == pytest.approx(main.claim.epsilon, rel=1e-6)
    views = main.stage.views(np.ones(3), 0, Tactic())
    assert np.isfinite(views).sum(2)[0].tolist() == [16] * 3 + [4] * 17 + [SCORINGS["two classes"].dim]


# Recipes

OPEN = Schema(
    Predicted("ill", "binary", classes=("no", "yes")),
    (Column("dose", "number", within=(0, 1000)),),
    client="site",
)


def recipe(folder: Path) -> Recipe:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"dose": rng.normal(200, 20, 400), "site": np.arange(400) % 4})
    table["ill"] = np.where(table["dose"] > 200, "yes", "no")
    table.to_csv(folder / "t.csv", index=False)
    (folder / "schema.toml").write_text(OPEN.to_toml())
    data = {"schema": str(folder / "schema.toml")}
    settings = {"batch": 0.5, "step": 0.1}
    made = Recipe(algorithm="cdp-sgd", data=str(folder / "t.csv"), data_settings=data, rounds=2, epsilon=4.0)
    return replace(made, algorithm_settings=settings).with_settings({"evaluation.held_back": 0.2})


def test_a_recipe_with_both_is_audited(tmp_path: Path) -> None:
    asked = recipe(tmp_path)
    result = audit_recipe(asked, trials=500)
    assert not result.violated
    guarantee = make_plan(asked).guarantee
    assert guarantee is not None
    assert result.claimed == pytest.approx(guarantee.epsilon, rel=1e-3)
    assert [one.algorithm for one in result.beside] == ["learned ranges", "private evaluation"]
    for method in ("one-run", "final-model"):
        with pytest.raises(RequestError, match="use repeated-runs"):
            audit_recipe(asked, method=method)


REGRESSION = Schema(
    Predicted("cost", "regression", range=(0, 100)), (Column("dose", "number", range=(0, 400)),), client="site"
)


def test_a_recipe_whose_releases_go_through_sums_is_audited(tmp_path: Path) -> None:
    """Every printed promise, and each release alone; a server that all others help sees a share of the noise."""
    asked = recipe(tmp_path).with_settings(
        {"trust": "sum", "correction": 0.4, "evaluation.loss_bound": 1.0, "evaluation.epsilon_share": 0.3}
    )
    (tmp_path / "schema.toml").write_text(REGRESSION.to_toml())
    table = pd.read_csv(tmp_path / "t.csv").drop(columns="ill")
    table.assign(cost=table["dose"] / 4).to_csv(tmp_path / "t.csv", index=False)
    result = audit_recipe(asked, trials=1000)
    planned = make_plan(asked)
    assert planned.guarantee is not None
    assert not result.violated
    assert result.claimed == pytest.approx(planned.guarantee.epsilon, rel=1e-3)
    assert result.adversary is Adversary.SECURE_SUM
    assert "1 of private evaluation, 1 of correction of the model" in " ".join(result.notes)
    shown, pooled, evaluated, corrected = result.beside
    assert shown.adversary is Adversary.SERVER
    assert shown.claimed == pytest.approx(planned.calibration.beside[0].epsilon, rel=1e-3)
    assert pooled.claimed == result.claimed
    assert (evaluated.claimed, corrected.claimed) == pytest.approx((1.2, 1.6), rel=1e-2)
    assert evaluated.adversary is corrected.adversary is Adversary.SECURE_SUM
