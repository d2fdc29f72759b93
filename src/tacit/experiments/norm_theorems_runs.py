"""The runs of `norm-theorems`: DP-NormFedAvg (Das et al. 2022) where its Theorem 4 applies, on quadratics.

The clients are those of the paper's synthetic problem, smaller. Either each has its own minimum ("unlike") or all
have the same ("like", the over-parameterised case). C is the longest update at the start, so that clipping
shortens none; the step is half of the longest that the theorem allows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from tacit.algorithms.fedavg import dp_fedavg, dp_normfedavg
from tacit.algorithms.settings import Settings
from tacit.algorithms.trust import Aggregator
from tacit.engine.plan import plan
from tacit.engine.workers import Result
from tacit.experiments.simulated import SimulatedRun, watched
from tacit.federation import Federation
from tacit.models.quadratic import Quadratic, quadratic_federation, quadratic_minimiser
from tacit.privacy import Adjacency, Target
from tacit.server.participation import PoissonClients
from tacit.theory.norm_fedavg import LocalRuns, clipping_terms, normalising_terms

CLIENTS, DIM, RANK, LOCAL_STEPS, DELTA = 100, 50, 5, 5, 1e-6


class QuadraticClients:
    """The quadratics of one seed, in double precision."""

    def __init__(self, like: bool, seed: int) -> None:
        federation = quadratic_federation(clients=CLIENTS, dim=DIM, rank=RANK, seed=seed)
        features = federation.features.clone()
        if like:
            features[:, :, -1] = features[0, :, -1]
        self.federation: Federation = replace(federation, features=features)
        self.roots = features[:, :, :-1].double()
        self.minima = features[:, :, -1].double()
        self.minimum = quadratic_minimiser(self.federation)
        self.smoothness = float(torch.linalg.matrix_norm(self.roots, 2).square().max())
        self.step = 0.5 / (4 * self.smoothness * LOCAL_STEPS)
        self.clip_norm = float(self.updates(torch.zeros(DIM)).norm(dim=1).max())

    def losses(self, point: Tensor) -> Tensor:
        """f_i(w) of every client; the least of each is 0."""
        return torch.einsum("jdr,jd->jr", self.roots, point.double() - self.minima).square().sum(1) / 2

    def updates(self, point: Tensor) -> Tensor:
        """u_i: the sum of the gradients of the local steps from this point, for every client."""
        points = point.double().expand(CLIENTS, -1)
        total = torch.zeros(CLIENTS, DIM, dtype=torch.float64)
        for _ in range(LOCAL_STEPS):
            inner = torch.einsum("jdr,jd->jr", self.roots, points - self.minima)
            gradients = torch.einsum("jdr,jr->jd", self.roots, inner)
            total, points = total + gradients, points - self.step * gradients
        return total


@lru_cache(maxsize=4)
def problem_of(like: bool, seed: int) -> QuadraticClients:
    """The problem of a seed."""
    return QuadraticClients(like, seed)


def run(settings: Settings, data_dir: Path | None) -> Result:
    """One run: in every round the left-hand side of the theorem, and what the theorem promises for their mean."""
    problem, rounds = problem_of(settings["like"], settings["seed"]), settings["rounds"]
    normalises = settings["bound"] == "normalise"
    algorithm = (dp_normfedavg if normalises else dp_fedavg)(
        Quadratic(DIM, RANK),
        clip_norm=problem.clip_norm,
        local_steps=LOCAL_STEPS,
        step=problem.step,
        trust=Aggregator(float(CLIENTS)),
    )
    algorithm = replace(algorithm, participation=PoissonClients(float(CLIENTS)))
    target = Target(settings["epsilon"], DELTA, Adjacency.ADD_REMOVE)
    planned = plan(algorithm, problem.federation, rounds=rounds, privacy=target, seed=settings["seed"])
    at_minimum = problem.losses(problem.minimum)

    def look(point: Tensor) -> list[float]:
        above = problem.losses(point) - at_minimum
        weights = problem.clip_norm / problem.updates(point).norm(dim=1)
        return [float(above.mean()), float((weights * above).mean()), float((weights * at_minimum).mean())]

    result = watched(SimulatedRun(planned, 1), look)
    seen = torch.tensor(result["history"]["seen"][:-1], dtype=torch.float64).mean(0)
    runs = LocalRuns(
        clients=CLIENTS,
        participants=float(CLIENTS),
        dim=DIM,
        rounds=rounds,
        local_steps=LOCAL_STEPS,
        step=problem.step,
        clip_norm=problem.clip_norm,
        noise_std=result["noise_multiplier"] * problem.clip_norm / CLIENTS,
        smoothness=problem.smoothness,
        distance=float(problem.minimum.norm()),
    )
    gap = float(seen[2]) if normalises else float(at_minimum.mean())
    terms = (normalising_terms if normalises else clipping_terms)(runs, gap=gap)
    return {
        "above": float(seen[0]),
        "left": float(seen[1] if normalises else seen[0]),
        "right": sum(terms.values()),
        "epsilon": result["epsilon"],
        "noise_multiplier": result["noise_multiplier"],
    }
