"""DP-NormFedAvg (papers/004), Table 2(b, c): clipping against normalising on features that the user provides.

The paper's are 512 numbers an image from the last layer of a network that was trained on ImageNet: 5000 clients
of five-class shards, softmax regression, otherwise as Table 2(a). They are read from an .npz file, no pickle.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.fedavg import dp_fedavg, dp_normfedavg, fedavg
from tacit.algorithms.trust import Aggregator
from tacit.client.sampling import Full
from tacit.data import parse_partition
from tacit.data.files import read_arrays
from tacit.errors import DataError
from tacit.experiments.cells import Result, Runner, Settings
from tacit.experiments.experiment import Claim, Experiment, Findings, Scale, Table, no_larger
from tacit.experiments.intervals import mean_and_interval
from tacit.experiments.provided import provided
from tacit.experiments.simulated import Job, watched
from tacit.experiments.tuning import grid, tuned
from tacit.federation import Federation
from tacit.models.linear import softmax_regression
from tacit.privacy import Adjacency, Target
from tacit.schedules import parse_schedule
from tacit.server.participation import PoissonClients

FILE = "features.npz"
ARRAYS = ("train_features", "train_labels", "test_features", "test_labels")
DELTA, CLIENTS, ROUNDS = 1e-5, 5000, 100
CLIPS = (500.0, 250.0, 125.0, 62.5, 31.25, 15.625)
STEPS = (0.001, 0.002, 0.004, 0.008, 0.01, 0.02, 0.04, 0.08, 0.1, 0.2, 0.4, 0.8)
PRINTED = {
    "cifar-10-features": {
        ("clip", 5.0): 0.8263,
        ("clip", 2.0): 0.8164,
        ("normalise", 5.0): 0.8421,
        ("normalise", 2.0): 0.8253,
        ("none", None): 0.8564,
    },
    "cifar-100-features": {
        ("clip", 5.0): 0.5653,
        ("clip", 2.0): 0.4169,
        ("normalise", 5.0): 0.5936,
        ("normalise", 2.0): 0.4312,
        ("none", None): 0.6461,
    },
}
"""The paper's accuracies."""


def read_features(path: Path) -> dict[str, NDArray[Any]]:
    """The four arrays of the file: features (records, d), labels 0, 1, ... (records,), to train and to test."""
    arrays = dict(zip(ARRAYS, read_arrays(path, ARRAYS), strict=True))
    for part in ("train", "test"):
        features, labels = arrays[f"{part}_features"], arrays[f"{part}_labels"]
        if features.ndim != 2 or labels.shape != features.shape[:1] or labels.dtype.kind not in "iu":
            raise DataError(
                f"{path}: {part}_features must be (records, d) and {part}_labels (records,) of whole numbers, "
                f"not {features.shape} {features.dtype} and {labels.shape} {labels.dtype}"
            )
    return arrays


@lru_cache(maxsize=1)
def _federation(folder: str, clients: int, seed: int, data_dir: Path | None) -> Federation:
    arrays = read_features(_file(folder, data_dir))
    parts = parse_partition("shards:5").split(arrays["train_labels"], clients, np.random.default_rng(seed))
    test = (arrays["test_features"], arrays["test_labels"])
    return Federation.from_arrays(arrays["train_features"], arrays["train_labels"], parts, test=test, name=folder)


def _file(folder: str, data_dir: Path | None) -> Path:
    what = f"an image's features and label, as arrays {', '.join(ARRAYS)} (np.savez),"
    return provided(folder, FILE, data_dir, what)


def _algorithm(settings: Settings, federation: Federation) -> Algorithm:
    step, expected = settings["step"], federation.clients / 5
    shared: dict[str, Any] = {
        "sampling": Full(),
        "local_steps": 20,
        "local_step": step,
        "step": 0.5 * step,
        "schedule": parse_schedule("exponential:0.99"),
        "momentum": 0.8,
        "output": lambda update: update,
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
    federation = _federation(settings["folder"], settings["clients"], settings["seed"], data_dir)
    algorithm, epsilon = _algorithm(settings, federation), settings["epsilon"]
    privacy: Any = "none" if epsilon is None else Target(epsilon, DELTA, Adjacency.ADD_REMOVE)
    rounds, model = settings["rounds"], algorithm.work.model
    job = Job(algorithm, federation, rounds, privacy, settings["seed"], max(1, rounds // 20))
    return watched(job, lambda point: model.metric(point, federation.test_batch()))


def _accuracy(result: Result) -> float:
    return float("-inf") if "error" in result else float(result["history"]["seen"][-1])


def _table(folder: str, runner: Runner, scale: Scale) -> Findings:
    records = len(read_features(_file(folder, runner.data_dir))["train_labels"])
    clients, seeds = min(scale.pick(500, CLIENTS), records // 5), scale.trials(1, 3)
    clips, steps = scale.pick((31.25, 125.0), CLIPS), scale.pick((0.04, 0.2), STEPS)
    base = {"folder": folder, "clients": clients, "rounds": scale.pick(10, ROUNDS)}
    grids: dict[Any, list[dict[str, Any]]] = {
        (bound, epsilon): grid({**base, "bound": bound, "epsilon": epsilon}, step=steps, clip_norm=clips)
        for epsilon in (5.0, 2.0)
        for bound in ("clip", "normalise")
    }
    grids["none", None] = grid({**base, "bound": "none", "epsilon": None, "clip_norm": None}, step=steps)
    found: dict[Any, list[Result]] = tuned(
        runner, run, grids, tuning_seeds=seeds[:1], seeds=seeds, score=lambda result: -_accuracy(result)
    )
    lines = tuple(
        (
            epsilon,
            bound,
            results[0]["settings"]["clip_norm"],
            results[0]["settings"]["step"],
            *mean_and_interval([_accuracy(result) for result in results]),
            PRINTED[folder][bound, epsilon],
        )
        for (bound, epsilon), results in found.items()
    )
    means = {key: fmean(map(_accuracy, results)) for key, results in found.items()}
    decided = [e for e in (5.0, 2.0) if {("normalise", e), ("clip", e)} <= means.keys()]
    pairs = [(e, means["normalise", e], means["clip", e]) for e in decided]
    columns = ("epsilon", "bound", "C", "step", "accuracy", "half of the 90% interval", "paper")
    return Findings(
        [{**one["settings"], "test_accuracy": _accuracy(one)} for results in found.values() for one in results],
        (),
        (Table("Test accuracy", columns, lines),),
        (
            Claim(
                "Normalising is more accurate than clipping (paper, Table 2).",
                no_larger([(b, a) for _, a, b in pairs]),
                "; ".join(f"epsilon {e:g}: {a:.4f} against {b:.4f}" for e, a, b in pairs),
            ),
        ),
        (
            "The features are the user's own; the paper's come from a network that is not distributed with it.",
            f"The paper does not say how many rounds there were: {base['rounds']} here. Local steps are full "
            "gradients. Clients take part by secret coins.",
            "The accuracy is that of the last round, not the mean of the last five.",
            *((f"Quick: {clients} clients, few clip norms and steps.",) if scale.quick else ()),
        ),
        {"clients": clients, "rounds": base["rounds"], "delta": DELTA, "seeds": seeds},
        tuned=True,
    )


EXPERIMENTS = tuple(
    Experiment(
        f"norm-table2{letter}",
        f"Clipping and normalising on features of {data}",
        f"papers/004 (Das, Hashemi, Sanghavi & Dhillon), Table 2({letter})",
        partial(_table, f"{data}-features"),
        f"{data}-features",
    )
    for letter, data in (("b", "cifar-10"), ("c", "cifar-100"))
)
