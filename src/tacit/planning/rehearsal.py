"""Synthetic records for rehearsals: a stand-in for private records, made only from public facts about them.

Theoretical bounds are worst cases, and there are none for networks or for gradients that are really clipped. So
rounds and clip norm are chosen by running the algorithm itself on synthetic records. No private record is used.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from tacit.federation import Federation
from tacit.noise.randomness import Purpose, Randomness


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
    return Federation(
        features=torch.from_numpy(features).float().reshape(federation.records, *federation.feature_shape),
        targets=torch.from_numpy(targets).float() if federation.classes is None else torch.from_numpy(targets),
        sizes=federation.sizes,
        ids=federation.ids,
        classes=federation.classes,
        name=f"synthetic, like {federation.name}",
        feature_norm=feature_norm,
        features_by=federation.features_by,
    )
