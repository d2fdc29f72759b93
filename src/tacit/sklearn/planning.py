"""Running a recipe on records that are already there."""

from __future__ import annotations

from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.run import Run
from tacit.engine.simulate import simulate
from tacit.federation import Federation


def run_recipe(recipe: Recipe, federation: Federation) -> Run:
    """What `tacit run` does with a recipe, without its files: plan on these records, then train."""
    planned = make_plan(recipe, federation=federation)
    return simulate(
        planned.algorithm,
        planned.federation,
        rounds=planned.rounds,
        privacy=planned.privacy,
        seed=planned.recipe.seed,
        stream=planned.recipe.stream or "",
        evaluate_every=planned.recipe.evaluate_every,
        memory_limit_bytes=planned.recipe.memory_limit_bytes,
        device=planned.recipe.device,
    )
