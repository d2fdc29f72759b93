"""Predicts before a run, from public numbers alone, whether anything can be learned at its noise."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from tacit.algorithms.prospect import SHARP, prospect, typical_residual
from tacit.algorithms.secure_sum import SecureSum
from tacit.algorithms.trust import Travel
from tacit.data.datasets import DATASETS
from tacit.engine.given import misfit_step, reach
from tacit.engine.plan import Plan
from tacit.engine.sizes import has_learned_sizes
from tacit.engine.weights import BY_RECORDS, NOISE_AWARE
from tacit.models.linear import LinearModel
from tacit.privacy import Unit
from tacit.server.self_tuned import Prospect

CLEAR = 10.0
"""At this signal-to-noise ratio and above, main effects stand out from the noise."""

ALIKE = 3.0
"""Updates of whole clients point the same way more than gradients of records do: a third of a ratio is enough
(docs/results/default-rules.md)."""


@dataclass(frozen=True)
class Outlook:
    """What public numbers say about a run before it starts."""

    signal_to_noise: float
    """the length of the longest possible mean of all directions, divided by that of their noise"""
    verdict: str
    """"clear", "fair" (noise may hide rare classes and small effects), "noisy" (it costs accuracy) or "hidden"
    (it hides everything)"""
    expected: str
    """the verdict in words"""
    advice: str = ""
    """what would have to change for a better one; empty if nothing"""
    assumed: str = ""
    """what the steps take for granted, or a given step that does not suit the noise; empty if nothing"""
    with_sums: float | None = None
    """the ratio if the server saw only sums of messages; None if it does so already, or cannot"""

    @property
    def sentence(self) -> str:
        """All of it in words."""
        return " ".join(filter(None, (self.expected, self.advice, self.assumed)))

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {**asdict(self), "sentence": self.sentence}


def outlook(plan: Plan) -> Outlook | None:
    """What public numbers say about a plan; None without privacy, because there is no noise."""
    if plan.guarantee is None:
        return None
    known = prospect_of(plan)
    ratio = known.signal_to_noise
    if not _guesses_scale(plan):
        ratio *= reach(plan)
    less = ALIKE if plan.algorithm.work.unit is Unit.CLIENT else 1.0
    clear, sharp, hidden = CLEAR / less, SHARP / less, 1 / less
    gain = _gain_of_sums(plan)
    summed = None if gain is None else ratio * gain
    sums = (
        ""
        if summed is None
        else f" If messages can be summed, --trust sum makes the signal about {two_digits(summed)} times the "
        "noise."
    )
    step = misfit_step(plan, known)
    assumed = (_assumed(plan) + ("" if step is None else f" {step.what} {step.change}")).strip()
    if ratio >= clear:
        expected = f"Over {plan.rounds} rounds the signal can reach about {two_digits(ratio)} times the noise: "
        if ratio >= sharp:
            return Outlook(ratio, "clear", f"{expected}enough to learn from.", "", assumed, summed)
        expected += "enough for main effects, but noise costs accuracy."
        weak = "small effects" if plan.federation.classes is None else "rare classes and small effects"
        advice = f"With a signal below about {two_digits(sharp)} times the noise, {weak} suffer most.{sums}"
        return Outlook(ratio, "fair", expected, advice, assumed, summed)
    # A tenth more is the least that is worth saying.
    needs = f"{_needs(plan, max(1.1, clear / ratio))}, or a model with fewer parameters."
    if ratio >= hidden:
        reached = f"the signal reaches at most {ratio:.2g} times the noise"
        expected = f"Over {plan.rounds} rounds {reached}, which costs accuracy."
        advice = f"A signal of {two_digits(clear)} times the noise would take {needs}{sums}"
        return Outlook(ratio, "noisy", expected, advice, assumed, summed)
    expected = (
        f"Little can be learned: even over {plan.rounds} rounds the noise is {two_digits(1 / ratio)} times as "
        "long as the signal can be."
    )
    sums = "" if summed is None else f" With --trust sum the signal would be {summed:.2g} times the noise."
    return Outlook(ratio, "hidden", expected, f"A clear signal would take {needs}{sums}", "", summed)


def prospect_of(plan: Plan) -> Prospect:
    """What is known of a plan's noise and of the distance that its steps should cover."""
    found = plan.calibration
    return prospect(
        plan.algorithm, plan.federation, found.noise_stds, float(found.noise_multipliers[0]), plan.rounds
    )


def _assumed(plan: Plan) -> str:
    """What the steps take for granted because nothing public says it, and how to say it."""
    advice = ""
    if _guesses_scale(plan):
        advice += (
            " This assumes features of about size 1 each; if yours differ, give their usual size "
            "(--set data.features=sizes:SIZE) or describe the table by a schema."
        )
    if _guesses_targets(plan):
        advice += (
            f" The size of the targets is not known: first steps assume about {assumed_target(plan):.2g}. For a "
            "better model, set target_bound to a public bound on the absolute target."
        )
        if plan.federation.middle is None:
            advice += " If targets lie far from 0 and differ little, subtract a public centre first."
    return advice


def _guesses_targets(plan: Plan) -> bool:
    """Whether nothing public says how large the targets of a regression are."""
    federation = plan.federation
    unknown = federation.classes is None and federation.schema is None and federation.target_bound is None
    return unknown and plan.recipe is not None


def assumed_target(plan: Plan) -> float:
    """The size of residuals that the first steps assume."""
    work, ratio = plan.algorithm.work, prospect_of(plan).signal_to_noise
    return typical_residual(work.model, plan.federation, work.bound.norm(work.bounded), ratio)


def _gain_of_sums(plan: Plan) -> float | None:
    """How many times the ratio would be if the server opened only sums; None if it does already, or cannot.

    All clients then add the same noise to the sum: as much as the one that needs the most, divided by the root of
    the number of honest clients in the smallest sum. Noise-aware weights become those by records.
    """
    algorithm, federation = plan.algorithm, plan.federation
    cohort = algorithm.participation.number_of(federation.clients) or federation.clients
    alone = algorithm.travel is Travel.ALONE and not algorithm.participation.secret
    if not alone or not algorithm.work.adds_up or cohort < 2:
        return None
    stds, weights = plan.calibration.noise_stds, federation.weights
    of_sum = weights
    if plan.recipe is not None and plan.recipe.weights == NOISE_AWARE:
        of_sum = federation.weighted(BY_RECORDS).weights
    apart, together = (stds if by is None else stds * by.double() for by in (weights, of_sum))
    return math.sqrt(SecureSum.of(cohort).honest * float(apart.square().mean() / together.square().max()))


def _guesses_scale(plan: Plan) -> bool:
    """Whether step sizes rest on a guess of how long features are, because no public bound on them is known."""
    federation, by = plan.federation, plan.federation.features_by
    learned = has_learned_sizes(plan.recipe) or (by is not None and by.factors is not None)
    described = federation.name in DATASETS or federation.schema is not None
    scaled = described or federation.feature_norm is not None or learned
    return not scaled and isinstance(plan.algorithm.work.model, LinearModel)


def _needs(plan: Plan, times: float) -> str:
    """What would multiply the signal-to-noise ratio by `times`; noise is roughly proportional to 1/epsilon."""
    clients, larger = plan.federation.clients, f"an epsilon {two_digits(times)} times as large"
    if plan.algorithm.work.unit is Unit.CLIENT:
        alone = not plan.algorithm.trust.charges_everyone
        many = clients * (times**2 if alone else times)
        return f"about {_rounded(many)} clients instead of {clients}, or {larger}"
    schema = plan.federation.schema
    units = "records" if schema is None or schema.person is None else "persons"
    return (
        f"{two_digits(times)} times as many {units} at every client, or about {_rounded(clients * times**2)} "
        f"clients instead of {clients}, or {larger}"
    )


def two_digits(number: float) -> str:
    """An estimate, as it is printed."""
    return f"{float(f'{number:.2g}'):,g}"


def _rounded(number: float) -> str:
    """Rounded to two digits, because it is an estimate."""
    digits = max(0, math.floor(math.log10(number)) - 1)
    return f"{math.ceil(number / 10**digits) * 10**digits:,}"
