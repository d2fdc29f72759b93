"""The runs of ISRL-DP (Lowy & Razaviyayn 2023), section 6 and appendix I, in both modes and without privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from tacit.algorithms import isrl_dp, shuffled
from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Privacy
from tacit.algorithms.secure_sum import SecureSum, secured
from tacit.algorithms.settings import Settings
from tacit.algorithms.shuffler import Shuffler
from tacit.client.bounds import Bound, ClipNorm
from tacit.client.sampling import Full, OnePass, Sampling, WithoutReplacement, WithReplacement
from tacit.data import load
from tacit.engine.plan import plan
from tacit.engine.workers import Result
from tacit.experiments.experiment import PUBLISHED, SUMMED, TRUE, Scale
from tacit.experiments.simulated import SimulatedRun, as_published, priced, promised, simulated
from tacit.experiments.tuning import evenly, grid
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.models.registry import build_model
from tacit.planning.rehearsal import synthetic_like
from tacit.privacy import Target
from tacit.server.accelerated import Stage
from tacit.server.participation import FixedNumber
from tacit.server.update import Averaged
from tacit.theory.isrl_dp.published_noise import experiment_batch, experiment_noise_std

NO_PRIVACY, AS_LONG = "no privacy", "no privacy, the true mode's rounds"
"""References without privacy: with the paper's rounds, and with the true mode's if these differ."""
MB, LOCAL, FAST, ONE_PASS = "MB-SGD", "Local SGD", "accelerated MB-SGD", "one-pass MB-SGD"
SHUFFLED = "shuffled MB-SGD"
METHODS = (MB, LOCAL, FAST, ONE_PASS, SHUFFLED)
SERIES = (
    (NO_PRIVACY, MB),
    (NO_PRIVACY, LOCAL),
    (AS_LONG, MB),
    (AS_LONG, LOCAL),
    (PUBLISHED, MB),
    (PUBLISHED, LOCAL),
    (TRUE, MB),
    (TRUE, LOCAL),
    (TRUE, FAST),
    (TRUE, ONE_PASS),
    (TRUE, SHUFFLED),
    (SUMMED, MB),
)
TRUE_LOCAL_STEPS = 4
MORE_ROUNDS = (1 / 3, 1, 3)
"""The numbers of rounds that the true mode chooses from, relative to the paper's."""
LARGEST_CHARGE = 64_000.0
"""The largest charge of a patient in the insurance data: treated as public, but only by the planner."""


@dataclass(frozen=True)
class Size:
    """How much of a problem is run."""

    labels: tuple[float, ...]
    rounds: int
    trials: int
    steps: tuple[int, ...]
    """which of the task's steps are tried"""
    clips: tuple[float, ...]
    """tried in the true mode, and as published where the noise depends on the clip norm"""
    records: int | None = None
    """records per silo; all of them by default"""


@dataclass(frozen=True)
class IsrlTask:
    """One of the paper's three problems."""

    data: str
    model: str
    partition: str
    lipschitz: float | None
    """the L of the published noise: 0 for the clip norm, None for twice the longest record"""
    log_steps: dict[str, tuple[float, float]]
    """logarithms of the shortest and the longest step, by method"""
    number_of_steps: int
    """evenly spaced in their logarithm, as in the paper"""
    record_norm: float
    """norm of a typical record, from public facts"""
    full: Size
    quick: Size
    model_settings: dict[str, Any] = field(default_factory=dict)

    def size(self, scale: Scale) -> Size:
        """The size at a scale."""
        return scale.pick(self.quick, self.full)


MNIST = IsrlTask(
    data="mnist",
    model="logistic",
    model_settings={"intercept": False},
    partition="digit-pairs",
    lipschitz=None,
    log_steps={MB: (-6, 0), LOCAL: (-8, -1)},
    number_of_steps=10,
    record_norm=7.0,
    full=Size((0.75, 1.5, 3.0, 6.0, 12.0, 18.0), 35, 20, tuple(range(10)), (1.0, 3.0, 10.0), 1238),
    quick=Size((1.5, 6.0, 18.0), 10, 2, (3, 6, 9), (1.0, 10.0), 300),
)
INSURANCE = IsrlTask(
    data="insurance",
    model="least-squares",
    partition="sorted-target",
    lipschitz=0.0,
    log_steps={MB: (-8, 1), LOCAL: (-10, 0)},
    number_of_steps=10,
    record_norm=3.0,
    full=Size((0.125, 0.25, 0.5, 1.0, 2.0, 3.0), 35, 20, tuple(range(10)), (1e2, 1e4, 1e6, 1e8)),
    quick=Size((0.25, 1.0, 3.0), 35, 2, (4, 5, 6, 7), (1e4, 1e6)),
)
OBESITY = IsrlTask(
    data="obesity",
    model="softmax",
    partition="natural-id:target",
    lipschitz=20.0,
    log_steps={MB: (-7, -1), LOCAL: (-9, -1)},
    number_of_steps=8,
    record_norm=4.0,
    full=Size((0.5, 1.0, 3.0, 6.0, 9.0), 100, 3, tuple(range(8)), (1.0, 3.0, 10.0), 202),
    quick=Size((1.0, 3.0, 9.0), 20, 2, (3, 5, 7), (1.0, 3.0), 202),
)
TASKS = {task.data: task for task in (MNIST, INSURANCE, OBESITY)}


@lru_cache(maxsize=4)
def _federation(
    data: str, clients: int, records: int | None, seed: int, rehearsal: bool, data_dir: Path | None
) -> Federation:
    task = TASKS[data]
    federation = load(
        data,
        clients=clients,
        partition=task.partition,
        data_dir=data_dir,
        seed=seed,
        pca=50 if data == "mnist" else None,
        records_per_client=records,
    )
    if rehearsal:
        return synthetic_like(
            federation, task.record_norm, seed=seed, target_bound=LARGEST_CHARGE, by_target=True
        )
    return federation


def _delta(size: int) -> float:
    return 1 / float(size * size)


def _algorithm(settings: Settings, model: Model, federation: Federation, batch: int) -> Algorithm:
    mode, method, step = settings["mode"], settings["method"], settings["step"]
    smallest, rounds = int(federation.sizes.min()), settings["rounds"]
    bound: Bound = ClipNorm(settings["clip_norm"] or 1.0)
    if method == LOCAL:
        sampling: Sampling = Full() if mode == TRUE else WithReplacement(1)
        steps = TRUE_LOCAL_STEPS if mode == TRUE else batch
        if mode == NO_PRIVACY:
            return isrl_dp.local_sgd(model, sampling=sampling, local_steps=steps, step=step)
        return isrl_dp.noisy_local_sgd(model, bound=bound, sampling=sampling, local_steps=steps, step=step)
    if method == FAST:
        return isrl_dp.accelerated_mb_sgd(
            model,
            bound=bound,
            sampling=Full(),
            stages=(Stage(rounds, 1 / step),),
        )
    if method == SHUFFLED:
        return shuffled.shuffled_mb_sgd(
            model,
            bound=bound,
            # All records, unless that would make a larger silo's messages distinguishable.
            sampling=WithoutReplacement(smallest),
            step=step,
            shuffler=Shuffler(min(settings["cohort"], federation.clients), smallest),
        )
    sampling = OnePass(max(1, smallest // rounds)) if method == ONE_PASS else Full()
    if mode in (PUBLISHED, NO_PRIVACY):
        sampling = WithReplacement(batch)
    if mode == NO_PRIVACY:
        return isrl_dp.mb_sgd(model, sampling=sampling, step=step)
    return isrl_dp.noisy_mb_sgd(model, bound=bound, sampling=sampling, step=step)


def run(settings: Settings, data_dir: Path | None) -> Result:
    """One run of one method in one mode at one label, on its seed's split; rehearsals use synthetic records."""
    task = TASKS[settings["data"]]
    seed, rounds, label = settings["seed"], settings["rounds"], settings["label"]
    split = settings.get("split", seed)
    federation = _federation(
        task.data, settings["clients"], settings["records"], split, settings.get("rehearsal", False), data_dir
    )
    model = build_model(task.model, federation, task.model_settings)
    smallest = int(federation.sizes.min())
    wanted = experiment_batch(records=smallest, rounds=rounds, epsilon=label)
    batch = min(smallest, max(1, math.floor(wanted)))
    if settings["mode"] == PUBLISHED and task.lipschitz != 0:
        longest = float(torch.linalg.vector_norm(federation.features.flatten(1), dim=1).max())
        settings = {**settings, "clip_norm": task.lipschitz or 2 * longest}
    algorithm = _algorithm(settings, model, federation, batch)
    if isinstance(algorithm.server, Averaged):
        # The experiments evaluate the last point.
        algorithm = replace(algorithm, server=algorithm.server.update)
    if settings["cohort"] < federation.clients:
        algorithm = replace(algorithm, participation=FixedNumber(settings["cohort"]))
    if settings["mode"] == SUMMED:
        algorithm = secured(algorithm, SecureSum.of(min(settings["cohort"], federation.clients)))
    privacy: Privacy = "none"
    if settings["mode"] in (TRUE, SUMMED):
        # Behind a shuffler all messages have the same noise: that of the smallest silo's delta.
        together = settings["method"] == SHUFFLED
        epsilon = settings.get("run_epsilon", label)
        privacy = Target(epsilon, _delta(smallest)) if together else promised(epsilon, federation, _delta)
    elif settings["mode"] == PUBLISHED:
        local = settings["method"] == LOCAL

        def multiplier(size: int) -> float:
            std = experiment_noise_std(
                lipschitz=1.0,
                records=size,
                rounds=rounds,
                epsilon=label,
                delta=_delta(size),
                local_steps=batch if local else 1,
            )
            return std if local else std * batch

        privacy = as_published(
            algorithm, federation, rounds=rounds, seed=seed, noise_multiplier=multiplier, delta=_delta
        )
    facts = {
        "batch": batch if settings["mode"] not in (TRUE, SUMMED) else None,
        "scale": _naive_error(federation),
    }
    planned = plan(algorithm, federation, rounds=rounds, privacy=privacy, seed=seed)
    job = SimulatedRun(planned, rounds, facts)
    return priced(job) if settings.get("priced") else simulated(job)


def _naive_error(federation: Federation) -> float:
    """For regression, the error of always predicting the mean training target (relative RMSE); else 1."""
    if federation.classes is not None or federation.test_targets is None:
        return 1.0
    mean = federation.targets.double().mean()
    return float((federation.test_targets.double() - mean).square().mean().sqrt())


def error(result: Result) -> float:
    """The test error: relative RMSE for regression, else the share of wrong answers."""
    if "error" in result:
        return math.inf
    metric = float(result["history"]["test_metric"][-1])
    return metric / float(result["scale"]) if result["settings"]["data"] == "insurance" else 1 - metric


def _steps(task: IsrlTask, method: str, scale: Scale) -> list[float]:
    low, high = task.log_steps[LOCAL if method == LOCAL else MB]
    steps = evenly(math.exp(low), math.exp(high), task.number_of_steps)
    return [steps[k] for k in task.size(scale).steps]


def _base(task: IsrlTask, clients: int, cohort: int, scale: Scale) -> dict[str, Any]:
    size = task.size(scale)
    return {
        "data": task.data,
        "clients": clients,
        "cohort": cohort,
        "rounds": size.rounds,
        "records": size.records,
    }


def rehearsals(task: IsrlTask, clients: int, cohort: int, scale: Scale) -> dict[Any, list[dict[str, Any]]]:
    """For every label, the rounds and clip norms that MB-SGD tries on synthetic records for all methods."""
    size, base = task.size(scale), _base(task, clients, cohort, scale)
    rounds = [round(size.rounds * more) for more in MORE_ROUNDS]
    return {
        label: grid(
            {**base, "mode": TRUE, "method": MB, "label": label},
            rounds=rounds,
            clip_norm=size.clips,
            step=_steps(task, MB, scale)[:: scale.pick(1, 2)],
        )
        for label in size.labels
    }


def grids(
    task: IsrlTask, clients: int, cohort: int, scale: Scale, plans: Mapping[Any, dict[str, Any]]
) -> dict[Any, list[dict[str, Any]]]:
    """For every (label, mode, method), the points that tuning tries: steps, and clip norms if the paper does."""
    size, base = task.size(scale), _base(task, clients, cohort, scale)
    made: dict[Any, list[dict[str, Any]]] = {}
    for mode, method in SERIES:
        if method == SHUFFLED and size.records is not None:
            # Among so few silos of equal size this is MB-SGD again.
            continue
        for label in size.labels:
            if mode == AS_LONG and plans[label]["rounds"] == size.rounds:
                continue
            runs_as = NO_PRIVACY if mode == AS_LONG else mode
            point = {**base, "mode": runs_as, "method": method, "label": label, "clip_norm": None}
            axes: dict[str, Sequence[float]] = {"step": _steps(task, method, scale)}
            if mode == PUBLISHED and task.lipschitz == 0:
                axes["clip_norm"] = size.clips
            plan = plans[label] if mode in (TRUE, SUMMED) else {}
            if mode == AS_LONG:
                plan = {"rounds": plans[label]["rounds"]}
            if method == ONE_PASS:
                # There cannot be more rounds than records.
                plan = {**plan, "rounds": size.rounds}
            made[label, mode, method] = grid(point | plan, **axes)
    return made
