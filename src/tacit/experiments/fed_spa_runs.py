"""The runs of Fed-SPA (Hu et al. 2021; section 5, appendix A.1): 100 agents, ten in a round, delta 1e-3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Privacy
from tacit.algorithms.fed_spa import cpsgd, dp_fed, fed_spa
from tacit.algorithms.fedavg import fedavg
from tacit.algorithms.settings import Settings
from tacit.client.bounds import Bound, ClipEachCoordinate, ClipNorm
from tacit.client.sampling import WithoutReplacement
from tacit.compress import RandK
from tacit.data import load
from tacit.engine.plan import plan
from tacit.engine.workers import Result
from tacit.experiments.cells import Cell, Runner
from tacit.experiments.experiment import PUBLISHED, SUMMED, Scale
from tacit.experiments.simulated import SimulatedRun, as_published, watched
from tacit.federation import Batch, Federation
from tacit.models.model import Model
from tacit.models.registry import build_model
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Target
from tacit.schedules import InverseSqrt
from tacit.server.participation import FixedNumber
from tacit.theory.published.fed_spa import theorem_1_noise_multiplier

NO_PRIVACY, DEFAULTS = "no privacy", "true, defaults"
AT_A_TRUE_EPSILON = (DEFAULTS, SUMMED)
"""Modes that run the defaults' algorithm in place of the paper's (`fed_spa_defaults`)."""
AGENTS, COHORT, DELTA = 100, 10, 1e-3
CLIP_NORM = 1.0
LIMIT_RECORDS = 100
"""The number of records from which the limit on a coordinate is taken, as published."""
CPSGD_BATCH, CPSGD_STEP = 100, 3.0
RATIOS = (0.05, 0.1, 0.4, 1.0)


@dataclass(frozen=True)
class FedSpaTask:
    """The differences between the paper's two data sets."""

    model: str
    batch: int
    step: float
    """step of the adaptive server"""


TASKS = {"mnist": FedSpaTask("mnist-cnn", 10, 0.01), "cifar-10": FedSpaTask("cifar-cnn", 50, 0.005)}

Scheme = tuple[str, str, float]
"""Mode, algorithm, share of the coordinates."""


@lru_cache(maxsize=1)
def federation_of(data: str, data_dir: Path | None) -> Federation:
    """The records of a data set, dealt to the agents."""
    return load(data, clients=AGENTS, partition="iid", data_dir=data_dir)


def _bound(settings: Settings, model: Model, federation: Federation) -> Bound:
    """The bound on a record's gradient. As published it is a limit on every coordinate, taken from the data.

    The limit is the median of the absolute coordinates of some records' gradients at the start. Coordinates that
    are zero are left out: more than half of them are, and a limit of zero would leave nothing. Nothing protects
    this number, so no epsilon covers it.
    """
    if settings["mode"] != PUBLISHED:
        return ClipNorm(CLIP_NORM)
    start = model.init(Randomness(settings["seed"]).generator(Purpose.INIT))
    records = federation.features[:LIMIT_RECORDS], federation.targets[:LIMIT_RECORDS]
    gradients = model.gradients(start, Batch(*records, torch.tensor([LIMIT_RECORDS])))
    sizes = gradients.rows(0, LIMIT_RECORDS).abs()
    return ClipEachCoordinate(float(sizes[sizes > 0].median()))


def _algorithm(settings: Settings, model: Model, bound: Bound) -> Algorithm:
    task, name, steps = TASKS[settings["data"]], settings["algorithm"], settings["local_steps"]
    if name == "cpsgd":
        # One gradient per round, from all agents.
        sampling = WithoutReplacement(CPSGD_BATCH)
        return cpsgd(model, bound=bound, sampling=sampling, step=CPSGD_STEP, schedule=InverseSqrt())
    shared: dict[str, Any] = {
        "sampling": WithoutReplacement(task.batch),
        "local_steps": steps,
        "local_step": settings["local_step"],
        "schedule": InverseSqrt(),
    }
    if name == "fed-spa":
        parts = fed_spa(
            model, bound=bound, compressor=RandK(fraction=settings["ratio"]), step=task.step, **shared
        )
    elif name == "dp-fed":
        parts = dp_fed(model, bound=bound, step=1.0, **shared)
    else:
        parts = fedavg(model, step=shared["local_step"], **shared)
    return replace(parts, participation=FixedNumber(COHORT))


def run(settings: Settings, data_dir: Path | None) -> Result:
    """One run of one algorithm in one mode."""
    task = TASKS[settings["data"]]
    federation = federation_of(settings["data"], data_dir)
    model = build_model(task.model, federation)
    algorithm = _algorithm(settings, model, _bound(settings, model, federation))
    rounds, seed, label = settings["rounds"], settings["seed"], settings["label"]
    privacy: Privacy = "none" if settings["mode"] == NO_PRIVACY else Target(label, DELTA)
    if settings["mode"] == PUBLISHED:
        noise = theorem_1_noise_multiplier(
            epsilon=label,
            delta=DELTA,
            records=int(federation.sizes.min()),
            batch=task.batch,
            # The paper counts the rounds in which an agent takes part on average.
            steps=max(1, round(rounds * COHORT / AGENTS * settings["local_steps"])),
        )
        privacy = as_published(
            algorithm,
            federation,
            rounds=rounds,
            seed=seed,
            noise_multiplier=lambda _: noise,
            delta=lambda _: DELTA,
        )
    every, test = max(1, rounds // settings["evaluations"]), federation.test_batch()
    made = plan(algorithm, federation, rounds=rounds, privacy=privacy, seed=seed)
    return watched(SimulatedRun(made, every), lambda point: model.metric(point, test))


def best(result: Result) -> float:
    """The best accuracy over the evaluated rounds, as in the paper."""
    return 0.0 if "error" in result else max(map(float, result["history"]["seen"]))


def rows_of(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One plain row per run."""
    kept = ("epsilon", "noise_multiplier", "noise_std", "uplink_bits_per_client", "seconds")
    return [
        {**result["settings"], **{name: result.get(name) for name in kept}, "best_accuracy": best(result)}
        for result in results
    ]


def compared(
    runner: Runner, base: Settings, schemes: Sequence[Scheme], labels: Sequence[float], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """The runs of all schemes at these labels, for every seed."""
    points = [
        {**base, "mode": mode, "algorithm": name, "ratio": p, "label": label, "seed": seed}
        for mode, name, p in schemes
        for label in labels
        for seed in seeds
    ]
    return rows_of(runner([Cell(run, point) for point in points]))


def schemes_of(scale: Scale, modes: Sequence[str]) -> list[Scheme]:
    """Fed-SPA at every ratio as published, else at the smallest and largest; DP-Fed in these modes; FedAvg."""
    ratios = scale.pick((0.1, 1.0), RATIOS)
    return [
        *((mode, "fed-spa", p) for mode in modes for p in (ratios if mode == PUBLISHED else (ratios[0], 1.0))),
        *((mode, "dp-fed", 1.0) for mode in modes),
        (NO_PRIVACY, "fedavg", 1.0),
    ]
