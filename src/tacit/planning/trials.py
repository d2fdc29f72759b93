"""The planner's trials: candidates run on synthetic records.

A trial shows what no bound does: how much is lost by a clip norm that shortens gradients, and how much is gained
because the noise shrinks with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.records import load_federation
from tacit.engine.simulate import simulate
from tacit.errors import DivergedError, RequestError, count
from tacit.federation import Federation
from tacit.planning.planner import Candidate, clipped, public_numbers
from tacit.planning.rehearsal import synthetic_like

SMALLER_CLIPS = (0.5, 0.25)
"""Every candidate is also tried with its clip norm times these factors."""


@dataclass(frozen=True)
class Trial:
    """How a candidate did on synthetic data."""

    candidate: Candidate
    train_loss: float


def try_out(
    found: Sequence[Candidate],
    recipe: Recipe,
    *,
    most: int,
    federation: Federation | None = None,
    data_dir: Path | None = None,
) -> list[Trial]:
    """Tries the first `most` candidates, as they are and with smaller clip norms; lowest training loss first.

    They run on synthetic data of the recipe's shape: the same numbers of clients, records and features, the same
    feature norm, and labels from a random linear teacher. Guarantee: each is charged by the exact accountant,
    with the noise that its own clip norm needs. For smaller clip norms there is no bound, so only the trial
    counts.
    """
    real = load_federation(recipe, data_dir) if federation is None else federation
    chosen = found[: count("trials", most)]
    public = public_numbers(recipe, real, [candidate.algorithm for candidate in chosen])
    smaller = [clipped(c, public, share * c.clip_norm) for c in chosen for share in SMALLER_CLIPS]
    synthetic = synthetic_like(real, public.feature_norm, seed=recipe.seed, target_bound=recipe.target_bound)
    trials = []
    for candidate in (*chosen, *smaller):
        plan = make_plan(candidate.recipe(recipe), federation=synthetic)
        try:
            run = simulate(plan, evaluate_every=plan.rounds)
        except DivergedError:
            continue
        trials.append(Trial(candidate, run.last.train_loss))
    if not trials:
        raise RequestError("all candidates that were tried diverged on synthetic data; allow others")
    return sorted(trials, key=lambda trial: trial.train_loss)
