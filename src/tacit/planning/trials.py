"""Tries plans on synthetic records: a race within a budget of work, from which those far behind drop out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev

from tacit.engine.plan import Plan
from tacit.engine.recipe import Recipe
from tacit.engine.simulate import simulate
from tacit.errors import DivergedError
from tacit.federation import Federation
from tacit.models.linear import LinearModel
from tacit.planning.shape import plan_unseen
from tacit.privacy import Unit

REPEATS = 3
"""How often a recipe is tried on each kind of synthetic records."""

BUDGET = 8e10
"""Work of a race, in multiplications: about half a minute of one core."""

STEP, RECORD, NUMBER = 6e6, 100, 100
"""What a step, a record of a step and a number of a client's noise cost besides, in multiplications."""

FAR_BEHIND = 0.03
"""TrialScores this far behind the best, three points of accuracy, are not tried again."""


TrialScores = tuple[float, ...]
"""The results of a recipe, one for each trial so far: accuracies, or 1 - error / error of the mean."""


def race(
    recipes: Sequence[Recipe], worlds: Sequence[Federation], budget: float = BUDGET
) -> list[TrialScores | None]:
    """The scores of every recipe: none (an empty tuple) if the budget does not cover it, None if it diverged.

    Recipes earlier in the list come first where the budget is short. In each trial, all of them have the same
    records and the same seed, so their differences are less noisy than their scores.
    """
    scores: list[TrialScores | None] = [()] * len(recipes)
    running = list(range(len(recipes)))
    for repeat in range(REPEATS):
        for number in list(running):
            # Synthetic records have no schema, and so no correction after training.
            plans = [plan_unseen(replace(recipes[number], correction=0.0), world) for world in worlds]
            cost = sum(map(work_of, plans))
            if cost > budget:
                running.remove(number)
                continue
            budget -= cost
            scores[number] = _more(
                scores[number] or (), [replace(plan, seed=plan.seed + repeat) for plan in plans]
            )
        left = {number: own for number in running if (own := scores[number])}
        best = max(left.values(), key=mean, default=())
        running = [number for number, own in left.items() if mean(best) - mean(own) <= FAR_BEHIND]
    return scores


def lag(own: TrialScores, best: TrialScores) -> tuple[float, float]:
    """How far scores are behind others, on the trials that both had, and the standard error of that."""
    gaps = [one - other for one, other in zip(best, own, strict=False)]
    return mean(gaps), stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0


def work_of(plan: Plan) -> float:
    """About what a run of this plan costs, in multiplications."""
    work, federation = plan.algorithm.work, plan.federation
    steps, dim = plan.rounds * work.batches_per_round, work.model.dim
    clients = plan.algorithm.participation.typical(federation.clients)
    share = clients / federation.clients
    records = share * float(work.sampling.batch_sizes(federation.sizes).sum())
    if work.unit is not Unit.RECORD and isinstance(work.model, LinearModel):
        # Local steps over all records of a client use the products of its records.
        return steps * (STEP + records * float(federation.sizes.double().mean())) + plan.rounds * records * dim
    return steps * (STEP + records * (dim + RECORD) + clients * dim * NUMBER)


def _more(scores: TrialScores, plans: Sequence[Plan]) -> TrialScores | None:
    try:
        return (*scores, *map(_score, plans))
    except DivergedError:
        return None


def _score(plan: Plan) -> float:
    last = simulate(plan, evaluate_every=plan.rounds).last.test_metric
    assert last is not None, "synthetic records have test records"
    targets = plan.federation.test_targets
    if plan.federation.classes is not None or targets is None:
        return last
    return 1 - last / float(targets.double().std(correction=0))
