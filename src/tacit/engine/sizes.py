"""Features of arrays that nobody has described are divided by their sizes, which are learned privately.

Steps and clip norms assume features of about 1/2 each. Named data sets are prepared like this, a schema says how
a table is, and a public norm or size can be given. For other arrays the size is learned from the records before
training, and charged with it.
"""

from __future__ import annotations

from dataclasses import replace

from tacit.algorithms.registry import algorithm_entry
from tacit.data.datasets import DATASETS
from tacit.data.features import build_features
from tacit.engine.fronts import GIVEN, LEARN
from tacit.engine.ranges import ranges_target
from tacit.engine.recipe import Recipe
from tacit.engine.targets import privacy_of
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.noise.additive import build_noise
from tacit.side.release import SideRelease
from tacit.side.sizes import EXPECTED, private_sizes, sizes_release

IN_UNITS = frozenset(["step", "clip_norm", "bound_from", "projection"])
"""Settings of algorithms that depend on the sizes of features and targets: who gives one knows them."""


def with_sizes(
    recipe: Recipe, federation: Federation, *, once: bool = False, look: bool = True
) -> tuple[Recipe, Federation]:
    """The recipe with `data.features` decided, and the records divided by their sizes if those are learned.

    With so few records that noise would hide their size, features are taken as they are given.

    Guarantee: `charged` of the federation is what every client released for it, and every promise includes it.

    Args:
        recipe: it has the promise that is charged, and the noise.
        federation: the records; if they are charged for something already, they are prepared.
        once: no other plan will be made of these records, as in an estimator's `fit`. Only then can noise come
            from the operating system: whoever prepares them again would make another release.
        look: if False, for planning: charged is what would be released, and no record is looked at.
    """
    features = recipe.data_settings.get("features")
    if features is None and _learns(recipe, federation, once):
        recipe = _saying(recipe, LEARN)
    elif features != LEARN:
        return recipe, federation
    if federation.schema is not None:
        raise RequestError(
            f'data.features = "{LEARN}" is for arrays; a schema says how a table is prepared (range = "learn")'
        )
    if federation.charged is not None or federation.features_by is not None:
        return recipe, federation
    if len(federation.feature_shape) != 1:
        raise RequestError(
            f'data.features = "{LEARN}" is for records that are vectors, not of shape '
            f"{list(federation.feature_shape)}: divide them by their public range"
        )
    privacy, secret = privacy_of(recipe, federation), build_noise(recipe.noise).secret
    if secret and not once and privacy != "none":
        raise RequestError(
            f'data.features = "{LEARN}" is only for simulations: with noise = {recipe.noise!r}, every plan would '
            'make another release. Estimators learn sizes once. Otherwise give them: data.features = "sizes:SIZE"'
        )
    if privacy == "none":
        return recipe, federation
    name, target, seed = recipe.stream or "", ranges_target(privacy), None if secret else recipe.seed
    planned = sizes_release(federation, name=name, target=target, seed=seed)
    if planned is None:
        return _saying(recipe, GIVEN), federation
    if not look:
        return recipe, replace(federation, charged=planned.event)
    release = private_sizes(federation, name=name, target=target, seed=seed)
    assert release is not None, "it was planned"
    return recipe, _divided(federation, release)


def _saying(recipe: Recipe, features: str) -> Recipe:
    return replace(recipe, data_settings={**recipe.data_settings, "features": features})


def has_learned_sizes(recipe: Recipe | None) -> bool:
    """Whether a resolved recipe learns the sizes of features."""
    return recipe is not None and recipe.data_settings.get("features") == LEARN


def learned_sizes(federation: Federation) -> list[float]:
    """The learned sizes of records that were charged for them: one for each feature, or one for all."""
    by = federation.features_by
    factors = None if by is None else by.factors
    if factors is None:
        return [EXPECTED]
    sizes = (EXPECTED / factors).tolist()
    return sizes[:1] if len(set(sizes)) == 1 else sizes


def _divided(federation: Federation, release: SideRelease[tuple[float, ...]]) -> Federation:
    """The records with features of about 1/2 each, charged for the release that says how large they were."""
    sizes = release.value if len(set(release.value)) > 1 else release.value[:1]
    federation = replace(federation, charged=release.event)
    if sizes == (EXPECTED,):
        return federation
    spec = "sizes:" + ",".join(f"{size!r}" for size in sizes)
    return federation.mapped(build_features(spec, federation.feature_shape))


def settings_are_open(recipe: Recipe) -> bool:
    """Whether all settings are left open that depend on the sizes of features and targets."""
    given = bool(IN_UNITS & recipe.algorithm_settings.keys())
    named = recipe.model is None or not recipe.model.startswith("module:")
    return not given and named and recipe.settings_from == "defaults"


def can_charge(recipe: Recipe, once: bool) -> bool:
    """Whether something learned about records can be added to this promise, and is learned only once."""
    entry = algorithm_entry(recipe.algorithm)
    by_record = (
        entry.private
        and not entry.client_coins
        and not entry.shuffled
        and recipe.privacy not in ("client", "none")
        and recipe.client_epsilon is None
    )
    return by_record and (once or not build_noise(recipe.noise).secret)


def _learns(recipe: Recipe, federation: Federation, once: bool) -> bool:
    """Whether nothing public says how large features are, and learning it can be charged."""
    described = (
        federation.name in DATASETS
        or federation.schema is not None
        or federation.feature_norm is not None
        or federation.features_by is not None
        or recipe.feature_norm is not None
    )
    vectors = len(federation.feature_shape) == 1
    return vectors and not described and settings_are_open(recipe) and can_charge(recipe, once)
