"""The noise that each algorithm needs for a recipe's promise, whether that leaves anything, and by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tacit.algorithms.registry import ALGORITHMS, algorithm_entry
from tacit.client.sampling import Full, Sampling, build_sampling
from tacit.engine.outlook import Outlook, outlook
from tacit.engine.plan import Plan
from tacit.engine.plan import plan as again
from tacit.engine.recipe import Recipe
from tacit.engine.records import load_federation
from tacit.errors import RequestError, probability
from tacit.federation import Federation
from tacit.planning.shape import plan_unseen
from tacit.privacy import Unit

FRACTIONS = (0.01, 0.1, 0.3, 1.0)
"""The batches of the grid, as fractions of a client's records."""


@dataclass(frozen=True)
class Need:
    """The noise of one algorithm. Numbers that differ between clients are those of the smallest one.

    If the promise protects numbers of records, they are those of the first client, and numbers that would reveal
    its size are None.
    """

    algorithm: str
    rounds: int
    releases: int
    """the largest number of rounds that any client takes part in"""
    sampling: str
    batch: float | None
    sampling_rate: float | None
    noise_multiplier: float
    noise_std: float
    """noise on every coordinate of what a client sends"""
    epsilon: float
    adversary: str
    """against whom the epsilon holds"""
    epsilon_without_trust: float | None
    """the epsilon if all other parties help the server; None if nothing is left, or if the promise relies
    on nobody (adversary "server")"""
    uplink_bits_per_client: int
    """upper limit for the whole run"""
    outlook: Outlook | None = None
    """whether anything can be learned at this noise; None for other batches than the planned one"""

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {**asdict(self), "outlook": None if self.outlook is None else self.outlook.to_dict()}


@dataclass(frozen=True)
class Refused:
    """An algorithm, or one of its batches, that this recipe does not allow."""

    algorithm: str
    why: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {"algorithm": self.algorithm, "refused": self.why}


@dataclass(frozen=True)
class Needs:
    """What every algorithm needs with the recipe's settings, and on a grid of batches."""

    recipe: Recipe
    planned: tuple[Need | Refused, ...]
    by_batch: tuple[tuple[float, Need | Refused], ...]
    """with the batch as a fraction of a client's records; algorithms without batches are left out"""


def noise_needs(
    recipe: Recipe,
    *,
    algorithms: Sequence[str] | None = None,
    fractions: Sequence[float] = FRACTIONS,
    federation: Federation | None = None,
    data_dir: Path | None = None,
) -> Needs:
    """The least noise for the recipe's target: for each algorithm as planned, and for each batch of the grid.

    Nothing is trained. The grid keeps the rounds of the plan, so its rows differ only in the batch. `federation`
    replaces the recipe's records, if those are not available.
    """
    if recipe.privacy == "none":
        raise RequestError("privacy = 'none' in the recipe: without a promise no noise is needed")
    records = load_federation(recipe, data_dir, look=False) if federation is None else federation
    planned: list[Need | Refused] = []
    by_batch: list[tuple[float, Need | Refused]] = []
    for name in algorithms or [name for name, entry in ALGORITHMS.items() if entry.private]:
        algorithm_entry(name)
        try:
            plan = plan_unseen(recipe.for_algorithm(name), records)
        except RequestError as error:
            # An algorithm that does not fit the recipe is no reason to drop the others.
            planned.append(Refused(name, str(error)))
            continue
        planned.append(replace(_need(plan), outlook=outlook(plan)))
        if "sampling" in algorithm_entry(name).settings and plan.algorithm.work.unit is Unit.RECORD:
            by_batch += [(probability("fraction", fraction), _at(plan, fraction)) for fraction in fractions]
    if not any(isinstance(row, Need) for row in planned):
        raise RequestError(f"no algorithm fits this recipe: {planned[0].to_dict()['refused']}")
    return Needs(recipe, tuple(planned), tuple(by_batch))


def _at(plan: Plan, fraction: float) -> Need | Refused:
    try:
        algorithm = replace(plan.algorithm, work=plan.algorithm.work.with_sampling(_sampling(plan, fraction)))
        return _need(again(algorithm, plan.federation, rounds=plan.rounds, privacy=plan.privacy, seed=plan.seed))
    except RequestError as error:
        return Refused(plan.algorithm.name, str(error))


def _sampling(plan: Plan, fraction: float) -> Sampling:
    name = plan.algorithm.work.sampling.name
    if fraction < 1 and name != "full":
        return build_sampling(name, fraction)
    if fraction < 1:
        return build_sampling("poisson", fraction)
    # Sampling with probability 1 is a full batch, and also suits algorithms that accept only Poisson sampling.
    return build_sampling(name, float(plan.federation.sizes.max())) if name == "poisson" else Full()


def _need(plan: Plan) -> Need:
    federation, calibration, work = plan.federation, plan.calibration, plan.algorithm.work
    shown = calibration.shows_sizes
    one = int(federation.sizes.argmin()) if shown else 0
    size = int(federation.sizes[one])
    message_bytes = plan.algorithm.uplink.message_bytes(plan.algorithm.length)
    return Need(
        algorithm=plan.algorithm.name,
        rounds=plan.rounds,
        releases=plan.releases,
        sampling=work.sampling.name,
        batch=float(work.sampling.batch_sizes(federation.sizes)[one]) if shown else None,
        sampling_rate=work.sampling.rate(size) if shown else None,
        noise_multiplier=float(calibration.noise_multipliers[one]),
        noise_std=float(calibration.noise_stds[one]),
        epsilon=plan.guarantee.epsilon if plan.guarantee else float("inf"),
        adversary=str(plan.algorithm.trust.adversary),
        epsilon_without_trust=calibration.epsilon_without_trust,
        uplink_bits_per_client=8 * plan.releases * message_bytes,
    )
