"""Runs of Fed-SPA (papers/002, section 5, appendix A.1): 100 agents, ten in a round, delta 1e-3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Privacy, attendance, releases
from tacit.algorithms.fed_spa import cpsgd, dp_fed, fed_spa
from tacit.algorithms.fedavg import fedavg
from tacit.client.bounds import ClipNorm
from tacit.client.sampling import WithoutReplacement
from tacit.compress import RandK
from tacit.data import load
from tacit.experiments.cells import Cell, Result, Runner, Settings
from tacit.experiments.experiment import PUBLISHED, TRUE, Claim, Scale, Table, no_larger
from tacit.experiments.simulated import Job, as_published, watched
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.models.registry import build_model
from tacit.noise.randomness import Randomness
from tacit.privacy import Target
from tacit.schedules import InverseSqrt
from tacit.server.participation import FixedNumber
from tacit.theory.published.fed_spa import theorem_1_noise_multiplier

NO_PRIVACY, SAME_BATCHES = "no privacy", "true, the paper's batches"
AGENTS, COHORT, DELTA = 100, 10, 1e-3
CLIP_NORM = 1.0
CPSGD_BATCH, CPSGD_STEP = 100, 3.0
FEWER_STEPS = 10
"""By so much the true mode has larger batches and fewer local steps: the same gradients, far less noise."""

RATIOS = (0.05, 0.1, 0.4, 1.0)


@dataclass(frozen=True)
class Task:
    """What differs between the paper's two data sets."""

    model: str
    batch: int
    step: float
    """of the adaptive server"""


TASKS = {"mnist": Task("mnist-cnn", 10, 0.01), "cifar-10": Task("cifar-cnn", 50, 0.005)}

Scheme = tuple[str, str, float]
"""Mode, algorithm, share of the coordinates."""


@lru_cache(maxsize=1)
def federation_of(data: str, data_dir: Path | None) -> Federation:
    """The records of a data set, dealt out to the agents."""
    return load(data, clients=AGENTS, partition="iid", data_dir=data_dir)


def _algorithm(settings: Settings, model: Model) -> Algorithm:
    task, name, steps = TASKS[settings["data"]], settings["algorithm"], settings["local_steps"]
    batch, bound = task.batch, ClipNorm(CLIP_NORM)
    if settings["mode"] == TRUE:
        steps, batch = max(1, steps // FEWER_STEPS), batch * FEWER_STEPS
    if name == "cpsgd":
        # One gradient a round, of everyone.
        sampling = WithoutReplacement(CPSGD_BATCH)
        return cpsgd(model, bound=bound, sampling=sampling, step=CPSGD_STEP, schedule=InverseSqrt())
    shared: dict[str, Any] = {
        "sampling": WithoutReplacement(batch),
        "local_steps": steps,
        # As far in a round as the paper goes.
        "local_step": settings["local_step"] * settings["local_steps"] / steps,
        "schedule": InverseSqrt(),
    }
    if name == "fed-spa":
        parts = fed_spa(
            model, bound=bound, compressor=RandK(fraction=settings["ratio"]), step=task.step, **shared
        )
    elif name == "dp-fed":
        parts = dp_fed(model, bound=bound, step=1.0, **shared)
    else:
        parts = fedavg(model, step=shared["local_step"], momentum=0.0, output=lambda update: update, **shared)
    return replace(parts, participation=FixedNumber(COHORT))


def run(settings: Settings, data_dir: Path | None) -> Result:
    """One run of one algorithm in one mode."""
    task, federation = TASKS[settings["data"]], federation_of(settings["data"], data_dir)
    algorithm = _algorithm(settings, build_model(task.model, federation))
    rounds, seed, label = settings["rounds"], settings["seed"], settings["label"]
    privacy: Privacy = "none" if settings["mode"] == NO_PRIVACY else Target(label, DELTA)
    if settings["mode"] == PUBLISHED:
        times = releases(algorithm, attendance(algorithm, federation, rounds, Randomness(seed)))
        noise = theorem_1_noise_multiplier(
            epsilon=label,
            delta=DELTA,
            records=int(federation.sizes.min()),
            batch=task.batch,
            steps=times * settings["local_steps"],
        )
        privacy = as_published(
            algorithm,
            federation,
            rounds=rounds,
            seed=seed,
            noise_multiplier=lambda _: noise,
            delta=lambda _: DELTA,
        )
    every, test, model = max(1, rounds // settings["evaluations"]), federation.test_batch(), algorithm.work.model
    job = Job(algorithm, federation, rounds, privacy, seed, every)
    return watched(job, lambda point: model.metric(point, test))


def best(result: Result) -> float:
    """The best accuracy over the evaluated rounds, as the paper counts."""
    return 0.0 if "error" in result else max(map(float, result["history"]["seen"]))


def rows_of(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One plain row a run."""
    kept = ("epsilon", "noise_multiplier", "noise_std", "uplink_bits_per_client", "seconds")
    return [
        {**result["settings"], **{name: result.get(name) for name in kept}, "best_accuracy": best(result)}
        for result in results
    ]


def compared(
    runner: Runner, base: Settings, schemes: Sequence[Scheme], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """The runs of all schemes at epsilon 1, every seed."""
    points = [
        {**base, "mode": mode, "algorithm": name, "ratio": p, "label": 1.0, "seed": seed}
        for mode, name, p in schemes
        for seed in seeds
    ]
    return rows_of(runner([Cell(run, point) for point in points]))


def schemes_of(scale: Scale, modes: Sequence[str]) -> list[Scheme]:
    """Fed-SPA at every ratio and DP-Fed in these modes, and FedAvg."""
    ratios = scale.pick((0.1, 1.0), RATIOS)
    return [
        *((mode, "fed-spa", p) for mode in modes for p in ratios),
        *((mode, "dp-fed", 1.0) for mode in modes),
        (NO_PRIVACY, "fedavg", 1.0),
    ]


def table_of(
    caption: str,
    rows: Sequence[dict[str, Any]],
    schemes: Sequence[Scheme],
    printed: Mapping[tuple[str, float], float],
) -> tuple[Table, dict[Scheme, float]]:
    """A line a scheme, with what it costs in bytes; and the schemes' mean accuracies."""
    lines, means = [], {}
    for scheme in schemes:
        own = [row for row in rows if (row["mode"], row["algorithm"], row["ratio"]) == scheme]
        mode, name, p = scheme
        means[scheme] = fmean(row["best_accuracy"] for row in own)
        bits = own[0]["uplink_bits_per_client"]
        lines.append(
            (p, name, mode, own[0]["epsilon"], means[scheme], printed.get((name, p)), bits and bits / 8e6)
        )
    columns = ("p", "algorithm", "mode", "real epsilon", "accuracy", "paper", "MB a client")
    return Table(caption, columns, tuple(lines)), means


def promise(rows: Sequence[dict[str, Any]]) -> Claim:
    """Whether the true mode keeps up with the published one, scheme by scheme."""

    def mean(row: dict[str, Any], mode: str) -> float:
        same = ("algorithm", "ratio", "label")
        return fmean(r["best_accuracy"] for r in rows if r["mode"] == mode and all(r[k] == row[k] for k in same))

    published = [row for row in rows if row["mode"] == PUBLISHED and row["seed"] == 0]
    pairs = [(row, mean(row, TRUE), mean(row, PUBLISHED)) for row in published]
    return Claim(
        "At the epsilon that the paper claims, the true mode is at least as accurate as the published mode at "
        "its real epsilon.",
        no_larger([(theirs, ours) for _, ours, theirs in pairs]),
        "; ".join(
            f"{row['algorithm']} p {row['ratio']:g}, label {row['label']:g}: {ours:.4f} against {theirs:.4f} at "
            f"a real epsilon of {row['epsilon']:.3g}"
            for row, ours, theirs in pairs
        ),
    )


def departures(scale: Scale, quick: str) -> tuple[str, ...]:
    """What is other than in the paper, here and there."""
    return (
        "Every record's gradient is clipped to norm 1, and on the coordinates that Fed-SPA keeps to the square "
        "root of their share of it. The paper clips every coordinate to a median that it takes from the data "
        "unprotected.",
        "As published: the noise of Theorem 1 at its best order, as printed (7), for the rounds in which the "
        "busiest agent takes part; batches without replacement.",
        f"True: batches {FEWER_STEPS} times as large and {FEWER_STEPS} times fewer, longer local steps: the same "
        "number of gradients and the same way in a round.",
        "Accuracy is on the whole test set, the best of the evaluated rounds.",
        *((quick,) if scale.quick else ()),
    )
