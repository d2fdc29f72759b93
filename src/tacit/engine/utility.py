"""What an algorithm's theory promises about the result of a plan, with the noise that the plan really has.

It uses only facts about the records that are public under the plan's own promise: numbers of clients and
records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from tacit.algorithms.registry import algorithm_entry
from tacit.client.sampling import Sampling
from tacit.engine.choices import question
from tacit.engine.plan import Plan
from tacit.errors import RequestError
from tacit.privacy.accountant import accounting
from tacit.theory.asked import PlannedRun, Theory
from tacit.theory.known import check_assumed
from tacit.theory.utility import UtilityBound

_LEAST, _MOST = 1e-6, 1e6
"""Multiples of the noise between which to search for the one where privacy costs as much as sampling."""


@dataclass(frozen=True)
class Utility:
    """A theorem's bound for a plan, and how it relates to the plan's promise."""

    algorithm: str
    rounds: int
    epsilon: float | None
    noise_std: float
    """noise on a coordinate of a client's message, root mean square over the clients"""
    bound: UtilityBound
    free_epsilon: float | None
    """the epsilon above which privacy costs less than sampling, at these rounds and batches; None if none"""

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "algorithm": self.algorithm,
            "rounds": self.rounds,
            "epsilon": self.epsilon,
            "noise_std": self.noise_std,
            **self.bound.to_dict(),
            "sampling_cost": self.bound.sampling,
            "privacy_below_sampling_from_epsilon": self.free_epsilon,
        }


def utility_of(plan: Plan, assumed: Mapping[str, float] | None = None) -> Utility:
    """What the algorithm's theory promises for a plan that was made from a recipe.

    Parameters
    ----------
    plan : made by `make_plan`.
    assumed : constants that are stated rather than derived (`tacit.theory.known.ASSUMABLE`).
    """
    recipe = plan.recipe
    if recipe is None:
        raise RequestError("theory needs a plan that was made from a recipe: use make_plan")
    theory = algorithm_entry(recipe.algorithm).theory
    if theory is None:
        raise RequestError(
            f"the papers have no theorem about {recipe.algorithm!r}; those with one: {', '.join(covered())}"
        )
    run = _planned(plan, check_assumed(dict(assumed or {})))
    guarantee = plan.guarantee
    return Utility(
        algorithm=recipe.algorithm,
        rounds=plan.rounds,
        epsilon=None if guarantee is None else guarantee.epsilon,
        noise_std=run.noise_std,
        bound=theory.bound(run),
        free_epsilon=None if guarantee is None else _free_epsilon(plan, theory, run),
    )


def covered() -> list[str]:
    """The algorithms that a theory covers."""
    from tacit.algorithms.registry import ALGORITHMS

    return [name for name, entry in ALGORITHMS.items() if entry.theory is not None]


def _planned(plan: Plan, assumed: dict[str, float]) -> PlannedRun:
    assert plan.recipe is not None, "checked where the plan came in"
    algorithm, federation = plan.algorithm, plan.federation
    work, sizes = algorithm.work, federation.sizes
    asked, batches = question(plan.recipe, work.model, federation, "none"), work.sampling.batch_sizes(sizes)
    participants = algorithm.participation.divisor(round(asked.mean_cohort or federation.clients))
    stds = torch.zeros(federation.clients, dtype=torch.float64)
    if plan.guarantee is not None:
        shares = algorithm.trust.share(plan.calibration.noise_multipliers, round(participants))
        stds = work.noise_stds(sizes, shares).double()
    return PlannedRun(
        asked=asked,
        noise_std=math.sqrt(float(stds.square().mean())),
        batch=float(batches.min()),
        least_rate=float((batches / sizes).min()),
        batch_variance=batch_variance(work.sampling, sizes),
        participants=float(participants),
        assumed=assumed,
    )


def batch_variance(sampling: Sampling, sizes: torch.Tensor) -> float:
    """E||mean of a batch - mean of the client||^2 for vectors of length 1 at most; its mean over the clients.

    (1 - q)/b for Poisson batches, (m - b)/(b (m - 1)) without replacement, 1/b with it or from a population.

    >>> from tacit.client.sampling import Full, Poisson
    >>> batch_variance(Poisson(0.2), torch.tensor([100])), batch_variance(Full(), torch.tensor([100]))
    (0.04, 0.0)
    """
    records, batches = sizes.double(), sampling.batch_sizes(sizes).double()
    shares = {
        "full": torch.zeros_like(records),
        "poisson": 1 - batches / records,
        "without-replacement": (records - batches) / (records - 1).clamp(min=1),
    }
    return float((shares.get(sampling.name, torch.ones_like(records)) / batches).mean())


def _free_epsilon(plan: Plan, theory: Theory, run: PlannedRun) -> float | None:
    """The epsilon of the noise at which the privacy term equals what sampling costs.

    Rounds, batches and steps stay as they are: the noise is scaled until the terms are equal, and the accountant
    computes the epsilon of the scaled noise.
    """

    def excess(scale: float) -> float:
        bound = theory.bound(replace(run, noise_std=run.noise_std * scale))
        return bound.terms.get("privacy", 0.0) - bound.sampling

    if run.noise_std == 0 or not excess(_MOST) > 0 or excess(_LEAST) > 0:
        return None
    low, high = math.log(_LEAST), math.log(_MOST)
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if excess(math.exp(middle)) > 0 else (middle, high)
    calibration, guarantee, scale = plan.calibration, plan.guarantee, math.exp(low)
    assert guarantee is not None, "asked of runs with a promise only"
    found = max(
        accounting.epsilon(
            calibration.event(replace(group, noise_multiplier=group.noise_multiplier * scale), plan.releases),
            group.target.delta,
            guarantee.adjacency,
        )
        for group in calibration.groups
        if group.target is not None
    )
    return found if math.isfinite(found) else None
