"""The runs of the quadratic of DP-NormFedAvg (Das et al. 2022), appendix F."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.fedavg import dp_fedavg, dp_normfedavg
from tacit.algorithms.settings import Settings
from tacit.algorithms.trust import Aggregator
from tacit.engine.objective import objective
from tacit.engine.plan import plan
from tacit.engine.workers import Result
from tacit.experiments.simulated import SimulatedRun, simulated, watched
from tacit.federation import Federation
from tacit.models.quadratic import Quadratic, quadratic_federation, quadratic_minimiser
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Adjacency, Target
from tacit.server.participation import PoissonClients

TARGET = Target(5.0, 1e-6, Adjacency.ADD_REMOVE)
CLIENTS, DIM, LOCAL_STEPS = 100, 200, 20
STARTS = {"I1": 1.0, "I2": 0.2}
"""The length of the uniform vector from the minimum to the start."""


@lru_cache(maxsize=4)
def _problem(start: str, seed: int) -> tuple[Federation, Tensor]:
    """The quadratic, shifted so that the paper's start is at zero, and its minimum."""
    federation = quadratic_federation(clients=CLIENTS, dim=DIM, rank=20, seed=seed)
    minimum = quadratic_minimiser(federation)
    uniform = Randomness(seed).generator(Purpose.INIT).random(DIM)
    away = STARTS[start] * torch.from_numpy(uniform)
    features = federation.features.double().clone()
    features[:, :, -1] -= minimum + away
    return replace(federation, features=features.float()), -away.float()


def _algorithm(settings: Settings) -> Algorithm:
    make = {"clip": dp_fedavg, "normalise": dp_normfedavg}[settings["bound"]]
    parts = make(
        Quadratic(DIM, 20),
        clip_norm=settings["clip_norm"],
        local_steps=LOCAL_STEPS,
        step=settings["step"],
        trust=Aggregator(float(CLIENTS)),
    )
    return replace(parts, participation=PoissonClients(float(CLIENTS)))


def run(settings: Settings, data_dir: Path | None) -> Result:
    """One run: the distance of the loss from its minimum, and the signal-to-noise ratio."""
    federation, minimum = _problem(settings["start"], settings["seed"])
    algorithm = _algorithm(settings)
    least = float(objective(algorithm.work.model, minimum, federation)[0])
    rounds = settings["rounds"]
    planned = plan(algorithm, federation, rounds=rounds, privacy=TARGET, seed=settings["seed"])
    return simulated(SimulatedRun(planned, max(1, rounds // 25), {"least": least}))


def walk(settings: Settings, data_dir: Path | None) -> Result:
    """One run: the point after every few rounds, relative to the minimum."""
    federation, minimum = _problem(settings["start"], settings["seed"])
    rounds = settings["rounds"]
    planned = plan(_algorithm(settings), federation, rounds=rounds, privacy=TARGET, seed=settings["seed"])
    return watched(SimulatedRun(planned, max(1, rounds // 100)), lambda point: (point - minimum).tolist())
