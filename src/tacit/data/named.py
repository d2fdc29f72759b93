"""Turns the name of a data set into a federation: read, split, deal to clients, prepare."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import torch

from tacit.data import prepare
from tacit.data.datasets import DATASETS, DatasetEntry
from tacit.data.encode import Vector
from tacit.data.features import FeatureMap, build_features, cached_features
from tacit.data.partition import Partition, parse_partition
from tacit.data.partitioners import Indices
from tacit.data.raw import Raw
from tacit.data.sources import find_files
from tacit.errors import RequestError, count, unknown_name
from tacit.federation import Federation
from tacit.noise.randomness import Purpose, Randomness

_DEFAULT_CLIENTS = 10


def load(
    name: str,
    *,
    clients: int | None = None,
    partition: str | Partition = "iid",
    data_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    test_fraction: float = 0.2,
    normalise: bool = True,
    unit_norm: bool = False,
    image: bool = False,
    pca: int | None = None,
    features: str | None = None,
    records_per_client: int | None = None,
) -> Federation:
    """Loads a named data set and deals it to clients; all randomness comes from the seed.

    Args:
        name: name of the data set, see `DATASETS`.
        clients: number of clients; 10 unless the partition fixes it (`digit-pairs`: 25, `natural-id`: one per
            value).
        partition: how records are dealt, see `PARTITIONERS`. The test set is not divided.
        data_dir: directory that holds `<name>/<file>`; `tacit.data.sources` lists the other places that are
            searched.
        seed: seed of the split into training and test records, and of how records are dealt.
        test_fraction: fraction of test records, for data sets without a test set of their own.
        normalise: standardise the features that the data set's entry names in `peek`. This looks at private
            records without accounting, so the federation notes it in its `peeks`. Fixed scalings (a pixel divided
            by 255) use no data and are always done.
        unit_norm: scale each record to an L2 norm of at most 1. This costs no privacy and bounds a linear model's
            gradients.
        image: records as (channels, height, width) instead of flat vectors.
        pca: keep this many principal components; this is also a peek.
        features: a fixed function of each image, such as "scattering" (see `tacit.data.features`); it costs no
            privacy, and is computed once and kept in the user's cache.
        records_per_client: keep exactly this many records of each client, chosen at random.

    >>> load("digits", clients=5, partition="dirichlet:0.5", seed=1)
    digits: 5 clients, 1,437 records (208 to 344 each), 64 features, 10 classes; 360 test records
    """
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    entry = DATASETS[name]
    if image and (entry.image_shape is None or pca is not None):
        raise RequestError(f"image=True needs a data set of images and no pca; name={name!r}, pca={pca!r}")
    randomness = Randomness(count("seed", seed, at_least=0))
    raw = entry.read(find_files(name, entry.files, data_dir, entry.homepage) if entry.files else {})
    fixed = None
    if features is not None:
        if image or pca is not None or (normalise and entry.peek is not None):
            raise RequestError(
                f"features = {features!r} is a function of records as they were published: leave out image and "
                "pca, and set normalise = false for data sets that are standardised with their own records"
            )
        fixed = build_features(features, entry.image_shape or (raw.features.shape[1],))
        raw = _mapped(raw, fixed)
    own, test = _split(raw, test_fraction, randomness.generator(Purpose.DATA))
    if isinstance(partition, str):
        partition = parse_partition(partition)
    rng = randomness.generator(Purpose.PARTITION)
    parts, names = _deal(name, entry, raw, own, partition, clients, rng)
    if records_per_client is not None:
        parts = _keep(parts, count("records_per_client", records_per_client), rng)
    rows = own[np.concatenate(parts)]
    inputs, test_inputs = _features(raw, raw.features[rows]), _features(raw, test[0])
    targets, test_targets, class_names = raw.targets[rows], test[1], entry.class_names
    if partition.name == "digit-pairs":
        targets, test_targets, class_names = targets % 2, test_targets % 2, ("even", "odd")
    peeks = []
    if normalise and entry.peek is not None:
        inputs, test_inputs = prepare.standardise(inputs, test_inputs, raw.standardised)
        peeks.append(entry.peek)
    if pca is not None:
        inputs, test_inputs = prepare.project(inputs, test_inputs, count("pca", pca))
        peeks.append(f"the first {pca} principal components of the training records")
    if unit_norm:
        inputs, test_inputs = prepare.unit_norm(inputs), prepare.unit_norm(test_inputs)
    shape = (-1, *entry.image_shape) if image and entry.image_shape else (-1, inputs.shape[1])
    return Federation(
        features=torch.from_numpy(inputs.reshape(shape)),
        targets=_targets(targets),
        sizes=torch.tensor([len(part) for part in parts]),
        ids=torch.arange(len(parts)),
        test_features=torch.from_numpy(test_inputs.reshape(shape)) if len(test[1]) else None,
        test_targets=_targets(test_targets) if len(test[1]) else None,
        classes=None if class_names is None else len(class_names),
        names=names,
        name=name,
        class_names=class_names,
        peeks=tuple(peeks),
        feature_norm=1.0 if unit_norm else None if fixed is None else fixed.norm,
        features_by=fixed,
    )


def _split(raw: Raw, test_fraction: float, rng: np.random.Generator) -> tuple[Vector, tuple[Vector, Vector]]:
    """The indices of the training records, and the test set."""
    if raw.test is not None:
        return np.arange(len(raw.targets)), raw.test
    train, test = prepare.split(raw.targets, test_fraction, rng)
    return train, (raw.features[test], raw.targets[test])


def _deal(
    name: str,
    entry: DatasetEntry,
    raw: Raw,
    own: Vector,
    partition: Partition,
    clients: int | None,
    rng: np.random.Generator,
) -> tuple[Indices, tuple[str, ...] | None]:
    """Indices into the training records for each client, and the clients' names."""
    targets = raw.targets[own]
    if partition.column is not None:
        values = targets if partition.column == "target" else _column(name, raw, partition.column)[own]
        found = np.unique(values)
        names = tuple(str(value) for value in found)
        if partition.column == "target" and entry.class_names is not None:
            names = tuple(entry.class_names[label] for label in found)
        return partition.split(values, len(found) if clients is None else clients, rng), names
    if partition.name == "digit-pairs":
        if name not in ("digits", "mnist"):
            raise RequestError(f"partition digit-pairs is for digits and mnist, not for {name!r}")
        pairs = tuple(f"{odd} and {even}" for odd in range(1, 10, 2) for even in range(0, 10, 2))
        return partition.split(targets, 25 if clients is None else clients, rng), pairs
    return partition.split(targets, _DEFAULT_CLIENTS if clients is None else clients, rng), None


def _column(name: str, raw: Raw, column: str) -> Vector:
    if column not in raw.columns:
        raise unknown_name(f"column of {name}", column, ["target", *raw.columns])
    return np.asarray(raw.columns[column])


def _keep(parts: Indices, records: int, rng: np.random.Generator) -> Indices:
    smallest = int(np.argmin([len(part) for part in parts]))
    if len(parts[smallest]) < records:
        raise RequestError(
            f"records_per_client={records}, but client {smallest} has only {len(parts[smallest])} records in "
            "this partition: use at most as many"
        )
    return [rng.permutation(part)[:records] for part in parts]


def _mapped(raw: Raw, features: FeatureMap) -> Raw:
    """The data set with these features instead of its own."""
    parts = [raw.features] if raw.test is None else [raw.features, raw.test[0]]
    found = [cached_features(features, torch.from_numpy(_features(raw, part))).numpy() for part in parts]
    test = None if raw.test is None else (found[1], raw.test[1])
    return replace(raw, features=found[0], test=test, divisor=1.0, standardised=())


def _features(raw: Raw, features: Vector) -> Vector:
    scaled: Vector = features.astype(np.float32)
    scaled /= np.float32(raw.divisor)
    return scaled


def _targets(targets: Vector) -> torch.Tensor:
    return torch.tensor(targets, dtype=torch.float32 if targets.dtype.kind == "f" else torch.int64)
