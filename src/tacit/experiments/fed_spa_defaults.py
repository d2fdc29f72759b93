"""Fed-SPA's problem without Fed-SPA: noisy-mb-sgd with the defaults of `tacit run`, in every round all agents.

Once against a server that sees every message (true), and once under secure sums (summed). Noisy local steps
cannot be summed: no proof covers them, so they are refused there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.algorithms.settings import Settings
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.workers import Result
from tacit.experiments.cells import Cell, Runner
from tacit.experiments.experiment import SUMMED, Claim, Scale
from tacit.experiments.fed_spa_runs import (
    AGENTS,
    AT_A_TRUE_EPSILON,
    DEFAULTS,
    DELTA,
    TASKS,
    Scheme,
    federation_of,
    rows_of,
)
from tacit.experiments.simulated import SimulatedRun, watched
from tacit.experiments.verdicts import against, at_most

QUORUM, COLLUDING = 80, 10
"""Of the 100 agents, at least so many in an opened sum, and at most so many who help the server."""


def schemes_of(data: str, models: Sequence[str] | None = None) -> list[Scheme]:
    """These models in both modes: by default the paper's network and a softmax regression, which is smaller."""
    models = (TASKS[data].model, "softmax") if models is None else models
    return [(mode, f"noisy-mb-sgd, {model}", 1.0) for mode in AT_A_TRUE_EPSILON for model in models]


def run(settings: Settings, data_dir: Path | None) -> Result:
    """One run with the defaults' settings."""
    federation = federation_of(settings["data"], data_dir)
    summed = settings["mode"] == SUMMED
    algorithm, model = settings["algorithm"].split(", ")
    recipe = Recipe(
        algorithm=algorithm,
        model=model,
        data=settings["data"],
        clients=AGENTS,
        epsilon=settings["label"],
        delta=DELTA,
        rounds=settings["rounds"],
        seed=settings["seed"],
        trust="sum" if summed else None,
        quorum=QUORUM if summed else None,
        colluding=COLLUDING if summed else None,
    )
    made, test = make_plan(recipe, federation=federation), federation.test_batch()
    every = max(1, made.rounds // settings["evaluations"])
    return watched(SimulatedRun(made, every), lambda point: made.algorithm.work.model.metric(point, test))


def runs(
    runner: Runner,
    data: str,
    labels: Sequence[float],
    seeds: Sequence[int],
    scale: Scale,
    models: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """The runs of all schemes, or of those with these models, at these labels, for every seed."""
    points = [
        {
            "data": data,
            "mode": mode,
            "algorithm": name,
            "ratio": ratio,
            "label": label,
            "rounds": scale.pick(2, None),
            "evaluations": scale.pick(1, 10),
            "seed": seed,
        }
        for mode, name, ratio in schemes_of(data, models)
        for label in labels
        for seed in seeds
    ]
    return rows_of(runner([Cell(run, point) for point in points]))


def printed_claims(
    data: str, seen: Mapping[Scheme, Sequence[float]], printed: Mapping[tuple[str, float], float]
) -> list[Claim]:
    """For both modes, whether a true epsilon of 1 reaches the accuracies that the paper prints at epsilon 1."""
    told = {DEFAULTS: "by messages that are each private on their own", SUMMED: "under secure sums"}
    private = {key: accuracy for key, accuracy in printed.items() if key[0] != "fedavg"}
    claims = []
    for mode in AT_A_TRUE_EPSILON:
        ours = seen[mode, f"noisy-mb-sgd, {TASKS[data].model}", 1.0]
        pairs = {key: ([accuracy] * len(ours), ours) for key, accuracy in private.items()}
        claims.append(
            Claim(
                f"The private accuracies that the paper prints are reached at a true epsilon of 1 {told[mode]}.",
                at_most(list(pairs.values())),
                "; ".join(
                    f"{name} p {p:g}: {against(values, theirs, '.4f')} in the paper"
                    for (name, p), (theirs, values) in pairs.items()
                ),
            )
        )
    return claims


DEPARTURES = (
    f"{DEFAULTS.capitalize()}: noisy-mb-sgd with the settings that `tacit run` chooses from public numbers: one "
    "gradient a round, all agents in every round. That is more bytes than the paper's; see the last column.",
    f"Summed: the same under secure sums: the server opens sums of at least {QUORUM} of the {AGENTS} agents, and "
    f"at most {COLLUDING} agents help it. Each message carries 1/{QUORUM - COLLUDING} of the noise variance that "
    "it would need alone. Fed-SPA and DP-Fed cannot be summed: the noise of a local step goes through the next "
    "gradient, so no proof covers shares of it.",
)
