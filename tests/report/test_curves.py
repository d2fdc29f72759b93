"""Pictures of runs say what the promise does not cover."""

from __future__ import annotations

import tacit
from tacit.engine.recipe import Recipe


def test_a_picture_of_losses_says_that_no_promise_covers_them() -> None:
    small = Recipe(data="breast-cancer", clients=3, rounds=2)
    private = tacit.plot_run(tacit.simulate(tacit.make_plan(small)))
    assert "Losses are measured on the clients' records without noise" in private.get_supxlabel()
    bare = tacit.plot_run(tacit.simulate(tacit.make_plan(small.with_settings({"privacy": "none"}))))
    assert bare.get_supxlabel() == ""
