"""Targets of regressions that nobody has described: where they lie is learned privately.

First steps and the clip norm of a regression follow from how large residuals are. A schema says so, or
`target_bound`. For other arrays, the middle and the spread of the targets are learned before training, and
charged with it. The intercept of a linear model starts at the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tacit.engine.fronts import LEARN
from tacit.engine.recipe import Recipe
from tacit.engine.sizes import can_charge, settings_are_open
from tacit.engine.targets import privacy_of
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.noise.additive import build_noise
from tacit.privacy import Target
from tacit.privacy.events import composed
from tacit.side.budget import split_target
from tacit.side.middle import Middle, exact_middle, middle_release, private_middle

SHARES = (0.2, 0.3, 0.4)
"""What learning may cost alone, as a share of epsilon: the first that is enough. Training keeps 98, 95 or 92%."""

BOUND = 8.0
"""Few targets lie farther from the middle than so many times half of the distance of the quartiles."""

UNSEEN = Middle(0.0, 2 / 3)
"""What a plan assumes that looks at no record: a standard deviation of about 1."""


def with_middle(
    recipe: Recipe, federation: Federation, *, once: bool = False, look: bool = True
) -> tuple[Recipe, Federation]:
    """The recipe with `target_bound` decided, and the records with what was learned of their targets.

    With so few records that noise would hide the quartiles, nothing is learned.

    Guarantee: `charged` of the federation has what every client released for it, and every promise includes it.

    Args:
        recipe: it has the promise that is charged, and the noise.
        federation: the records; if their middle is known, they are prepared.
        once: no other plan will be made of these records, as in an estimator's `fit`.
        look: if False, for planning: what would be released is charged, and no record is looked at.
    """
    asked = recipe.target_bound == LEARN
    if federation.middle is not None:
        if recipe.privacy != "none" and federation.middle.charged is None:
            raise RequestError(
                "these records know where their targets lie, but nothing was charged for it: plan with the "
                "records as they were given, or give a public bound on their targets"
            )
        learned = recipe.target_bound is None
        return (replace(recipe, target_bound="learn") if learned else recipe), federation
    if not (asked or _learns(recipe, federation, once)):
        return recipe, federation
    if federation.classes is not None or federation.schema is not None:
        raise RequestError(
            f'target_bound = "{LEARN}" is for regressions on arrays; a schema says where targets lie'
        )
    learns = replace(recipe, target_bound="learn")
    privacy, secret = privacy_of(recipe, federation), build_noise(recipe.noise).secret
    if privacy == "none":
        return learns, replace(federation, middle=exact_middle(federation.targets) if look else UNSEEN)
    if secret and not once:
        raise RequestError(
            f'target_bound = "{LEARN}" is only for simulations: with noise = {recipe.noise!r}, every plan would '
            "make another release. Estimators learn it once. Otherwise give a public bound"
        )
    name, targets, seed = recipe.stream or "", middle_targets(privacy), None if secret else recipe.seed
    planned = middle_release(federation, name=name, targets=targets, seed=seed)
    if planned is None:
        return replace(recipe, target_bound=None), federation
    event = planned.event(planned.noise_multiplier)
    found = replace(UNSEEN, charged=event)
    if look:
        release = private_middle(federation, name=name, targets=targets, seed=seed)
        assert release is not None, "it was planned"
        found = release.value
    charged = event if federation.charged is None else composed([federation.charged, event])
    return learns, replace(federation, middle=found, charged=charged)


def middle_targets(privacy: Target | Sequence[Target]) -> list[Target]:
    """What learning the middle may cost alone, cheapest first."""
    return [split_target(privacy, share) for share in SHARES]


def bounded_targets(recipe: Recipe, federation: Federation) -> Federation:
    """The records with a bound on their targets: the recipe's, or one that follows from what was learned."""
    if isinstance(recipe.target_bound, float):
        return replace(federation, target_bound=recipe.public_target_bound)
    middle = federation.middle
    if middle is None or middle.half is None:
        return federation
    named = not (recipe.model or "").startswith("module:")
    starts_there = named and recipe.model_settings.get("intercept", True)
    return replace(federation, target_bound=BOUND * middle.half + (0 if starts_there else abs(middle.centre)))


def left_open(recipe: Recipe, asked: Recipe) -> Recipe:
    """A resolved recipe without the clip norm, if that was not asked for and follows from what was learned.

    With the same records and seed it follows again; for others it would be in the unit of these targets.
    """
    follows = recipe.target_bound == LEARN and "clip_norm" not in asked.algorithm_settings
    return recipe.with_algorithm_settings(clip_norm=None) if follows else recipe


def _learns(recipe: Recipe, federation: Federation, once: bool) -> bool:
    """Whether nothing public says how large targets are, and learning it costs nothing or can be charged."""
    unknown = recipe.target_bound is None and federation.target_bound is None
    plain = federation.classes is None and federation.schema is None and federation.name != "quadratic"
    chargeable = recipe.privacy == "none" or can_charge(recipe, once)
    return unknown and plain and settings_are_open(recipe) and chargeable
