"""Decides how much each client counts in the objective, from numbers of records and the noise of the promise."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from tacit.algorithms.calibrate import Privacy
from tacit.algorithms.registry import algorithm_entry
from tacit.engine.batches import mean_noise
from tacit.engine.recipe import Recipe
from tacit.engine.targets import for_each_client
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy import Target
from tacit.privacy.promises.terms import RECORD_COUNTS

NOISE_AWARE, BY_RECORDS, EQUAL = "noise-aware", "records", "equal"
"""The rules for weights that have a name."""

DIFFERENCE = 0.03
"""How far clients' mean gradients are expected to lie apart, relative to the signal of `noise_in_records`.

Of 0.03, 0.1 and 0.3, it gained the most on the tables on which weights matter (docs/results/default-rules.md).
"""

Weights = str | list[float] | dict[str, float] | None
"""As in a recipe."""


def good_weights(recipe: Recipe, federation: Federation) -> Weights:
    """By records, and less where noise hides what a client sends, if sizes are taken as public.

    Whole clients that are protected, messages behind a shuffler and those on a grid have to be alike. A sum has
    one noise, so there, as without noise, every record counts the same.
    """
    weighable = algorithm_entry(recipe.algorithm).weighable
    alike = not weighable or federation.sizes.max() <= 1.1 * federation.sizes.min()
    settled = recipe.weights is not None or federation.weights is not None or recipe.settings_from != "defaults"
    if settled or alike:
        return recipe.weights
    return BY_RECORDS if recipe.privacy == "none" or recipe.trust == "sum" else NOISE_AWARE


def weighted(recipe: Recipe, federation: Federation, privacy: Privacy, dim: int) -> Federation:
    """The federation with the weights of the recipe, for a model with `dim` parameters."""
    if recipe.weights is None:
        return federation
    if recipe.weights == NOISE_AWARE:
        noise = noise_in_records(recipe, federation, privacy, dim)
        made = federation.weighted(noise_aware(federation.sizes.double(), noise).tolist())
        return replace(made, peeks=(*made.peeks, RECORD_COUNTS))
    if isinstance(recipe.weights, str):
        if recipe.weights not in (BY_RECORDS, EQUAL):
            known = f"{NOISE_AWARE!r}, {BY_RECORDS!r}, {EQUAL!r} or a number for each client"
            raise RequestError(f"weights must be {known}, not {recipe.weights!r}")
        return federation.weighted(recipe.weights)
    return federation.weighted(for_each_client("weights", recipe.weights, federation))


def with_numbers(recipe: Recipe, federation: Federation) -> Recipe:
    """The recipe with numbers instead of a rule for weights: who reads it need not know others' records."""
    if not isinstance(recipe.weights, str) or federation.weights is None:
        return recipe
    return replace(recipe, weights=federation.weights.tolist())


def noise_in_records(recipe: Recipe, federation: Federation, privacy: Privacy, dim: int) -> Tensor:
    """How many records every client needs for its signal over the whole run to be as large as its noise.

    The noise of many rounds of full batches is that of one release of their mean, spread over `dim` coordinates.
    Sums have a noise of their own, which is the same for all: 0.
    """
    if privacy == "none" or recipe.trust == "sum":
        return torch.zeros(federation.clients, dtype=torch.float64)
    targets = [privacy] * federation.clients if isinstance(privacy, Target) else list(privacy)
    stds = [mean_noise(1.0, 1, 1, target) for target in targets]
    return math.sqrt(dim) * torch.tensor(stds, dtype=torch.float64)


def noise_aware(sizes: Tensor, noise: Tensor) -> Tensor:
    """Shares p_i of clients that are close to their shares of the records, with little noise on the mean.

    They minimise sum_i (p_i noise_i / n_i)^2 + DIFFERENCE^2 sum_i (p_i - n_i / n)^2, where they add up to 1: the
    variance of noise, plus the error if clients differ. With little noise, p_i = n_i / n. With much, p_i is
    proportional to (n_i / noise_i)^2, as of measurements that are weighted by their precision.

    Args:
        sizes: n_i, the number of records of every client.
        noise: the noise of every client, in records (`noise_in_records`).

    >>> sizes, noise = torch.tensor([100.0, 300.0]), torch.tensor([20.0, 20.0])
    >>> [round(share, 3) for share in noise_aware(sizes, noise).tolist()]
    [0.106, 0.894]
    """
    shares = sizes / sizes.sum()
    costs = DIFFERENCE**2 + (noise / sizes).square()
    fixed = DIFFERENCE**2 * shares / costs
    spread = (1 - fixed.sum()) / (1 / costs).sum()
    return fixed + spread / costs
