"""The runs of Table 2 of DP-NormFedAvg (Das et al. 2022), appendices G and H."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.fedavg import dp_fedavg, dp_normfedavg, fedavg
from tacit.algorithms.settings import Settings
from tacit.algorithms.trust import Aggregator
from tacit.client.sampling import Full
from tacit.data import load
from tacit.engine.plan import plan
from tacit.engine.workers import Result
from tacit.experiments.simulated import SimulatedRun, priced, watched
from tacit.federation import Federation
from tacit.models.linear import softmax_regression
from tacit.privacy import Adjacency, Target
from tacit.schedules import parse_schedule
from tacit.server.participation import PoissonClients

DELTA = 1e-5


@lru_cache(maxsize=2)
def _federation(clients: int, seed: int, data_dir: Path | None) -> Federation:
    return load("fashion-mnist", clients=clients, partition="shards:5", data_dir=data_dir, seed=seed)


def _algorithm(settings: Settings, federation: Federation) -> Algorithm:
    step, expected = settings["step"], federation.clients / 5
    shared: dict[str, Any] = {
        "sampling": Full(),
        "local_steps": 20,
        "local_step": step,
        "step": 0.5 * step,
        "schedule": parse_schedule("exponential:0.99"),
        "momentum": 0.8,
    }
    features, classes = federation.feature_shape[0], federation.classes
    assert classes is not None, "labels are whole numbers"
    model = softmax_regression(features=features, classes=classes, ridge=1e-4)
    if settings["bound"] == "none":
        parts = fedavg(model, **shared)
    else:
        make = {"clip": dp_fedavg, "normalise": dp_normfedavg}[settings["bound"]]
        parts = make(model, clip_norm=settings["clip_norm"], trust=Aggregator(expected), **shared)
    return replace(parts, participation=PoissonClients(expected))


def run(settings: Settings, data_dir: Path | None) -> Result:
    """One run."""
    split = settings.get("split", settings["seed"])
    return run_on(_federation(settings["clients"], split, data_dir), settings)


def run_on(federation: Federation, settings: Settings) -> Result:
    """One run on these clients."""
    algorithm, epsilon = _algorithm(settings, federation), settings["epsilon"]
    privacy: Any = "none"
    if epsilon is not None:
        privacy = Target(settings.get("run_epsilon", epsilon), DELTA, Adjacency.ADD_REMOVE)
    planned = plan(algorithm, federation, rounds=settings["rounds"], privacy=privacy, seed=settings["seed"])
    job = SimulatedRun(planned, evaluate_every=1)
    if settings.get("priced"):
        return priced(job)
    return watched(job, lambda point: algorithm.work.model.metric(point, federation.test_batch()))
