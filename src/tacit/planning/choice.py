"""Chooses algorithm, model, rounds, batch, clip norm and compressor for a promise, without looking at a record.

All candidates keep the promise by the exact accountant, and derive their steps from their noise. First they are
ranked by a prediction from public numbers: how much loss their noise will cause. Then the best of each algorithm
and model, and the cheapest of them with other clip norms and rounds, are tried on synthetic records of the same
shape (`tacit.planning.trials`), which shows what no prediction does. What trials cannot tell apart is left at its
defaults, which were found on real records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from tacit.algorithms.prospect import prospect
from tacit.algorithms.registry import algorithm_entry
from tacit.engine.choices import feature_norm
from tacit.engine.defaults import COMPRESSORS, WORTH
from tacit.engine.plan import Plan
from tacit.engine.recipe import Recipe
from tacit.engine.records import load_federation
from tacit.errors import RequestError, count, positive
from tacit.federation import Federation
from tacit.planning.rehearsal import worlds_like
from tacit.planning.shape import plan_unseen, with_usual_sizes
from tacit.planning.trials import TrialScores, lag, race, work_of

CONSIDERED = (
    "noisy-mb-sgd", "accelerated-mb-sgd", "soteriafl-gd", "soteriafl-sgd", "noisy-local-sgd", "fed-spa",
)  # fmt: skip
"""Algorithms that protect records without trusting anybody, unless the user names others."""

FOR_CLIENTS = ("dp-normfedavg", "dp-fedavg")
"""The same where whole clients are protected."""

CLIPS, ROUNDS = (3.0, 1 / 3), (1.0, 1 / 3)
"""The leading candidates are also tried with these times their clip norm, and with these times their rounds."""

TRIALS = 12
"""Candidates that are tried unless the user says otherwise."""

ABOUT_EQUAL = 0.01
"""TrialScores this far behind the best, a point of accuracy, are no reason to choose."""

CHANCE = 2.0
"""Nor are scores closer than this many standard errors of their difference, as seen in the trials themselves."""

SAME_NOISE = 1.05
"""Predictions within this factor of the least are no reason either; then the cheaper run comes first."""


@dataclass(frozen=True)
class Candidate:
    """One way to keep the promise, and how good it is predicted to be.

    Parameters
    ----------
    recipe : the recipe that runs it, with every important setting written out; its step is left to the noise.
    excess : the loss that its noise is predicted to cause, in units of a typical residual.
    uplink_bits_per_client : the most bits that a client sends in the whole run.
    work : about what a run costs, in multiplications.
    same : two candidates with the same value differ in nothing that a trial could show.
    varied : whether its rounds or clip norm are not the defaults.
    score : its accuracy on synthetic records, or 1 - error / error of the mean; None if it was not tried.
    """

    recipe: Recipe
    excess: float
    uplink_bits_per_client: int
    work: float
    same: tuple[object, ...] = ()
    varied: bool = False
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
            "synthetic_score": self.score,
        }


def choose(
    recipe: Recipe,
    *,
    algorithms: Sequence[str] | None = None,
    models: Sequence[str | None] = (None,),
    trials: int = TRIALS,
    bit_budget: float | None = None,
    federation: Federation | None = None,
    data_dir: Path | None = None,
) -> list[Candidate]:
    """All candidates, best first: those that were tried by their score, then the others by their prediction.

    Of those whose scores are about equal, one without local steps comes first, with default settings, little
    predicted excess and little work. A trial that would take too long is left out.

    Guarantee: nothing depends on a record. Only sizes, features, classes and public bounds are used; no sizes if
    all algorithms protect them.

    Args:
        recipe: data and promise; settings that it has are kept.
        algorithms: names to choose from; by default those that protect what the recipe says.
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
    if "step" in recipe.algorithm_settings:
        raise RequestError("--choose derives steps from the noise: leave out --step or --choose")
    count("trials", trials, at_least=0)
    names = algorithms or (FOR_CLIENTS if recipe.privacy == "client" else CONSIDERED)
    real = load_federation(recipe, data_dir, look=False) if federation is None else federation
    if all(_protects_sizes(recipe, name) for name in names):
        real = with_usual_sizes(real)
    found, refusals = [], []
    for start in _variations(recipe, names, models):
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
    tried = _tried(_worth_trying(found, recipe), trials, tuple(_worlds(recipe, real)))
    return [*tried, *(c for c in found if c.recipe not in [other.recipe for other in tried])]


def _protects_sizes(recipe: Recipe, algorithm: str) -> bool:
    """Whether the promise of an algorithm covers how many records a client has."""
    return algorithm_entry(algorithm).client_coins and not recipe.algorithm_settings.get("public_sizes", False)


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
    work: Any = plan.algorithm.work
    lossless = plan.algorithm.uplink.noise_factor(dim) == 1
    same = (
        type(work), type(getattr(work, "estimator", None)), work.sampling, work.bound, work.batches_per_round,
        type(plan.algorithm.server), plan.recipe.model, plan.rounds,
        None if lossless and work.bounded == dim else plan.algorithm.uplink,
    )  # fmt: skip
    return Candidate(plan.recipe, known.excess(), bits, work_of(plan), same)


def _worth_trying(found: Sequence[Candidate], given: Recipe) -> list[Candidate]:
    """The most important first: the cheapest good one of each model, and the same with other clip norms.

    Then the strongest compressor that is predicted to cost little, the best of each other algorithm, those
    with local steps last, because their trials take longest; and fewer rounds.
    """
    best: dict[tuple[str, str | None], Candidate] = {}
    for candidate in found:
        best.setdefault(candidate.kind, candidate)
    leading: dict[str | None, Candidate] = {}
    for candidate in sorted(best.values(), key=_preference(list(best.values()))):
        leading.setdefault(candidate.recipe.model, candidate)
    varied = [variation for lead in leading.values() for variation in _varied(lead, given)]
    thrifty = {
        one.recipe.model: one
        for one in sorted(found, key=lambda c: -c.uplink_bits_per_client)
        if not _takes_local_steps(one) and one.excess <= best[one.kind].excess + WORTH
    }
    others = sorted(best.values(), key=_takes_local_steps)
    longer = [one for one in varied if one.recipe.rounds == leading[one.recipe.model].recipe.rounds]
    return [*leading.values(), *longer, *thrifty.values(), *others, *varied]


def _varied(lead: Candidate, given: Recipe) -> Iterator[Candidate]:
    """A candidate with other clip norms and rounds, as far as these are not given."""
    rounds, clip_norm = lead.recipe.rounds or 1, lead.recipe.algorithm_settings.get("clip_norm")
    clips = (1.0,) if "clip_norm" in given.algorithm_settings or clip_norm is None else (*CLIPS, 1.0)
    for shorter, wider in product((1.0,) if given.rounds is not None else ROUNDS, clips):
        recipe = replace(lead.recipe, rounds=max(1, round(rounds * shorter)))
        if clip_norm is not None:
            recipe = recipe.with_algorithm_settings(clip_norm=clip_norm * wider)
        if recipe == lead.recipe:
            continue
        bits = lead.uplink_bits_per_client * (recipe.rounds or 1) // rounds
        same = (*lead.same, shorter, wider)
        yield replace(
            lead, recipe=recipe, uplink_bits_per_client=bits, work=lead.work * shorter, same=same, varied=True
        )


def _takes_local_steps(candidate: Candidate) -> bool:
    return "local_steps" in candidate.recipe.algorithm_settings


def _preference(among: Sequence[Candidate]) -> Callable[[Candidate], tuple[object, ...]]:
    """The order of candidates that are about as good in trials, or not tried."""
    least = min((c.excess for c in among), default=0.0)

    def key(candidate: Candidate) -> tuple[object, ...]:
        # What a client's own noise does to its local steps is in no prediction.
        noisier = candidate.excess if candidate.excess > SAME_NOISE * least else least
        return _takes_local_steps(candidate), candidate.varied, noisier, candidate.work

    return key


def _worlds(recipe: Recipe, real: Federation) -> Iterator[Federation]:
    """Synthetic records of the same shape."""
    # Without a public norm, features are assumed to be of about 1/2 each, as in `feature_scale`.
    norm = feature_norm(recipe) or math.sqrt(math.prod(real.feature_shape)) / 2
    return worlds_like(real, norm, seed=recipe.seed, target_bound=recipe.public_target_bound)


def _tried(candidates: Sequence[Candidate], trials: int, worlds: Sequence[Federation]) -> list[Candidate]:
    """The candidates with their scores on synthetic records, best first."""
    twins: dict[tuple[object, ...], list[Candidate]] = {}
    for candidate in candidates:
        alike = twins.setdefault(candidate.same, [])
        alike += [] if candidate in alike else [candidate]
    groups = list(twins.values())[:trials]
    found = race([alike[0].recipe for alike in groups], worlds)
    if all(scores is None for scores in found):
        raise RequestError("all candidates that were tried diverged on synthetic records; allow others")
    return _ranked(
        [(one, scores) for alike, scores in zip(groups, found, strict=True) if scores for one in alike]
    )


def _ranked(tried: Sequence[tuple[Candidate, TrialScores]]) -> list[Candidate]:
    """By score; those that trials cannot tell from the best by preference."""
    ordered = sorted(tried, key=lambda pair: -mean(pair[1]))
    alike: list[Candidate] = []
    behind: list[Candidate] = []
    for candidate, scores in ordered:
        gap, error = lag(scores, ordered[0][1])
        near = gap <= max(ABOUT_EQUAL, CHANCE * error)
        (alike if near else behind).append(replace(candidate, score=mean(scores)))
    return [*sorted(alike, key=_preference(alike)), *behind]
