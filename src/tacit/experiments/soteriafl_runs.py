"""The runs of the experiments of SoteriaFL (Li et al. 2022; section 6 and appendix A), in all modes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tacit.algorithms.registry import algorithm_entry, build_algorithm
from tacit.algorithms.secure_sum import SecureSum, secured
from tacit.algorithms.settings import About, Settings
from tacit.client.sampling import build_sampling
from tacit.compress.uplink import Uplink
from tacit.data import load
from tacit.engine.batches import thrifty_rate
from tacit.engine.plan import plan
from tacit.engine.workers import Result
from tacit.experiments.experiment import PUBLISHED, SUMMED, TRUE, Scale
from tacit.experiments.simulated import SimulatedRun, as_published, priced, simulated
from tacit.experiments.tuning import grid
from tacit.federation import Federation
from tacit.models.registry import build_model
from tacit.planning.rehearsal import synthetic_like
from tacit.privacy import Target
from tacit.theory.soteriafl import published_noise_std

DELTA = 1e-3
CLIENTS = 10
TRUST = SecureSum.of(CLIENTS)
"""Under secure sums, two clients may vanish and two may help the server."""
STEPS = (0.01, 0.03, 0.06, 0.1, 0.3, 0.6, 1.0)
OF_THE_PAPER = ("ldp-sgd", "ldp-svrg", "cdp-sgd", "soteriafl-sgd", "soteriafl-svrg")
ALGORITHMS = (*OF_THE_PAPER, "soteriafl-gd", "soteriafl-saga")
REHEARSED = "soteriafl-sgd"
"""The algorithm that the planner tries; the others use its rounds and clip norm."""
TAKES_STEP_OF = {"soteriafl-svrg": "soteriafl-sgd"}
"""On the network, where searches are dear, SVRG takes the step that was found for SGD at the same epsilon: in the
same mode, both estimate the same gradient with nearly the same noise."""


@dataclass(frozen=True)
class SoteriaTask:
    """One of the paper's two problems."""

    data: str
    model: str
    records: int
    clip_norm: float
    true_clips: tuple[float, ...]
    """the clip norms that the true mode chooses from"""
    more_rounds: tuple[int, ...]
    """the numbers of rounds that the true mode chooses from, relative to the paper's"""
    record_norm: float
    """norm of a typical record, from public facts: 14 attributes are 1; a digit's ink"""
    labels: dict[float, tuple[int, int]]
    """the batch of SoteriaFL-SGD and the rounds, by label (appendix A, and the authors' code)"""
    algorithms: tuple[str, ...] = ALGORITHMS
    """what is run as published"""
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """what is run at a true epsilon in place of an algorithm whose runs would take too long"""


A9A = SoteriaTask(
    "a9a",
    "logistic-nonconvex",
    3256,
    0.5,
    (0.5, 1.0, 2.0),
    (1, 2, 4),
    math.sqrt(14),
    {1.0: (10, 25), 5.0: (51, 100), 10.0: (103, 150)},
)
NETWORK = SoteriaTask(
    "mnist",
    "network",
    6000,
    1.0,
    (1.0, 2.0),
    (1, 2),
    9.0,
    {1.0: (128, 150), 2.0: (128, 200), 4.0: (128, 300), 8.0: (128, 500), 16.0: (128, 1000)},
    OF_THE_PAPER,
    {"ldp-svrg": "ldp-sgd"},
)
TASKS = {"a9a": A9A, "mnist": NETWORK}


@lru_cache(maxsize=1)
def _federation(data: str, data_dir: Path | None, rehearsal: bool) -> Federation:
    federation = load(data, clients=CLIENTS, partition="sorted", data_dir=data_dir)
    if rehearsal:
        return synthetic_like(federation, TASKS[data].record_norm, seed=0, by_target=True)
    return federation


def _batch(task: SoteriaTask, algorithm: str, label: float) -> tuple[str, float | None]:
    """How records are drawn as published: the batches of Corollaries 2 and 3 for SVRG and SAGA, all for GD."""
    if algorithm.endswith("-gd"):
        return "full", None
    if algorithm.endswith("svrg"):
        return "poisson", math.floor(task.records ** (2 / 3) / 4)
    if algorithm.endswith("saga"):
        return "poisson", math.floor(3 * task.records ** (2 / 3))
    return "poisson", task.labels[label][0]


def run(settings: Settings, data_dir: Path | None) -> Result:
    """One run of one algorithm in one mode at one label; rehearsals use synthetic records."""
    task, algorithm_name, label = TASKS[settings["data"]], settings["algorithm"], settings["label"]
    federation = _federation(task.data, data_dir, settings.get("rehearsal", False))
    model = build_model(task.model, federation)
    rounds, clip = settings["rounds"], settings["clip_norm"]
    if settings["mode"] == PUBLISHED:
        sampling_name, batch = _batch(task, algorithm_name, label)
    elif algorithm_name.endswith("-gd"):
        sampling_name, batch = "full", None
    else:
        # The same batches for all estimators. SVRG and SAGA then need up to a fifth more noise than SGD.
        rate = thrifty_rate(task.records, rounds, Target(label, DELTA))
        sampling_name, batch = ("poisson", rate) if rate < 1 else ("full", None)
    sampling = build_sampling(sampling_name, batch)
    drawn = float(sampling.batch_sizes(federation.sizes).max())
    own = {
        "clip_norm": clip,
        "sampling": sampling_name,
        "batch": batch,
        "compressor": "rand-k:0.05",
        "step": settings["step"],
        # Corollary 2.
        "snapshot_probability": min(drawn / task.records, 1 / (8 * math.sqrt(drawn))),
    }
    taken = {name: value for name, value in own.items() if name in algorithm_entry(algorithm_name).settings}
    algorithm = build_algorithm(algorithm_name, model, taken, About(federation, rounds))
    if settings["mode"] == SUMMED:
        algorithm = secured(algorithm, TRUST)
    privacy: Any = Target(settings.get("run_epsilon", label), DELTA)
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
    every = max(1, rounds // (settings["evaluations"] or rounds))
    planned = plan(algorithm, federation, rounds=rounds, privacy=privacy, seed=settings["seed"])
    facts = {"batch": drawn, "payload_bits": _payload_bits(planned.algorithm.uplink, model.dim)}
    job = SimulatedRun(planned, every, facts, hopeless_above=settings.get("hopeless_above"))
    return priced(job) if settings.get("priced") else simulated(job)


def _payload_bits(uplink: Uplink, dim: int) -> float:
    """The bits of a message's values, without the seed of their coordinates and without the envelope."""
    return uplink.compressor.kept(dim) * uplink.bits


def _steps(task: SoteriaTask, scale: Scale) -> tuple[float, ...]:
    return scale.pick((0.3,) if task is NETWORK else (0.06, 0.3), STEPS)


def _base(task: SoteriaTask, label: float, scale: Scale) -> dict[str, Any]:
    shrink = scale.pick(10 if task is NETWORK else 2, 1)
    return {"data": task.data, "label": label, "rounds": max(task.labels[label][1] // shrink, 10)}


def shown(task: SoteriaTask) -> dict[str, Any]:
    """Overrides for the runs that are shown: evaluate every round, if that is cheap.

    Otherwise twenty times: a message has a twentieth of the coordinates, so the evaluated rounds include the one
    that the whole run's bits would pay for without compression.
    """
    return {"evaluations": 20 if task is NETWORK else None}


def rehearsals(task: SoteriaTask, labels: Sequence[float], scale: Scale) -> dict[Any, list[dict[str, Any]]]:
    """For every label, the rounds and clip norms that one algorithm tries on synthetic records for all."""
    made: dict[Any, list[dict[str, Any]]] = {}
    steps = _steps(task, scale)
    for label in labels:
        base = {**_base(task, label, scale), "mode": TRUE, "evaluations": scale.pick(5, 10)}
        rounds = [base["rounds"] * more for more in task.more_rounds]
        made[label] = grid(
            {**base, "algorithm": REHEARSED},
            rounds=rounds,
            clip_norm=task.true_clips,
            step=scale.pick(steps, steps[2::2]),
        )
    return made


def grids(
    task: SoteriaTask, labels: Sequence[float], scale: Scale, plans: Mapping[Any, Settings]
) -> dict[Any, list[dict[str, Any]]]:
    """For every (label, mode, algorithm), the points that tuning tries: steps, with the planned rest if true."""
    made: dict[Any, list[dict[str, Any]]] = {}
    for label in labels:
        base = _base(task, label, scale)
        for name in task.algorithms:
            published = {**base, "mode": PUBLISHED, "algorithm": name, "clip_norm": task.clip_norm}
            made[label, PUBLISHED, name] = [published]
        for name in dict.fromkeys(task.stand_ins.get(name, name) for name in task.algorithms):
            for mode in (TRUE, SUMMED):
                made[label, mode, name] = [{**base, "mode": mode, "algorithm": name, **plans[label]}]
    steps = _steps(task, scale)
    return {key: grid({**point, "evaluations": scale.pick(5, 20)}, step=steps) for key, (point,) in made.items()}
