"""DP-NormFedAvg's defaults beside its own grid, for 3,000 synthetic clients: see docs/results/default-rules.md.

    python benchmarks/client_defaults.py

Every client has 20 records of a few classes. A fifth of the clients is expected in a round, 60 rounds; whole
clients are protected at epsilon 5 (add or remove one) against anyone who sees only sums. The grid is the paper's:
local step and norm C of an update, server steps of half a local step with momentum 0.8, both shrinking by 0.99 a
round, 20 local steps. It runs with seed 0; its best point, chosen by the test metric, and the defaults run with
seeds 1 and 2.
"""

from __future__ import annotations

from itertools import product
from statistics import mean
from typing import Any

import numpy as np

from tacit.data.partitioners import shards
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.simulate import simulate
from tacit.federation import Federation

CLIENTS, RECORDS, TEST = 3000, 20, 10_000
FAMILIES = {
    "10 features, 4 classes": (10, 4),
    "40 features, 6 classes": (40, 6),
    "200 features, 10 classes": (200, 10),
}
STEPS = (0.02, 0.06, 0.2, 0.6, 2.0)
NORMS = (1.0, 4.0, 16.0, 64.0)


def main() -> None:
    """Print a row for each family."""
    for name, (features, classes) in FAMILIES.items():
        made = clients(features, classes)
        grid = {point: metric(made, 0, *point) for point in product(STEPS, NORMS)}
        best = max(grid, key=lambda point: grid[point])
        fresh = [(metric(made, seed), metric(made, seed, *best)) for seed in (1, 2)]
        ours, theirs = (mean(pair[side] for pair in fresh) for side in (0, 1))
        row = [name, f"{metric(made, 0):.3f}", f"{grid[best]:.3f}", f"step {best[0]:g}, C {best[1]:g}"]
        print("|", " | ".join([*row, f"{ours:.3f}", f"{theirs:.3f}"]), "|", flush=True)


def clients(features: int, classes: int) -> Federation:
    """Records around two centres for each class, dealt in shards of two classes or so a client."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((classes, 2, features)) / np.sqrt(features) * 1.5
    labels = rng.integers(classes, size=CLIENTS * RECORDS + TEST)
    inputs = centres[labels, rng.integers(2, size=len(labels))] + rng.standard_normal((len(labels), features)) / 2
    inputs, labels = inputs.astype(np.float32), labels.astype(np.int64)
    dealt = shards(labels[TEST:], CLIENTS, rng, shards_per_client=2)
    parts = [(inputs[TEST + rows], labels[TEST + rows]) for rows in dealt]
    return Federation.from_clients(parts, test=(inputs[:TEST], labels[:TEST]), classes=classes)


def metric(federation: Federation, seed: int, step: float | None = None, norm: float | None = None) -> float:
    """Test accuracy with these settings, or with the defaults."""
    settings: dict[str, Any] = {}
    if step is not None:
        settings |= {"local_step": step, "step": step / 2, "clip_norm": norm, "momentum": 0.8, "local_steps": 20}
        settings |= {"schedule": "exponential:0.99"}
    recipe = Recipe(
        algorithm="dp-normfedavg",
        epsilon=5.0,
        adjacency="add-remove",
        cohort=CLIENTS // 5,
        rounds=60,
        seed=seed,
        algorithm_settings=settings,
    )
    plan = make_plan(recipe, federation=federation)
    return simulate(plan, evaluate_every=plan.rounds).last.test_metric or 0.0


if __name__ == "__main__":
    main()
