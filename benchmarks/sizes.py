"""The defaults on arrays whose features are of any size: the table in docs/results/default-rules.md.

    python benchmarks/sizes.py [--family small,mixed] [--epsilon 4] [--clients 10] [--uneven]

Nobody says how large features are. Beside the default (three seeds) stands the best of a grid of plain noisy
gradient descent on the records as they are (one seed, chosen *by the test metric*). Its steps and clip norms are
in units of the median length of a record, which nobody would know.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from statistics import mean
from typing import Any

import numpy as np
import torch
from sklearn.datasets import (
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
)

from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.simulate import simulate
from tacit.errors import DivergedError
from tacit.federation import Federation

Arrays = tuple[Any, Any]

SEEDS = (0, 1, 2)
STEPS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""How far one step of full length moves scores, in usual residuals."""
CLIPS = (0.1, 0.3, 1.0)
"""Times the length of a record with its intercept, times a usual residual."""
ROUNDS = (30, 100)


def usual(records: int = 4000, features: int = 20, classes: int = 3, **more: Any) -> Arrays:
    """Made-up classes with standardised features."""
    more = {"flip_y": 0.02, **more}
    parts = {"n_informative": features // 2, "n_redundant": features // 4, "n_clusters_per_class": 1}
    inputs, labels = make_classification(records, features, n_classes=classes, random_state=100, **parts, **more)
    return (inputs - inputs.mean(0)) / inputs.std(0), labels


def of_length(length: float) -> Arrays:
    """The same with records of this median length."""
    inputs, labels = usual()
    return inputs / np.median(np.linalg.norm(inputs, axis=1)) * length, labels


def heavy_tailed() -> Arrays:
    """Small records whose lengths differ by orders of magnitude."""
    inputs, labels = usual()
    return 0.01 * inputs * np.random.default_rng(7).lognormal(0, 1.5, (len(inputs), 1)), labels


def sparse() -> Arrays:
    """Columns that are 100 in a twentieth of the records, and else 0."""
    rng = np.random.default_rng(7)
    there = (rng.random((5000, 200)) < 0.05) * 1.0
    scores = there @ (rng.normal(size=200) * 1.5)
    return 100 * there, (scores - np.median(scores) + rng.logistic(size=5000) * 0.5 > 0).astype(int)


def mixed() -> Arrays:
    """Three columns a thousand times as large as the others."""
    inputs, labels = usual()
    return inputs * np.where(np.arange(20) < 3, 1000.0, 1.0), labels


def constant() -> Arrays:
    """Eighty columns that are always 1."""
    inputs, labels = usual()
    return np.hstack([inputs, np.ones((len(inputs), 80))]), labels


def houses() -> Arrays:
    """Made up to resemble Californian districts, in their own units."""
    rng, records = np.random.default_rng(7), 8000
    income, age = rng.lognormal(1.2, 0.5, records), rng.integers(1, 52, records)
    rooms, people, each = (rng.lognormal(*law, records) for law in ((1.6, 0.3), (7, 0.7), (1, 0.3)))
    north = rng.uniform(32, 42, records)
    west = -114 - (north - 32) - rng.uniform(0, 3, records)
    value = 0.45 * income + 0.01 * age - 0.05 * rooms + 0.3 * rng.normal(size=records) - 0.1 * (north - 36)
    return np.c_[income, age, rooms, people, each, north, west], value + 0.5


def forest() -> Arrays:
    """Made up to resemble cover types, in metres and degrees."""
    rng, records = np.random.default_rng(7), 10_000
    hidden = rng.normal(size=(records, 4))
    level, angle, slope = 2900 + 250 * hidden[:, 0], 155 + 100 * hidden[:, 1], 14 + 7 * hidden[:, 2]
    water, road = 270 + 200 * rng.normal(size=records), 2300 + 1500 * hidden[:, 3]
    shade = 212 + 26 * rng.normal(size=records)
    soil = np.eye(20)[(hidden @ rng.normal(size=(4, 20)) + rng.gumbel(size=(records, 20))).argmax(1)]
    scores = hidden @ rng.normal(size=(4, 5)) * 1.5 + np.linspace(2, -2, 5) + rng.gumbel(size=(records, 5))
    return np.c_[level, angle, slope, water, road, shade, soil], scores.argmax(1)


FAMILIES: dict[str, Callable[[], Arrays]] = {
    "usual": usual,
    "length 0.02": lambda: of_length(0.02),
    "length 0.1": lambda: of_length(0.1),
    "length 1000": lambda: of_length(1000.0),
    "heavy-tailed": heavy_tailed,
    "sparse": sparse,
    "mixed": mixed,
    "constant": constant,
    "rare": lambda: usual(8000, classes=2, weights=[0.98], flip_y=0.0),
    "wide": lambda: usual(625, 100, classes=2),
    "digits": lambda: load_digits(return_X_y=True),
    "forest": forest,
    "houses": houses,
    "diabetes": lambda: load_diabetes(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "iris": lambda: load_iris(return_X_y=True),
}


def federated(family: str, clients: int, seed: int, *, uneven: bool) -> Federation:
    """A fifth of the records for tests, the others dealt to clients, evenly or by a lognormal law."""
    inputs, targets = FAMILIES[family]()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(targets))
    test, train = np.split(order, [len(order) // 5])
    parts = np.array_split(train, clients)
    if uneven:
        shares = rng.lognormal(0, 1.5, clients)
        owners = np.sort(rng.choice(clients, len(train), p=shares / shares.sum()))
        parts = [part for client in range(clients) if len(part := train[owners == client]) > 5]
    inputs = inputs.astype(np.float32)
    number = targets.dtype.kind == "f"
    targets = targets.astype(np.float32) if number else targets
    return Federation.from_clients(
        [(inputs[part], targets[part]) for part in parts],
        test=(inputs[test], targets[test]),
        classes=None if number else int(targets.max()) + 1,
        task="regression" if number else "classification",
    )


def score(federation: Federation, recipe: Recipe) -> float:
    """Accuracy, or 1 - error / error of the mean, in points."""
    plan = make_plan(recipe, federation=federation)
    try:
        metric = simulate(plan, evaluate_every=plan.rounds).last.test_metric
    except DivergedError:
        return -100.0
    assert metric is not None
    if federation.classes is not None:
        return 100 * metric
    assert federation.test_targets is not None
    spread = float(federation.test_targets.double().std(correction=0))
    return 100 * (1 - min(2.0, metric / spread)) if math.isfinite(metric) else -100.0


def best_of_grid(federation: Federation, recipe: Recipe) -> float:
    """The best score of plain steps on the records as they are."""
    length = math.sqrt(1 + float(torch.linalg.vector_norm(federation.features, dim=1).median()) ** 2)
    residual = 1.0 if federation.classes else float(federation.targets.abs().median())
    found = []
    for rounds, clip, step in itertools.product(ROUNDS, CLIPS, STEPS):
        norm = clip * length * residual
        own = Recipe(algorithm=recipe.algorithm, data="custom", epsilon=recipe.epsilon, rounds=rounds)
        settings = {"clip_norm": norm, "step": step * residual / (norm * length**2)}
        found.append(score(federation, own.with_algorithm_settings(**settings)))
    return max(found)


def main() -> None:
    """Print a row of the table for every family."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default=",".join(FAMILIES))
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--uneven", action="store_true", help="clients of very different sizes")
    options = parser.parse_args()
    print("| records | default | as they are given | best of grid |\n| --- | ---: | ---: | ---: |")
    for family in options.family.split(","):
        own, given = [], []
        for seed in SEEDS:
            federation = federated(family, options.clients, seed, uneven=options.uneven)
            recipe = Recipe(algorithm="noisy-mb-sgd", data="custom", epsilon=options.epsilon, seed=seed)
            own.append(score(federation, recipe))
            given.append(score(federation, recipe.with_settings({"data.features": "given"})))
        first = federated(family, options.clients, SEEDS[0], uneven=options.uneven)
        best = best_of_grid(first, Recipe(algorithm="noisy-mb-sgd", epsilon=options.epsilon))
        spread = f"{mean(own):.1f} ({min(own):.1f} to {max(own):.1f})"
        print(f"| {family} | {spread} | {mean(given):.1f} | {best:.1f} |", flush=True)


if __name__ == "__main__":
    main()
