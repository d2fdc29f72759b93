"""Auditing what a recipe would run."""

from __future__ import annotations

from pathlib import Path

from tacit.engine.audit.final_model import audit_final_model
from tacit.engine.audit.one_run import CANARIES, audit_one_run
from tacit.engine.audit.repeated_runs import DIM, TRIALS, audit
from tacit.engine.plan import Plan, make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.targets import client_target
from tacit.errors import RequestError, unknown_name
from tacit.privacy import Target
from tacit.privacy.audit import AuditResult

METHODS = ("repeated-runs", "one-run", "final-model")

FEWEST_TRIALS, CLIENT_ROUNDS = 1000, 200_000
"""Unless it is told how many trials there shall be, an audit takes about this many rounds of a client."""


def audit_recipe(
    recipe: Recipe,
    *,
    method: str = "repeated-runs",
    trials: int | None = None,
    confidence: float = 0.95,
    dim: int = DIM,
    data_dir: Path | None = None,
) -> AuditResult:
    """Audit a recipe's algorithm with its own sampling, bound, compressor and rounds.

    Args:
        recipe: what would run. Everything that it prints an epsilon for is attacked by the adversary named there.
        method: "repeated-runs" plays the gradient game against its smallest client, who is hidden by the fewest
            others, or against the crowd; "one-run" has many canaries in one client; "final-model" trains on the
            recipe's own data and looks at the model alone.
        trials: runs, or canaries of one run.
        confidence: of the lower bounds.
        dim: coordinates of the repeated runs' game.
        data_dir: where data files are.
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    plan = make_plan(recipe, data_dir=data_dir)
    smallest = int(plan.federation.sizes.argmin())
    privacy = promised_to(plan, smallest)
    seed, times = plan.seed, plan.releases
    if method == "final-model":
        return audit_final_model(
            plan.algorithm, plan.federation, rounds=plan.rounds, privacy=privacy, confidence=confidence, seed=seed
        )
    # The client that takes part most often promises most: `times` releases.
    if method == "one-run":
        return audit_one_run(
            plan.algorithm,
            rounds=times,
            privacy=privacy,
            canaries=trials or CANARIES,
            confidence=confidence,
            seed=seed,
        )
    return audit(
        plan.algorithm,
        records=int(plan.federation.sizes[smallest]),
        rounds=times,
        privacy=privacy,
        clients=plan.federation.clients,
        whole_clients=client_target(recipe),
        trials=trials or min(TRIALS, max(FEWEST_TRIALS, CLIENT_ROUNDS // times)),
        confidence=confidence,
        seed=seed,
        dim=dim,
    )


def promised_to(plan: Plan, client: int) -> Target:
    """What a client is promised; an error if that is nothing."""
    if isinstance(plan.privacy, str):
        raise RequestError("privacy = 'none' promises nothing: an audit needs an epsilon and a delta")
    return plan.privacy if isinstance(plan.privacy, Target) else plan.privacy[client]
