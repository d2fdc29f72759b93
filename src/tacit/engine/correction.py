"""Correcting a trained regression (`tacit.side.correction`): when, at what cost, and how it is released.

The recipe's `correction` is what the release would cost alone, as a share of epsilon. By default it is a fifth
where a schema says the target's range, records are protected, and public numbers say that noise is small enough;
0 turns it off. Its event is composed with training's, and the noise of training leaves room for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dp_accounting import DpEvent
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Privacy
from tacit.algorithms.registry import algorithm_entry
from tacit.algorithms.secure_sum import SecureSum
from tacit.engine.choices import secure_sum_of
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy import Target, Unit
from tacit.side.budget import split_target
from tacit.side.correction import LITTLE, Correction, Moments, correctable, worthwhile
from tacit.side.noisy_total import NoisyTotal
from tacit.side.release import NoisyMeans, address_of

SHARE, LARGE_SHARE = 0.2, 0.4
"""What the release alone would cost, as a share of epsilon: beside it, training needs about 2% more noise, or 8%.

The large share is for records so many that training hardly notices."""


@dataclass(frozen=True)
class PlannedCorrection:
    """A correction that is ready to be made after training."""

    moments: Moments
    target: Target | None
    """what it may cost alone; None without privacy"""
    secret: bool
    """whether its noise comes from the operating system"""
    trust: SecureSum | None = None
    """if only the sum over all clients is opened: with whom"""

    def event(self, federation: Federation) -> DpEvent | None:
        """What every client releases for it; None without privacy."""
        if self.target is None:
            return None
        release = self._release(federation, self.target, 0, "")
        return release.event(release.noise_multiplier)

    def exposed(self, federation: Federation) -> DpEvent | None:
        """The same if all other clients help the server."""
        if self.target is None or self.trust is None:
            return self.event(federation)
        release = self._total(federation, self.target, self.trust, 0, "")
        return release.exposed(release.noise_multiplier)

    def noise_std(self, federation: Federation) -> float:
        """The noise on means over all records."""
        if self.target is None:
            return 0.0
        release = self._release(federation, self.target, 0, "")
        if isinstance(release, NoisyMeans):
            return release.noise_std
        return release.share_std * math.sqrt(federation.clients) / federation.records

    def learned(self, sums: Tensor, point: Tensor, federation: Federation, seed: int, stream: str) -> Correction:
        """The correction of a trained model, from all clients' sums of `moments` at its parameters.

        Every call is a release: with noise from a seed, the same one.
        """
        if self.target is None:
            return self.moments.read(sums.sum(0) / federation.records, 0.0)
        release = self._release(federation, self.target, seed, address_of(stream, point))
        total = release.messages(sums).sum(0) if isinstance(release, NoisyMeans) else release.total(sums)
        return self.moments.read(total / federation.records, self.noise_std(federation))

    def _release(self, federation: Federation, target: Target, seed: int, name: str) -> NoisyMeans | NoisyTotal:
        if self.trust is not None:
            return self._total(federation, target, self.trust, seed, name)
        return correction_release(self.moments, federation, name, target, None if self.secret else seed)

    def _total(
        self, federation: Federation, target: Target, trust: SecureSum, seed: int, name: str
    ) -> NoisyTotal:
        own_seed, honest = None if self.secret else seed, trust.honest
        return correction_total(self.moments, name, target, own_seed, clients=federation.clients, honest=honest)


def correction_release(
    moments: Moments, federation: Federation, question: str, target: Target, seed: int | None
) -> NoisyMeans:
    """The release of every client, if the server sees them."""
    return NoisyMeans(federation, f"correction {question}", moments.bound, 1, target, seed, moments.dim)


def correction_total(
    moments: Moments, question: str, target: Target, seed: int | None, *, clients: int, honest: int
) -> NoisyTotal:
    """The release of the sum over all clients, if only that is opened."""
    name = f"correction {question}"
    return NoisyTotal(name, moments.bound, target, seed, moments.dim, clients=clients, honest=honest)


def plan_correction(
    recipe: Recipe, federation: Federation, algorithm: Algorithm, privacy: Privacy
) -> tuple[Recipe, PlannedCorrection | None]:
    """The recipe with its correction decided, from public numbers alone; None if there is none."""
    if recipe.correction == 0:
        return recipe, None
    why = why_not(recipe, federation, algorithm)
    if why is not None:
        if recipe.correction is None:
            return recipe, None
        raise RequestError(f"correction = {recipe.correction:g}, but {why}: set correction = 0")
    assert federation.schema is not None, "it has one, or there is a reason"
    goal, trust = federation.schema.target, secure_sum_of(recipe, federation.clients)
    low = ((goal.range or (-1.0, 1.0))[0] - goal.centre) / goal.half

    def planned(share: float, whole: bool) -> PlannedCorrection:
        moments, secret = Moments(low, whole), algorithm.work.noise.secret
        if isinstance(privacy, str):
            return PlannedCorrection(moments, None, secret)
        return PlannedCorrection(moments, split_target(privacy, share, "correction"), secret, trust)

    share = SHARE if recipe.correction is None else recipe.correction
    made = planned(share, whole=True)
    if made.noise_std(federation) > LITTLE:
        made = planned(share, whole=False)
    elif recipe.correction is None:
        share, made = LARGE_SHARE, planned(LARGE_SHARE, whole=True)
    if recipe.correction is None and not worthwhile(made.noise_std(federation)):
        return replace(recipe, correction=0.0), None
    return replace(recipe, correction=share), made


def why_not(recipe: Recipe, federation: Federation, algorithm: Algorithm) -> str | None:
    """Why the model of a recipe cannot be corrected, if it cannot."""
    entry, schema = algorithm_entry(recipe.algorithm), federation.schema
    if schema is None or schema.target.classed:
        return "it takes a number as target, whose public range a schema says"
    if not correctable(algorithm.work.model):
        return "only least squares with an intercept and no penalty can be corrected"
    if recipe.settings_from != "defaults" or recipe.algorithm_settings.get("projection", "none") != "none":
        return "theory's settings and projections say where the model lies"
    if algorithm.work.unit is not Unit.RECORD or recipe.client_epsilon is not None:
        return "it is accounted per record, not per client"
    if entry.shuffled or entry.client_coins:
        return f"its messages would be seen beside those of {recipe.algorithm!r}, which are hidden"
    return None
