"""Synthetic records for rehearsals: a stand-in for private records, made only from public facts about them.

Theoretical bounds are worst cases, and there are none for networks or for gradients that are really clipped. So
rounds and clip norm are chosen by running the algorithm itself on synthetic records. No private record is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.federation import Federation
from tacit.noise.randomness import Purpose, Randomness

OVERLAP = 4.0
"""The spread of a teacher's scores where classes overlap: two classes are then told apart 87 times in 100."""

TAIL = 0.7
"""The deviation of the logarithm of targets with a long tail: costs and counts."""

MOST_TESTED = 10_000
"""Test records of a world at most: more tell nothing new."""


def synthetic_like(
    federation: Federation,
    feature_norm: float,
    *,
    seed: int,
    target_bound: float | None = None,
    by_target: bool = False,
) -> Federation:
    """Synthetic records with the sizes, features, classes and norm of a federation, and a random linear teacher.

    Features have the scales 1, 1/sqrt(2), 1/sqrt(3), ... before they are normalised, because real features are
    never equally informative. Targets of a regression lie in [0, target_bound], if that is given. `by_target`
    deals the records in the order of their targets, for clients that differ.
    """
    generator = Randomness(seed).generator(Purpose.DATA)
    width = math.prod(federation.feature_shape)
    features = generator.standard_normal((federation.records, width)) / np.sqrt(np.arange(1, width + 1))
    features *= feature_norm / np.linalg.norm(features, axis=1, keepdims=True)
    scores = features @ generator.standard_normal((width, federation.classes or 1))
    targets = scores[:, 0] if federation.classes is None else scores.argmax(axis=1)
    if federation.classes is None and target_bound is not None:
        targets = target_bound * (targets - targets.min()) / np.ptp(targets)
    if by_target:
        order = np.argsort(targets, kind="stable")
        features, targets = features[order], targets[order]
    return _dealt(federation, features, targets, feature_norm)


def worlds_like(
    federation: Federation, feature_norm: float, *, seed: int, target_bound: float | None = None
) -> Iterator[Federation]:
    """Two kinds of synthetic records with the same public facts, and test records of their own.

    Nobody knows which one the real records resemble, so a choice has to be good on both. Classes overlap in one,
    as in most tables, and lie around a centre each in the other, as most images do. The targets of a regression
    have noise as large as their signal; in one world they are symmetric, in the other they have a long tail.
    No record is a multiple of another: a bound that clips everything costs something, as it does in reality.
    """
    width = math.prod(federation.feature_shape)
    tested = min(federation.records, MOST_TESTED)
    for kind in (0, 1):
        generator = Randomness(seed).generator(Purpose.DATA, step=kind)
        features = generator.standard_normal((federation.records + tested, width), dtype=np.float32)
        spectrum = (1 / np.sqrt(np.arange(1, width + 1))).astype(np.float32)
        features *= spectrum
        targets: NDArray[Any]
        if federation.classes is None:
            features = _of_norm(features, feature_norm)
            targets = _numbers(features, generator, long_tail=kind == 1, target_bound=target_bound)
        elif kind == 0:
            features = _of_norm(features, feature_norm)
            scores = features @ generator.standard_normal((width, federation.classes))
            chance = generator.gumbel(size=scores.shape)
            targets = (OVERLAP * scores / scores.std() + chance).argmax(axis=1)
        else:
            targets = generator.integers(federation.classes, size=len(features))
            features += (generator.standard_normal((federation.classes, width)) * spectrum)[targets]
            features = _of_norm(features, feature_norm)
        made = _dealt(federation, features[tested:], targets[tested:], feature_norm)
        yield replace(made, **_tensors(federation, features[:tested], targets[:tested], "test_"))


def _dealt(
    like: Federation, features: NDArray[np.floating[Any]], targets: NDArray[Any], feature_norm: float
) -> Federation:
    """Made-up records in the place of a federation's."""
    return Federation(
        **_tensors(like, features, targets),
        sizes=like.sizes,
        ids=like.ids,
        classes=like.classes,
        name=f"synthetic, like {like.name}",
        feature_norm=feature_norm,
        features_by=like.features_by,
    )


def _tensors(
    like: Federation, features: NDArray[np.floating[Any]], targets: NDArray[Any], prefix: str = ""
) -> dict[str, Any]:
    inputs = torch.from_numpy(features).float().reshape(len(targets), *like.feature_shape)
    outputs = torch.from_numpy(targets)
    return {f"{prefix}features": inputs, f"{prefix}targets": outputs.float() if like.classes is None else outputs}


def _of_norm(features: NDArray[np.float32], norm: float) -> NDArray[np.float32]:
    scaled: NDArray[np.float32] = features * (norm / np.linalg.norm(features, axis=1, keepdims=True))
    return scaled


def _numbers(
    features: NDArray[np.float32], generator: np.random.Generator, *, long_tail: bool, target_bound: float | None
) -> NDArray[np.float64]:
    """Targets of a regression between 0 and their bound, or of about size 1 if there is none."""
    signal = features @ generator.standard_normal(features.shape[1])
    targets = (signal / signal.std() + generator.standard_normal(len(features))) / math.sqrt(2)
    if long_tail:
        targets = np.exp(TAIL * targets)
    if target_bound is None:
        scaled: NDArray[np.float64] = targets / targets.std()
    else:
        scaled = target_bound * (targets - targets.min()) / np.ptp(targets)
    return scaled
