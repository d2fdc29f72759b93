"""Derives a bound that is not given, from public data, a private statistic, or an unprotected look at the data.

The bound is based on G, the median norm of a record's gradient where training starts. Norms are bounded by G, and
coordinates by G / sqrt(d) (Fed-SPA (Hu et al. 2021), Assumption 3).
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from tacit.algorithms.calibrate import Privacy
from tacit.data import load
from tacit.engine.recipe import Recipe
from tacit.errors import DataError, RequestError, positive
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.noise.randomness import Purpose, Randomness
from tacit.side import SideRelease, clip_norm_from_quantile, split_target
from tacit.side.clip_norm import BINS
from tacit.side.quantile import planned_quantile

LOWEST, HIGHEST = 1e-3, 1e3
"""Public range in which the private median of norms is searched."""


def find_bound(
    recipe: Recipe,
    model: Model,
    federation: Federation,
    privacy: Privacy,
    data_dir: Path | None = None,
    *,
    look: bool = True,
) -> tuple[Recipe, SideRelease[float] | None]:
    """The recipe with `clip_norm` filled in according to `bound_from`, and the release that this needed.

    - `quantile:SHARE`: the median norm, from a release that alone would cost this share of epsilon.
      It is composed with training, whose noise leaves room for it, and is part of the run's guarantee and ledger.
    - `public:NAME`: the median norm on a public data set of the same shape. Costs no privacy.
    - `median`: the median absolute coordinate of the clients' own gradients, as in Fed-SPA, section 5.1.
      This looks at private data without protection, so it is only for runs without a promise.

    Without `look`, a quantile is charged and not released: the middle of its public range stands in for it.
    """
    bound_from = recipe.algorithm_settings["bound_from"]
    kind, _, value = bound_from.partition(":")
    release: SideRelease[float] | None = None
    if kind == "quantile" and privacy != "none":
        release = _private_norm(recipe, model, federation, privacy, value, look)
        norm = release.value
    elif kind == "public" and value:
        norm = _public_norm(recipe, model, federation, value, data_dir)
    elif bound_from == "median":
        if privacy != "none":
            raise RequestError(
                "bound_from = 'median' looks at private data without noise: set privacy = 'none', or use "
                "'quantile:SHARE', whose cost is in the guarantee, or 'public:NAME'"
            )
        norm = _median_coordinate(recipe, model, federation) * math.sqrt(model.dim)
    else:
        raise RequestError(
            "bound_from must be 'quantile:SHARE' (in a run with a target), 'public:NAME' or 'median', "
            f"not {bound_from!r}"
        )
    each = recipe.algorithm_settings["bound"] == "clip-each-coordinate"
    return recipe.with_algorithm_settings(clip_norm=norm / math.sqrt(model.dim) if each else norm), release


def check_bound_unseen(recipe: Recipe) -> None:
    """Refuses a recipe whose bound is read from the clients' records, for commands that charge nothing."""
    source = recipe.algorithm_settings.get("bound_from")
    if source is not None and not source.startswith("public:"):
        raise RequestError(
            f"bound_from = {source!r} reads records, which only a run charges to the budget: give clip_norm here"
        )


def _private_norm(
    recipe: Recipe, model: Model, federation: Federation, privacy: Privacy, share: str, look: bool
) -> SideRelease[float]:
    if recipe.noise != "gaussian":
        raise RequestError(
            f"bound_from = 'quantile:{share}' is only for simulations: with noise = {recipe.noise!r} every plan "
            "would make another release. Release the statistic once (tacit.side) and give clip_norm"
        )
    assert not isinstance(privacy, str), "only a promise can be shared"
    try:
        target = split_target(privacy, float(share))
    except ValueError as error:
        raise RequestError(f"bound_from = 'quantile:{share}': the share must be between 0 and 1") from error
    # The name is part of the noise's address: another stream makes another release.
    name = f"gradient norms {recipe.stream or ''}".strip()
    if not look:
        middle = math.sqrt(LOWEST * HIGHEST)
        return planned_quantile(
            federation, middle, name=name, lower=LOWEST, upper=HIGHEST, bins=BINS, target=target
        )
    return clip_norm_from_quantile(
        model, federation, lower=LOWEST, upper=HIGHEST, name=name, target=target, seed=recipe.seed
    )


def _public_norm(recipe: Recipe, model: Model, federation: Federation, name: str, data_dir: Path | None) -> float:
    if name == recipe.data:
        raise RequestError(f"bound_from = 'public:{name}': these are the clients' own records, not public data")
    public = load(name, data_dir=data_dir, seed=recipe.seed, **recipe.data_settings)
    if public.feature_shape != federation.feature_shape or public.classes != federation.classes:
        raise DataError(
            f"bound_from = 'public:{name}': its records have the shape {tuple(public.feature_shape)} and "
            f"{public.classes} classes, the clients' {tuple(federation.feature_shape)} and {federation.classes}"
        )
    gradients = model.gradients(_start(recipe, model), public.batch())
    return positive(f"the median norm of gradients on {name}", float(gradients.norms().median()))


def _median_coordinate(recipe: Recipe, model: Model, federation: Federation) -> float:
    """The median over nonzero coordinates: most of an image's gradient may be zero."""
    gradients = model.gradients(_start(recipe, model), federation.batch())
    sums = gradients.weighted_sums(torch.ones(federation.records)).abs()
    means = sums / federation.sizes.to(sums)[:, None]
    return positive("the median coordinate of the clients' gradients", float(means[means > 0].median()))


def _start(recipe: Recipe, model: Model) -> Tensor:
    return model.init(Randomness(recipe.seed).generator(Purpose.INIT))
