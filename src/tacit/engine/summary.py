"""A finished run as plain data: what `summary.json` holds, and what pages and tables show."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.engine.findings import best_constant, findings
from tacit.engine.history import MEASURED
from tacit.engine.outlook import outlook
from tacit.engine.sizes import has_learned_sizes, learned_sizes
from tacit.privacy import Target

if TYPE_CHECKING:
    from tacit.engine.run import Run


def summary(run: Run, directory: Path | None = None) -> dict[str, Any]:
    """The run as one flat JSON object. Numbers of records are None where the promise protects them."""
    federation, work, last = run.federation, run.algorithm.work, run.last
    guarantee, sizes = run.guarantee, federation.sizes
    shows_sizes = run.calibration.shows_sizes
    # Which client is the smallest also reveals something about its size.
    one = int(sizes.argmin()) if shows_sizes else 0
    stds, multipliers = run.calibration.noise_stds, run.calibration.noise_multipliers
    return {
        "algorithm": run.algorithm.name,
        "data": federation.name,
        "clients": federation.clients,
        # A record is a person, if one may have several rows.
        "counted": "persons" if federation.by_person else "records",
        "records": federation.records if shows_sizes else None,
        "records_per_client": [int(sizes.min()), int(sizes.max())] if shows_sizes else None,
        "dim": work.model.dim,
        "rounds": run.rounds,
        "privacy": "none" if guarantee is None else str(guarantee.unit),
        "epsilon": None if guarantee is None else guarantee.epsilon,
        "epsilon_without_trust": run.calibration.epsilon_without_trust,
        "delta": None if guarantee is None else guarantee.delta,
        "unit": None if guarantee is None else str(guarantee.unit),
        "adjacency": None if guarantee is None else str(guarantee.adjacency),
        "adversary": None if guarantee is None else str(guarantee.adversary),
        "promise": "no privacy: noise was switched off" if guarantee is None else guarantee.sentence(),
        "public": [] if guarantee is None else list(guarantee.public),
        "protection": [row.to_dict() for row in run.protection()],
        "clients_own": _own(run),
        "noise": work.noise.name,
        "entropy": "from the operating system, on a lattice"
        if work.noise.secret
        else "seeded: a simulation, not private to whoever knows the seed",
        "sampling": work.sampling.name,
        # Clients may differ in these: the values are those of the smallest client, or of the first.
        "sampling_rate": work.sampling.rate(int(sizes[one])) if shows_sizes else None,
        "clip_norm": bound if math.isfinite(bound := work.bound.norm(work.bounded)) else None,
        "noise_std": float(stds[one]),
        "noise_multiplier": float(multipliers[one]),
        "noise_std_range": [float(stds.min()), float(stds.max())],
        "noise_multiplier_range": [float(multipliers.min()), float(multipliers.max())],
        "compressor": run.algorithm.uplink.compressor.spec(),
        "uplink_bits_per_client": last.uplink_bits_per_client,
        "uplink_bits_total": last.uplink_bits_total,
        "gradient_evaluations": last.gradient_evaluations,
        "train_loss": last.train_loss,
        "grad_norm_sq": last.grad_norm_sq,
        "grad_norm_sq_mean": last.grad_norm_sq_mean,
        "test_metric": last.test_metric,
        "test_metric_name": work.model.metric_name,
        "naive_metric": None if (best := best_constant(run)) is None else [best.metric, best.name],
        "test_records": None if federation.test_targets is None else len(federation.test_targets),
        "schema": federation.schema is not None,
        "learned": _learned(run),
        "correction": _corrected(run),
        "evaluation": _evaluated(run),
        "signal_to_noise": last.signal_to_noise,
        "outlook": None if (ahead := outlook(run.plan)) is None else ahead.to_dict(),
        "findings": [finding.to_dict() for finding in findings(run)],
        "seed": run.plan.seed,
        "seconds": run.seconds,
        "peak_memory_mb": run.peak_memory_mb,
        # A comparison names run_dir by a digest of the user's own files.
        "not_covered": [] if guarantee is None else [*MEASURED, *_own_test(run), "findings", "run_dir"],
        "run_dir": None if directory is None else str(directory),
    }


def _own(run: Run) -> list[dict[str, Any]]:
    """The target of each client, if clients have separate budgets."""
    guarantee, calibration, federation = run.guarantee, run.calibration, run.federation
    if guarantee is None or isinstance(run.plan.privacy, Target):
        return []
    names = federation.names or tuple(map(str, federation.ids.tolist()))
    rows = []
    for position, (name, epsilon) in enumerate(zip(names, guarantee.epsilons, strict=True)):
        group = calibration.groups[int(calibration.group_of_client[position])]
        assert group.target is not None, "a run with a guarantee has targets"
        rows.append(
            {
                "client": name,
                **({} if group.records is None else {"records": group.records}),
                "epsilon_budget": group.target.epsilon,
                "epsilon": epsilon,
                "delta": group.target.delta,
                "noise_multiplier": group.noise_multiplier,
                "noise_std": float(calibration.noise_stds[position]),
                "weight": 1.0 if federation.weights is None else float(federation.weights[position]),
            }
        )
    return rows


def _own_test(run: Run) -> tuple[str, ...]:
    """What is known about test records, if they are records of the clients and not public ones.

    Their number is a share of all records of every client.
    """
    if not run.federation.test_is_private:
        return ()
    tested = ("test_metric", "naive_metric")
    return tested if run.calibration.shows_sizes else (*tested, "test_records")


def _evaluated(run: Run) -> dict[str, Any] | None:
    evaluation, planned = run.evaluation, run.plan.evaluation
    if evaluation is None or planned is None:
        return None
    alone = None if planned.target is None else planned.target.epsilon
    return {"epsilon_alone": alone, **planned.scoring.told, **evaluation.to_dict()}


def _corrected(run: Run) -> dict[str, Any] | None:
    planned = run.plan.correction
    if run.correction is None or planned is None:
        return None
    alone = None if planned.target is None else planned.target.epsilon
    return {"epsilon_alone": alone, **run.correction.to_dict(run.federation.target_scale)}


def _learned(run: Run) -> dict[str, Any] | None:
    """The ranges, sizes or targets that were learned from the records, and what that would cost alone."""
    schema, charged, guarantee = run.federation.schema, run.federation.charged, run.guarantee
    if charged is None or guarantee is None:
        return None
    alone = replace(guarantee, events=(charged,) * len(guarantee.events)).epsilon
    if schema is None:
        middle = run.federation.middle
        sizes = {"sizes": learned_sizes(run.federation)} if has_learned_sizes(run.plan.recipe) else {}
        return {
            "epsilon_alone": alone,
            **sizes,
            **({} if middle is None else {"targets": {"centre": middle.centre, "half": middle.half}}),
        }
    found = {column.name: column.range for column in schema.columns if column.name in schema.learned}
    if schema.target.column in schema.learned:
        found[schema.target.column] = schema.target.range
    return {"epsilon_alone": alone, "ranges": {name: list(range or ()) for name, range in found.items()}}
