"""The runs of SoteriaFL's experiments (papers/000, section 6 and appendix A), in both modes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tacit.algorithms.registry import build_algorithm
from tacit.client.bounds import ClipNorm
from tacit.client.sampling import build_sampling
from tacit.compress import parse_compressor
from tacit.data import load
from tacit.experiments.cells import Result, Settings
from tacit.experiments.experiment import PUBLISHED, TRUE, Scale
from tacit.experiments.simulated import Job, as_published, simulated
from tacit.experiments.tuning import grid
from tacit.federation import Federation
from tacit.models.registry import build_model
from tacit.privacy import Target, calibrate_noise
from tacit.privacy.events import gaussian, poisson, repeated
from tacit.theory.soteriafl import published_noise_std

DELTA = 1e-3
STEPS = (0.01, 0.03, 0.06, 0.1, 0.3, 0.6, 1.0)
RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The sampling rates that the true mode chooses from."""

OF_THE_PAPER = ("ldp-sgd", "ldp-svrg", "cdp-sgd", "soteriafl-sgd", "soteriafl-svrg")
BEYOND = ("soteriafl-gd", "soteriafl-saga")
TRUE_FOR = {
    "ldp-sgd": "ldp-sgd",
    "ldp-svrg": "ldp-sgd",
    "cdp-sgd": "cdp-sgd",
    "soteriafl-sgd": "soteriafl-sgd",
    "soteriafl-svrg": "soteriafl-sgd",
    "soteriafl-gd": "soteriafl-sgd",
    "soteriafl-saga": "soteriafl-sgd",
}
"""What the true mode runs in an algorithm's place: variance reduction needs full batches for its least noise, and
with full batches all estimators are the gradient."""


@dataclass(frozen=True)
class Task:
    """One of the paper's two problems."""

    data: str
    model: str
    records: int
    clip_norm: float
    true_clips: tuple[float, ...]
    labels: dict[float, tuple[int, int]]
    """by label: the batch of SoteriaFL-SGD and the rounds (appendix A, and the authors' code)"""


A9A = Task("a9a", "logistic-nonconvex", 3256, 0.5, (0.5, 2.0), {1.0: (10, 25), 5.0: (51, 100), 10.0: (103, 150)})
NETWORK = Task(
    "mnist",
    "network",
    6000,
    1.0,
    (1.0,),
    {1.0: (128, 150), 2.0: (128, 200), 4.0: (128, 300), 8.0: (128, 500), 16.0: (128, 1000)},
)
TASKS = {"a9a": A9A, "mnist": NETWORK}


@lru_cache(maxsize=1)
def _federation(data: str, data_dir: Path | None) -> Federation:
    return load(data, clients=10, partition="sorted", data_dir=data_dir)


@lru_cache(maxsize=64)
def planned_rate(records: int, rounds: int, epsilon: float) -> float:
    """The smallest sampling rate whose noise on the mean is within 2% of the least: more records buy nothing.

    >>> planned_rate(6000, 150, 1.0)
    0.05
    """
    stds = {}
    for rate in RATES:
        noise = calibrate_noise(
            lambda z, rate=rate: repeated(poisson(rate, z) if rate < 1 else gaussian(z), rounds),  # type: ignore[misc]  # bound
            epsilon=epsilon,
            delta=DELTA,
        )
        stds[rate] = noise / (rate * records)
    return next(rate for rate in RATES if stds[rate] <= 1.02 * min(stds.values()))


def _batch(task: Task, algorithm: str, label: float) -> tuple[str, float | None]:
    """How records are drawn as published: Corollary 2's batch for variance reduction, everything for GD."""
    if algorithm.endswith("-gd"):
        return "full", None
    if algorithm.endswith(("svrg", "saga")):
        return "poisson", math.floor(task.records ** (2 / 3) / 4)
    return "poisson", task.labels[label][0]


def run(settings: Settings, data_dir: Path | None) -> Result:
    """One run of one algorithm in one mode at one label."""
    task, algorithm_name, label = TASKS[settings["data"]], settings["algorithm"], settings["label"]
    federation = _federation(task.data, data_dir)
    model = build_model(task.model, federation)
    rounds, clip = settings["rounds"], settings["clip_norm"]
    if settings["mode"] == PUBLISHED:
        sampling_name, batch = _batch(task, algorithm_name, label)
    else:
        rate = planned_rate(task.records, rounds, label)
        sampling_name, batch = ("poisson", rate) if rate < 1 else ("full", None)
    sampling = build_sampling(sampling_name, batch)
    drawn = float(sampling.batch_sizes(federation.sizes).max())
    algorithm = build_algorithm(
        algorithm_name,
        model,
        {
            "bound": ClipNorm(clip),
            "sampling": sampling,
            "compressor": parse_compressor("rand-k:0.05"),
            "step": settings["step"],
            "shift_step": None,
            # Corollary 2.
            "snapshot_probability": min(drawn / task.records, 1 / (8 * math.sqrt(drawn))),
        },
    )
    privacy: Any = Target(label, DELTA)
    if settings["mode"] == PUBLISHED:

        def multiplier(size: int) -> float:
            std = published_noise_std(
                algorithm_name, gradient_bound=1.0, records=size, rounds=rounds, epsilon=label, delta=DELTA
            )
            return std * sampling.rate(size) * size

        privacy = as_published(
            algorithm,
            federation,
            rounds=rounds,
            seed=settings["seed"],
            noise_multiplier=multiplier,
            delta=lambda _: DELTA,
        )
    every = max(1, rounds // settings["evaluations"])
    return simulated(Job(algorithm, federation, rounds, privacy, settings["seed"], every, {"batch": drawn}))


def grids(task: Task, labels: tuple[float, ...], scale: Scale) -> dict[Any, list[dict[str, Any]]]:
    """For every (label, mode, algorithm) the points that tuning tries."""
    network = task is NETWORK
    steps = scale.pick((0.3,) if network else (0.06, 0.3), STEPS)
    shrink = scale.pick(10 if network else 2, 1)
    algorithms = OF_THE_PAPER if scale.quick else (*OF_THE_PAPER, *BEYOND)
    made: dict[Any, list[dict[str, Any]]] = {}
    for label in labels:
        rounds = max(task.labels[label][1] // shrink, 10)
        base = {
            "data": task.data,
            "label": label,
            "rounds": rounds,
            "evaluations": scale.pick(5, 25) if network else rounds,
        }
        for name in algorithms:
            point = {**base, "mode": PUBLISHED, "algorithm": name}
            made[label, PUBLISHED, name] = grid(point, step=steps, clip_norm=[task.clip_norm])
        for name in dict.fromkeys(TRUE_FOR[name] for name in algorithms):
            point = {**base, "mode": TRUE, "algorithm": name}
            made[label, TRUE, name] = grid(point, step=steps, clip_norm=task.true_clips)
    return made
