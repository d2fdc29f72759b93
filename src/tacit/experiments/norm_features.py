"""DP-NormFedAvg (Das et al. 2022), Table 2(b, c): clipping against normalising on a user's own features.

The paper's features are 512 numbers per image, from the last layer of a network trained on ImageNet: 5000 clients
of five-class shards, softmax regression, otherwise as Table 2(a). They are read from an .npz file without pickle.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.algorithms.settings import Settings
from tacit.data import parse_partition
from tacit.data.files import read_arrays
from tacit.engine.workers import Result
from tacit.errors import DataError
from tacit.experiments.cells import Runner
from tacit.experiments.charged import cost_table
from tacit.experiments.experiment import Experiment, Findings, Scale
from tacit.experiments.norm_table import (
    CLIPS,
    NEIGHBOURS,
    ROUNDS,
    STEPS,
    accuracy,
    accuracy_table,
    better,
    compared,
)
from tacit.experiments.norm_table_runs import DELTA, run_on
from tacit.experiments.provided import provided
from tacit.experiments.simulated import taken_as_public
from tacit.federation import Federation

FILE = "features.npz"
ARRAYS = ("train_features", "train_labels", "test_features", "test_labels")
CLIENTS = 5000
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
    """The arrays of the file: features (records, d) and labels 0, 1, ... (records,) for training and test."""
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
def _federation(folder: str, digest: str, clients: int, seed: int, data_dir: Path | None) -> Federation:
    arrays = read_features(_file(folder, data_dir))
    parts = parse_partition("shards:5").split(arrays["train_labels"], clients, np.random.default_rng(seed))
    test = (arrays["test_features"], arrays["test_labels"])
    return Federation.from_arrays(arrays["train_features"], arrays["train_labels"], parts, test=test, name=folder)


def _file(folder: str, data_dir: Path | None) -> Path:
    what = f"an image's features and label, as arrays {', '.join(ARRAYS)} (np.savez),"
    return provided(folder, FILE, data_dir, what)


def run(settings: Settings, data_dir: Path | None) -> Result:
    """One run."""
    split = settings.get("split", settings["seed"])
    federation = _federation(settings["folder"], settings["digest"], settings["clients"], split, data_dir)
    return run_on(federation, settings)


def _table(folder: str, runner: Runner, scale: Scale) -> Findings:
    records = len(read_features(_file(folder, runner.data_dir))["train_labels"])
    clients, seeds = min(scale.pick(500, CLIENTS), records // 5), scale.trials(1, 3)
    clips, steps = scale.pick((31.25, 125.0), CLIPS), scale.pick((0.04, 0.2), STEPS)
    # Other features make other runs.
    digest = hashlib.sha256(_file(folder, runner.data_dir).read_bytes()).hexdigest()
    base = {"folder": folder, "digest": digest, "clients": clients, "rounds": scale.pick(10, ROUNDS)}
    charge = scale.charge_tuning
    found = compared(runner, run, base, seeds, steps=steps, clips=clips, charge=charge)
    return Findings(
        [{**one["settings"], "test_accuracy": accuracy(one)} for results in found.values() for one in results],
        (),
        (accuracy_table(found, PRINTED[folder]), *cost_table(found, ("bound", "epsilon"))),
        (better(found),),
        (
            "The features are the user's own; the paper's come from a network that is not distributed with it. "
            "`benchmarks/cifar_features.py` makes a stand-in for CIFAR-10: scattering features, mapped to 512 "
            "numbers by a fixed random matrix. They are less separable, so the paper's accuracies are no target.",
            f"The paper does not say how many rounds there were: {base['rounds']} here. Local steps are full "
            "gradients. Clients take part by secret coins.",
            "Settings are chosen by the accuracy that is shown, on the first seed.",
            *((f"Quick: {clients} clients, few clip norms and steps.",) if scale.quick else ()),
        ),
        {
            "clients": clients,
            "rounds": base["rounds"],
            "delta": DELTA,
            "seeds": seeds,
            "neighbours": NEIGHBOURS,
            **taken_as_public(found.values()),
        },
        tuned=True,
        charged=charge,
    )


def _experiment(name: str, data: str) -> Experiment:
    return Experiment(
        name,
        f"Clipping and normalising on features of {data}",
        f"DP-NormFedAvg (Das, Hashemi, Sanghavi & Dhillon), Table 2({name[-1]})",
        partial(_table, f"{data}-features"),
        f"{data}-features",
        True,
    )


EXPERIMENTS = (_experiment("norm-table2b", "cifar-10"), _experiment("norm-table2c", "cifar-100"))
