"""Audits the algorithm that a recipe would run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tacit.client.work import sizes_are_public
from tacit.engine.audit.final_model import audit_final_model
from tacit.engine.audit.one_run import CANARIES, audit_one_run
from tacit.engine.audit.pooled import draws_at_once
from tacit.engine.audit.promises import RECORDS_OF_A_CLIENT
from tacit.engine.audit.releases import releases_beside
from tacit.engine.audit.repeated_runs import DIM, TRIALS, audit
from tacit.engine.plan import Plan, make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.targets import client_target
from tacit.errors import RequestError, unknown_name
from tacit.noise.randomness import Randomness
from tacit.privacy import Target
from tacit.privacy.audit import AuditResult
from tacit.privacy.promises.terms import PERSONS

METHODS = ("repeated-runs", "one-run", "final-model")

FEWEST_TRIALS, CLIENT_ROUNDS = 1000, 200_000
"""By default an audit takes about `CLIENT_ROUNDS` rounds of a client, and at least `FEWEST_TRIALS` trials."""

ONE_RECORD_EACH = "persons are played as single records: how their rows become one gradient is not attacked"


def audit_recipe(
    recipe: Recipe,
    *,
    method: str = "repeated-runs",
    trials: int | None = None,
    confidence: float = 0.95,
    dim: int = DIM,
    data_dir: Path | None = None,
) -> AuditResult:
    """Audits a recipe's algorithm with its own sampling, bound, compressor and rounds.

    Args:
        recipe: the recipe to audit. Every epsilon that it would print is attacked by the adversary named with it.
        method: "repeated-runs" plays the gradient game against the smallest client, which is hidden by the fewest
            others, or against the crowd; "one-run" puts many canaries into one client; "final-model" trains on
            the recipe's own data and looks only at the model.
        trials: number of runs, or of canaries in one run.
        confidence: confidence of the lower bounds.
        dim: number of coordinates in the game of the repeated runs.
        data_dir: directory of the data files.
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    # The other methods play made-up records, so they need not learn anything from the clients' own.
    plan = make_plan(recipe, data_dir=data_dir, look=method == "final-model")
    shown = sizes_are_public(plan.algorithm.work)
    # Where numbers of records are protected, the game is the same for all clients.
    smallest = int(plan.federation.sizes.argmin()) if shown else 0
    records = int(plan.federation.sizes[smallest]) if shown else RECORDS_OF_A_CLIENT
    privacy = promised_to(plan, smallest)
    seed, times = plan.seed, plan.releases
    sides = releases_beside(plan, records, Randomness(seed))
    if sides and method != "repeated-runs":
        raise RequestError(
            f"method = {method!r} plays the messages of training alone, and this recipe also releases "
            f"{' and '.join(side.name for side in sides)}: use repeated-runs"
        )
    if method == "final-model":
        return audit_final_model(
            plan.algorithm, plan.federation, rounds=plan.rounds, privacy=privacy, confidence=confidence, seed=seed
        )
    # The client that takes part most often releases most: `times` releases.
    if method == "one-run":
        return audit_one_run(
            plan.algorithm,
            rounds=times,
            privacy=privacy,
            canaries=trials or CANARIES,
            confidence=confidence,
            seed=seed,
        )
    found = audit(
        plan.algorithm,
        records=records,
        rounds=times,
        privacy=privacy,
        clients=plan.federation.clients,
        whole_clients=client_target(recipe),
        trials=trials or min(TRIALS, max(FEWEST_TRIALS, CLIENT_ROUNDS // times)),
        confidence=confidence,
        seed=seed,
        dim=dim,
        sides=sides,
        pooled=draws_at_once(plan.algorithm),
    )
    persons = PERSONS in plan.federation.peeks
    return replace(found, notes=(*found.notes, ONE_RECORD_EACH)) if persons else found


def promised_to(plan: Plan, client: int) -> Target:
    """The target of a client; an error if there is none."""
    if isinstance(plan.privacy, str):
        raise RequestError("privacy = 'none' promises nothing: an audit needs an epsilon and a delta")
    return plan.privacy if isinstance(plan.privacy, Target) else plan.privacy[client]
