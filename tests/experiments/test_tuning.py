"""Tuning takes the point with the best mean, and repeats only that."""

from __future__ import annotations

import json
import math
from pathlib import Path

from tacit.algorithms.settings import Settings
from tacit.engine.workers import Result
from tacit.experiments.cells import Runner
from tacit.experiments.intervals import mean_and_interval, slope
from tacit.experiments.tuning import evenly, grid, rehearsed, tuned


def work(settings: Settings, data_dir: Path | None) -> Result:
    # Seed 0 alone would choose 1; the mean of seeds 0 and 1 chooses 2.
    losses = {1: (0.0, 9.0, 0.0), 2: (2.0, 2.0, 2.0), 3: (float("inf"), 0.0, 0.0)}
    return {"loss": losses[settings["x"]][settings["seed"]]}


def test_the_best_mean_over_the_tuning_seeds_wins(tmp_path: Path) -> None:
    with Runner(tmp_path / "cells", workers=1) as runner:
        found = tuned(
            runner,
            work,
            {"a": grid({}, x=[1, 2, 3]), "b": grid({}, x=[3])},
            tuning_seeds=[0, 1],
            seeds=[0, 1, 2],
            score=lambda result: result["loss"],
        )
    assert list(found) == ["a"], "a series without a finite score is left out"
    assert [(r["settings"]["x"], r["settings"]["seed"]) for r in found["a"]] == [(2, 0), (2, 1), (2, 2)]
    assert len(list((tmp_path / "cells").iterdir())) == 7, "3 points with 2 seeds, then one seed more"


def descend(settings: Settings, data_dir: Path | None) -> Result:
    """Three losses; stops where their mean, if the rest were zero, is already above what is known."""
    losses = [settings["x"] ** 2 + 1.0 + settings["seed"]] * 3
    for seen in range(1, 4):
        if sum(losses[:seen]) / 3 > settings.get("hopeless_above", math.inf):
            return {"error": "hopeless", "after": seen}
    return {"loss": sum(losses) / 3}


def test_giving_up_hopeless_points_changes_no_choice(tmp_path: Path) -> None:
    grids = {"a": grid({"looks": 9}, x=[-3, -2, -1, 0, 1, 2, 3]), "b": grid({"looks": 9}, x=[5, 4, 3, 2, 1])}
    found = {}
    for early in (False, True):
        with Runner(tmp_path / str(early), workers=1) as runner:
            found[early] = tuned(
                runner,
                descend,
                grids,
                tuning_seeds=[0],
                seeds=[0, 1],
                score=lambda result: result.get("loss", math.inf),
                # No other settings than those of the search.
                final={"looks": 9},
                stops_early=early,
            )
    assert [(r["settings"]["x"], r["settings"]["seed"]) for r in found[True]["a"]] == [(0, 0), (0, 1)]
    for name in grids:
        assert [(r["settings"], r["loss"]) for r in found[True][name]] == [
            (r["settings"], r["loss"]) for r in found[False][name]
        ]
    stored = [json.loads(path.read_text()) for path in (tmp_path / "True").iterdir()]
    assert sum("error" in result for result in stored) >= 4, "runs were given up"
    assert len(stored) == 7 + 5 + 2, "what tuning has run is not run again"


def rehearse(settings: Settings, data_dir: Path | None) -> Result:
    assert settings["rehearsal"], "private records are not looked at"
    return {"loss": float("inf") if settings["x"] > 2 else settings["x"] + settings["step"]}


def test_a_rehearsal_keeps_what_did_best_on_the_stand_in(tmp_path: Path) -> None:
    with Runner(tmp_path / "cells", workers=1) as runner:
        plans = rehearsed(
            runner,
            rehearse,
            {"a": grid({}, x=[2, 1], step=[0.5, 0.1]), "b": grid({"step": 1}, x=[4, 5])},
            keep=("x",),
            score=lambda result: result["loss"],
        )
    assert plans == {"a": {"x": 1}, "b": {"x": 4}}


def test_the_runs_that_are_shown_may_look_more_often(tmp_path: Path) -> None:
    with Runner(tmp_path / "cells", workers=1) as runner:
        found = tuned(
            runner,
            work,
            {"a": grid({"looks": 1}, x=[1, 2])},
            tuning_seeds=[0],
            seeds=[0, 1],
            score=lambda result: result["loss"],
            final={"looks": 9},
        )
    assert [(r["settings"]["x"], r["settings"]["looks"]) for r in found["a"]] == [(1, 9), (1, 9)]


def test_a_grid_has_every_combination() -> None:
    made = grid({"a": 0}, b=[1, 2], c=["x", "y"])
    assert len(made) == 4
    assert {(p["a"], p["b"], p["c"]) for p in made} == {(0, b, c) for b in (1, 2) for c in "xy"}


def test_steps_are_evenly_spaced_in_their_logarithm() -> None:
    made = evenly(1e-4, 1.0, 5)
    assert made == [1e-4, 1e-3, 1e-2, 1e-1, 1.0]
    assert evenly(0.01, 1.0, 1) == [0.1]


def test_intervals_widen_with_spread() -> None:
    assert mean_and_interval([2.0]) == (2.0, None), "one value tells nothing of its spread"
    assert mean_and_interval([math.inf, 1.0]) == (math.inf, None)
    assert mean_and_interval([1.0, 3.0])[1] > mean_and_interval([1.9, 2.1])[1] > 0


def test_slope_is_the_exponent() -> None:
    x = [1.0, 3.0, 9.0]
    assert abs(slope(x, [5 * v**-0.5 for v in x]) + 0.5) < 1e-9
