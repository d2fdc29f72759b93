"""Chooses algorithm, model, rounds, batch, clip norm and compressor for a promise, without looking at a record.

All candidates keep the promise by the exact accountant, and derive their steps from their noise. First they are
ranked by a prediction from public numbers: how much loss their noise will cause. Then the best of each algorithm
and model are tried on synthetic records of the same shape, which shows what no prediction does, such as the
effect of fewer rounds or of a smaller clip norm.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, variance
from typing import Any

from tacit.algorithms.prospect import prospect
from tacit.algorithms.registry import algorithm_entry
from tacit.engine.choices import feature_norm
from tacit.engine.defaults import CHEAP, COMPRESSORS
from tacit.engine.plan import Plan
from tacit.engine.recipe import Recipe
from tacit.engine.records import load_federation
from tacit.engine.simulate import simulate
from tacit.errors import DivergedError, RequestError, count, positive
from tacit.federation import Federation
from tacit.planning.rehearsal import synthetic_like
from tacit.planning.shape import plan_unseen

CONSIDERED = (
    "noisy-mb-sgd", "accelerated-mb-sgd", "soteriafl-gd", "soteriafl-sgd", "noisy-local-sgd", "fed-spa",
)  # fmt: skip
"""Algorithms that protect records without trusting anybody, unless the user names others."""

FEWER_ROUNDS, SMALLER_CLIP = 3, 3
"""The best candidates are also tried with a third of their rounds, and of their clip norm."""

TRIALS = 8
"""Trials unless the user says otherwise; at MNIST's size, each takes a few seconds."""

OPTIONS = (
    "algorithm", "clients", "partition", "model", "privacy", "epsilon", "delta", "rounds", "batch", "clip_norm",
    "compressor", "seed",
)  # fmt: skip
"""Settings that are options of `tacit run`; others are written as --set NAME=VALUE."""

ABOUT_EQUAL = 0.01
"""Scores this far behind the best, a point of accuracy or a hundredth of an error, are no reason to choose."""

CHANCE = 2.0
"""Nor are scores closer than this many standard errors of their difference, as seen in the trials themselves."""

REPEATS = 3
"""Seeds of a trial, if a round costs little."""


@dataclass(frozen=True)
class Candidate:
    """One way to keep the promise, and how good it is predicted to be.

    Parameters
    ----------
    recipe : the recipe that runs it, with every important setting written out; its step is left to the noise.
    excess : the loss that its noise is predicted to cause, in units of a typical residual.
    uplink_bits_per_client : the most bits that a client sends in the whole run.
    score : its metric on synthetic records; None if it was not tried.
    """

    recipe: Recipe
    excess: float
    uplink_bits_per_client: int
    score: float | None = None

    @property
    def kind(self) -> tuple[str, str | None]:
        """Its algorithm and model."""
        return self.recipe.algorithm, self.recipe.model

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        settings = self.recipe.algorithm_settings
        return {
            "algorithm": self.recipe.algorithm,
            "model": self.recipe.model,
            "rounds": self.recipe.rounds,
            "batch": settings.get("batch"),
            "compressor": settings.get("compressor"),
            "clip_norm": settings.get("clip_norm"),
            "predicted_excess": self.excess,
            "uplink_bits_per_client": self.uplink_bits_per_client,
            "synthetic_metric": self.score,
        }


def choose(
    recipe: Recipe,
    *,
    algorithms: Sequence[str] = CONSIDERED,
    models: Sequence[str | None] = (None,),
    trials: int = TRIALS,
    bit_budget: float | None = None,
    federation: Federation | None = None,
    data_dir: Path | None = None,
) -> list[Candidate]:
    """All candidates, best first: those that were tried by their score, then the others by their prediction.

    Of those whose scores are about equal, one without local steps comes first, with the least predicted excess.

    Guarantee: nothing depends on a record. Only sizes, features, classes and public bounds are used.

    Args:
        recipe: data and promise; settings that it has are kept.
        algorithms: names to choose from.
        models: names to choose from; None for the recipe's own.
        trials: how many candidates to try on synthetic records; 0 for none.
        bit_budget: the most bits that a client may send in the whole run.
        federation: replaces the recipe's records, if those are not available.
        data_dir: folder with data files.
    """
    if bit_budget is not None:
        positive("bit_budget", bit_budget)
    if recipe.privacy == "none":
        raise RequestError("privacy = 'none' in the recipe: without a promise there is no noise to choose for")
    count("trials", trials, at_least=0)
    real = load_federation(recipe, data_dir) if federation is None else federation
    found, refusals = [], []
    for start in _variations(recipe, algorithms, models):
        try:
            found.append(_candidate(plan_unseen(start, real)))
        except RequestError as error:
            # What does not fit the recipe is no reason to drop the others.
            refusals.append(str(error))
    if not found:
        raise RequestError(f"no candidate fits this recipe: {refusals[0]}")
    if bit_budget is not None:
        found = [candidate for candidate in found if candidate.uplink_bits_per_client <= bit_budget]
        if not found:
            raise RequestError(f"no candidate sends at most bit_budget = {bit_budget:g} bits; raise it")
    found.sort(key=lambda c: (c.excess, c.uplink_bits_per_client))
    if not trials:
        return found
    tried = _tried(_worth_trying(found, recipe)[:trials], _synthetic(recipe, real))
    return [*tried, *(c for c in found if c.recipe not in [other.recipe for other in tried])]


def command(recipe: Recipe, data_dir: Path | None = None) -> str:
    """The `tacit run` command of a recipe, to be pasted into a shell."""
    usual = Recipe().flat()
    words = ["tacit", "run", "--data", recipe.data]
    for name, value in recipe.flat().items():
        # The algorithm was chosen, even if it is the usual one.
        if name == "data" or value is None or (value == usual.get(name) and name != "algorithm"):
            continue
        option = name.removeprefix("algorithm.")
        if option in OPTIONS and not isinstance(value, list | dict):
            words += [f"--{option.replace('_', '-')}", str(value)]
        else:
            words += ["--set", f"{name}={_as_toml(value)}"]
    return shlex.join([*words, *([] if data_dir is None else ["--data-dir", str(data_dir)])])


def _as_toml(value: object) -> str:
    """A value as `--set` reads it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_as_toml(one)}" for key, one in value.items()) + "}"
    return value if isinstance(value, str) else json.dumps(value)


def _variations(recipe: Recipe, algorithms: Sequence[str], models: Sequence[str | None]) -> Iterator[Recipe]:
    """The defaults of every algorithm and model, with every compressor unless the recipe has one."""
    for name, model in product(algorithms, models):
        own = replace(recipe, model=model or recipe.model).for_algorithm(name)
        takes = algorithm_entry(name).settings
        # Who works only on the coordinates that are sent has a good default, and predictions do not compare them.
        if "compressor" not in takes or "local_steps" in takes or "compressor" in own.algorithm_settings:
            yield own
            continue
        for spec in (*COMPRESSORS, "identity"):
            yield own.with_algorithm_settings(compressor=spec)


def _candidate(plan: Plan) -> Candidate:
    found, dim = plan.calibration, plan.algorithm.work.model.dim
    known = prospect(
        plan.algorithm, plan.federation, found.noise_stds, float(found.noise_multipliers[0]), plan.rounds
    )
    assert plan.recipe is not None, "made from one"
    bits = 8 * plan.releases * plan.algorithm.uplink.compressor.message_bytes(dim)
    return Candidate(plan.recipe, known.excess(), bits)


def _worth_trying(found: Sequence[Candidate], given: Recipe) -> list[Candidate]:
    """The best of each algorithm and model, then the same with fewer rounds and with smaller clip norms."""
    best: dict[tuple[str, str | None], Candidate] = {}
    for candidate in found:
        best.setdefault(candidate.kind, candidate)
    fewer, smaller = [], []
    # Local steps send least, and would come first; but those without are preferred, so they are varied first.
    kinds = sorted(best.values(), key=_takes_local_steps)
    for candidate in kinds:
        rounds, clip_norm = candidate.recipe.rounds, candidate.recipe.algorithm_settings.get("clip_norm")
        if given.rounds is None and rounds is not None and rounds >= FEWER_ROUNDS:
            short = replace(candidate.recipe, rounds=rounds // FEWER_ROUNDS)
            bits = candidate.uplink_bits_per_client // FEWER_ROUNDS
            fewer.append(replace(candidate, recipe=short, uplink_bits_per_client=bits))
        if "clip_norm" not in given.algorithm_settings and clip_norm is not None:
            tight = candidate.recipe.with_algorithm_settings(clip_norm=clip_norm / SMALLER_CLIP)
            smaller.append(replace(candidate, recipe=tight))
    return [*kinds, *smaller[:1], *fewer[:1], *smaller[1:], *fewer[1:]]


def _takes_local_steps(candidate: Candidate) -> bool:
    return "local_steps" in candidate.recipe.algorithm_settings


def _synthetic(recipe: Recipe, real: Federation) -> Federation:
    """Synthetic records of the same shape, which are also those that models are tested on."""
    # Without a public norm, features are assumed to be of about 1/2 each, as in `feature_scale`.
    norm = feature_norm(recipe) or math.sqrt(math.prod(real.feature_shape)) / 2
    made = synthetic_like(real, norm, seed=recipe.seed, target_bound=recipe.target_bound)
    return replace(made, test_features=made.features, test_targets=made.targets)


def _tried(candidates: Sequence[Candidate], synthetic: Federation) -> list[Candidate]:
    """The candidates with their mean metrics on synthetic records, best first."""
    scored, variances = [], []
    for candidate in candidates:
        plan = plan_unseen(candidate.recipe, synthetic)
        cheap = synthetic.records * plan.algorithm.work.model.dim <= CHEAP
        try:
            metrics = [
                simulate(replace(plan, seed=plan.seed + more), evaluate_every=plan.rounds).last.test_metric or 0.0
                for more in range(REPEATS if cheap else 1)
            ]
        except DivergedError:
            continue
        scored.append(replace(candidate, score=mean(metrics)))
        variances.append(variance(metrics) / len(metrics) if len(metrics) > 1 else 0.0)
    if not scored:
        raise RequestError("all candidates that were tried diverged on synthetic records; allow others")
    chance = CHANCE * math.sqrt(2 * mean(variances))
    return _ranked(scored, chance, smaller_is_better=synthetic.classes is None)


def _ranked(scored: Sequence[Candidate], chance: float, *, smaller_is_better: bool) -> list[Candidate]:
    """By score; those about as good as the best by predicted excess, since few trials cannot tell them apart.

    `chance` is how far apart the scores of two equally good candidates may well be.
    """
    sign = 1 if smaller_is_better else -1
    ordered = sorted(scored, key=lambda candidate: sign * (candidate.score or 0.0))
    best = ordered[0].score or 0.0
    near = max(ABOUT_EQUAL * (abs(best) if smaller_is_better else 1.0), chance)
    alike = [candidate for candidate in ordered if abs((candidate.score or 0.0) - best) <= near]
    # What a client's own noise does to its local steps is in no prediction.
    alike.sort(key=lambda candidate: (_takes_local_steps(candidate), candidate.excess))
    return [*alike, *ordered[len(alike) :]]
