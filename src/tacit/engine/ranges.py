"""Ranges that a schema leaves open, learned privately from the records before training and charged with it."""

from __future__ import annotations

import numpy as np

from tacit.data.encode import Vector
from tacit.data.schema import Schema
from tacit.data.schema.records import Learn, Learned
from tacit.engine.recipe import Recipe
from tacit.engine.targets import privacy_of
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy import Target
from tacit.side.budget import split_target
from tacit.side.ranges import ENDS, Limits, private_ranges

SHARE = 0.2
"""What learning all open ranges would cost alone, as a share of epsilon; training keeps about 98% of it."""


def learner(recipe: Recipe) -> Learn:
    """How the open ranges of a schema are learned in a simulation of this recipe."""

    def learn(federation: Federation, numbers: Vector, schema: Schema) -> Learned:
        limits = [_limits(schema, name) for name in schema.open]
        privacy = privacy_of(recipe, federation)
        if privacy == "none":
            ends = np.nanquantile(numbers, ENDS, axis=0).T.tolist()
            found = {one.name: (low, high) for one, (low, high) in zip(limits, ends, strict=True) if low < high}
            return {one.name: (one.lower, one.upper) for one in limits} | found, None
        if recipe.noise != "gaussian":
            raise RequestError(
                f'range = "learn" is only for simulations: with noise = {recipe.noise!r}, every plan would make '
                "another release. Learn the ranges in a simulation, and give them in the schema"
            )
        targets = [privacy] if isinstance(privacy, Target) else list(privacy)
        assert all(isinstance(target, Target) for target in targets), "a private recipe has targets"
        strictest = Target(min(t.epsilon for t in targets), min(t.delta for t in targets), targets[0].adjacency)
        release = private_ranges(
            federation,
            numbers,
            limits,
            name=recipe.stream or "",
            target=split_target(strictest, SHARE),
            seed=recipe.seed,
        )
        return dict(zip(schema.open, release.value, strict=True)), release.event

    return learn


def _limits(schema: Schema, name: str) -> Limits:
    if name == schema.target.column:
        lower, upper = schema.target.within or (0.0, 1.0)
        return Limits(name, lower, upper)
    column = next(column for column in schema.columns if column.name == name)
    lower, upper = column.within or (0.0, 1.0)
    return Limits(name, lower, upper, column.scale == "log")
