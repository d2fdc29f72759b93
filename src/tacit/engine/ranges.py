"""Ranges that a schema leaves open, learned privately from the records before training and charged with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from tacit.algorithms.calibrate import Privacy
from tacit.data.encode import Vector
from tacit.data.schema import Schema
from tacit.data.schema.records import Learn, Learned
from tacit.engine.recipe import Recipe
from tacit.engine.targets import privacy_of
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.noise.additive import build_noise
from tacit.privacy import Target
from tacit.side.budget import split_target
from tacit.side.ranges import ENDS, Limits, RangeSearch, private_ranges, ranges_release

SHARE = 0.2
"""What learning all open ranges would cost alone, as a share of epsilon; training keeps about 98% of it."""


def learner(recipe: Recipe, *, once: bool = False, look: bool = True) -> Learn:
    """How the open ranges of a schema are learned in a simulation of this recipe.

    Args:
        recipe: it has the promise that is charged, and the noise.
        once: the records are prepared for one plan alone, as an estimator's `fit` does. Only then can noise come
            from the operating system: whoever prepares them again would make another release.
        look: if False, for planning: the release is only charged, and the limits stand in for the ranges.
    """

    def learn(federation: Federation, numbers: Vector, schema: Schema) -> Learned:
        limits = limits_of(schema)
        privacy = privacy_of(recipe, federation)
        if privacy == "none":
            ends = np.nanquantile(numbers, ENDS, axis=0).T.tolist()
            found = {one.name: (low, high) for one, (low, high) in zip(limits, ends, strict=True) if low < high}
            return {one.name: (one.lower, one.upper) for one in limits} | found, None
        if recipe.privacy == "client":
            raise RequestError('range = "learn" is accounted per record, not per client: give the ranges')
        secret = build_noise(recipe.noise).secret
        if secret and not once:
            raise RequestError(
                f'range = "learn" is only for simulations: with noise = {recipe.noise!r}, every plan would make '
                "another release. Estimators and deployments learn ranges once: use these, or give public ranges"
            )
        name, target, seed = recipe.stream or "", ranges_target(privacy), None if secret else recipe.seed
        if not look:
            planned = ranges_release(RangeSearch.start(limits), federation, name, target, seed)
            unseen = {one.name: (one.lower, one.upper) for one in limits}
            return unseen, planned.event(planned.noise_multiplier)
        release = private_ranges(federation, numbers, limits, name=name, target=target, seed=seed)
        return dict(zip(schema.open, release.value, strict=True)), release.event

    return learn


def ranges_target(privacy: Privacy) -> Target:
    """What learning all open ranges may cost alone: a share of the strictest of these targets."""
    assert not isinstance(privacy, str), "only a promise can be shared"
    return split_target(privacy, SHARE)


def noise_on_shares(federation: Federation, privacy: Privacy) -> float | None:
    """The noise on the shares of records from which ranges were learned; None if none was. It is public."""
    schema = federation.schema
    if federation.charged is None or schema is None or privacy == "none":
        return None
    # The noise depends on how many ranges there are, not on their limits.
    start = RangeSearch.start([Limits(name, 0.0, 1.0) for name in schema.learned])
    return ranges_release(start, as_released(federation), "", ranges_target(privacy), 0).noise_std


def as_released(federation: Federation) -> Federation:
    """A stand-in, all zeros, with as many records as there were when something was learned from them.

    Some may have been held back for an evaluation since.
    """
    number = int(federation.most_released.sum())
    return replace(
        federation,
        features=torch.zeros(()).expand(number, *federation.feature_shape),
        targets=federation.targets.new_zeros(()).expand(number),
        sizes=federation.most_released,
        held_back=None,
    )


def open_limits(recipe: Recipe, federation: Federation) -> tuple[Limits, ...]:
    """The limits of the ranges that were learned when the records of this recipe were prepared."""
    if federation.charged is None or federation.schema is None:
        return ()
    given = recipe.data_settings["schema"]
    schema = given if isinstance(given, Schema) else Schema.read(given)
    return limits_of(schema)


def limits_of(schema: Schema) -> tuple[Limits, ...]:
    """What is public about the numbers whose ranges a schema leaves open."""
    return tuple(_limits(schema, name) for name in schema.open)


def _limits(schema: Schema, name: str) -> Limits:
    if name == schema.target.column:
        lower, upper = schema.target.within or (0.0, 1.0)
        return Limits(name, lower, upper)
    column = next(column for column in schema.columns if column.name == name)
    lower, upper = column.within or (0.0, 1.0)
    return Limits(name, lower, upper, column.scale == "log")
