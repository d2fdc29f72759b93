"""Auditing what a recipe would run."""

from __future__ import annotations

from pathlib import Path

from tacit.algorithms.trust import Nobody
from tacit.engine.audit.final_model import audit_final_model
from tacit.engine.audit.one_run import CANARIES, audit_one_run
from tacit.engine.audit.repeated_runs import DIM, TRIALS, audit
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError, unknown_name
from tacit.privacy import Target, Unit
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

    "repeated-runs" and "one-run" play the gradient game against its smallest client, who is hidden by the fewest
    others; `trials` are runs or canaries. "final-model" trains on the recipe's own data.
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    plan = make_plan(recipe, data_dir=data_dir)
    if not isinstance(plan.privacy, Target):
        raise RequestError("an audit needs one epsilon and one delta that all clients are promised")
    if not isinstance(plan.algorithm.trust, Nobody) or plan.algorithm.work.unit is not Unit.RECORD:
        raise RequestError(
            f"{plan.algorithm.name!r} promises something about sums or whole clients; audits play against the "
            "messages of one client about one record"
        )
    seed, times = plan.seed, plan.releases
    if method == "final-model":
        return audit_final_model(
            plan.algorithm,
            plan.federation,
            rounds=plan.rounds,
            privacy=plan.privacy,
            confidence=confidence,
            seed=seed,
        )
    # The client that takes part most often promises most: `times` releases.
    if method == "one-run":
        return audit_one_run(
            plan.algorithm,
            rounds=times,
            privacy=plan.privacy,
            canaries=trials or CANARIES,
            confidence=confidence,
            seed=seed,
        )
    return audit(
        plan.algorithm,
        records=int(plan.federation.sizes.min()),
        rounds=times,
        privacy=plan.privacy,
        trials=trials or min(TRIALS, max(FEWEST_TRIALS, CLIENT_ROUNDS // times)),
        confidence=confidence,
        seed=seed,
        dim=dim,
    )
