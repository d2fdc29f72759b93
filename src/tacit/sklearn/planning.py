"""Running a recipe on records that are already there."""

from __future__ import annotations

from pathlib import Path
from types import FunctionType

from tacit.engine import plan
from tacit.engine.recipe import Recipe
from tacit.engine.run import Run
from tacit.engine.simulate import simulate
from tacit.federation import Federation


def run_recipe(recipe: Recipe, federation: Federation) -> Run:
    """What `tacit run` does with a recipe, without its files: plan on these records, then train."""
    planned = _plan_on(recipe, federation)
    return simulate(
        planned.algorithm,
        planned.federation,
        rounds=planned.rounds,
        privacy=planned.privacy,
        seed=planned.recipe.seed,
        evaluate_every=planned.recipe.evaluate_every,
        memory_limit_bytes=planned.recipe.memory_limit_mb * 2**20,
        device=planned.recipe.device,
    )


def _plan_on(recipe: Recipe, federation: Federation) -> plan.Plan:
    """`make_plan` as it is, only that the records are not loaded by name.

    A copy of its steps would fall behind what it refuses and charges for: its own code runs, with another loader.
    """

    def load_federation(recipe: Recipe, data_dir: Path | None) -> Federation:
        if recipe.weights is None or isinstance(recipe.weights, str):
            return federation.weighted(recipe.weights or "equal")
        return federation.weighted(plan.for_each_client("weights", recipe.weights, federation))

    make_plan = FunctionType(plan.make_plan.__code__, {**vars(plan), "load_federation": load_federation})
    make_plan.__kwdefaults__ = plan.make_plan.__kwdefaults__
    planned = make_plan(recipe)
    assert isinstance(planned, plan.Plan)
    assert planned.federation.features is federation.features, "make_plan must train on the records it was given"
    return planned
