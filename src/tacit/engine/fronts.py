"""Fixed functions of records: those that the data's settings name, and the frozen part of a network.

Both are public, so they are applied once before training, and only what follows is trained.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tacit.data.features import JOIN, FeatureMap, build_features
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.models.module import ModuleModel
from tacit.models.registry import build_model
from tacit.models.trainable import RecordByRecord, frozen_tensors, frozen_weights
from tacit.models.trial import made_up, other_records

LEARN, GIVEN = "learn", "given"
"""Values of data.features: divide features by sizes that are learned privately; take them as they are given."""

FRONT = "front"
"""The name of the map that a network's frozen part makes."""


def with_features(federation: Federation, spec: str | None, device: str = "cpu") -> Federation:
    """The federation with the features that `data.features` names, unless it has them already.

    `learn` and `given` name none: sizes are learned in `tacit.engine.sizes`.
    """
    has = None if federation.features_by is None else federation.features_by.spec
    if spec in (None, LEARN, GIVEN) or (has is not None and (has == spec or has.startswith(spec + JOIN))):
        return federation
    if has is not None:
        raise RequestError(f"data.features = {spec!r}, but these records have the features {has!r} already")
    if federation.schema is not None:
        raise RequestError(
            f"data.features = {spec!r} is for arrays and images; a schema says how a table is prepared"
        )
    return federation.mapped(replace(build_features(spec, federation.feature_shape), device=device))


def model_and_records(
    name: str,
    settings: dict[str, Any],
    federation: Federation,
    model: Model | None = None,
    device: str = "cpu",
) -> tuple[Model, Federation]:
    """A model, and the records as it takes them: mapped by its frozen front if it has one.

    Args:
        name, settings: the model as a recipe names it.
        federation: the records, without that front.
        model: the model itself, if it is one of the user's own.
        device: where its frozen front is computed.
    """
    model = build_model(name, federation, settings) if model is None else model
    if not isinstance(model, ModuleModel) or not model.public:
        return model, federation
    record = torch.zeros(federation.feature_shape, dtype=federation.features.dtype)
    split = model.split(record.to(next(model.module.parameters()).device))
    if split is None:
        return model, federation
    front, rest = split
    assumed = (frozen_weights(frozen_tensors(front)),)
    fixed = FeatureMap(FRONT, federation.feature_shape, RecordByRecord(front), None, assumed, device)
    _check_fixed(fixed, federation)
    return rest, federation.mapped(fixed)


def _check_fixed(features: FeatureMap, federation: Federation) -> None:
    """Refuse a front that draws random numbers or remembers other records: a record's features must be fixed."""
    kind, shape = federation.features.dtype, federation.feature_shape
    before: list[tuple[Tensor, Tensor]] = []
    with torch.random.fork_rng(devices=[]):
        for record in (one.to(kind) for one in made_up(1, shape)):
            try:
                once = features(record).nan_to_num()
            except Exception:
                if not before:
                    raise
                # Every network was tried on zeros; not every one takes every number.
                continue
            if not before and not torch.equal(once, features(record).nan_to_num()):
                raise RequestError("the network's frozen part draws random numbers: call module.eval() first")
            before.append((record, once))
        for other in other_records(1, shape):
            with contextlib.suppress(Exception):
                features(other.to(kind))
        for record, once in before:
            if not torch.equal(once, features(record).nan_to_num()):
                raise RequestError(
                    "the network's frozen part gives a record other features after it has seen another one, so "
                    "no bound on one record can hold: keep nothing in forward, such as running means, or call "
                    "module.eval() if that switches it off"
                )


def as_given(federation: Federation) -> tuple[tuple[int, ...], str | None]:
    """The shape of records as they were given, and the setting `data.features` that was applied to them."""
    by = federation.features_by
    if by is None:
        return federation.feature_shape, None
    named = [part for part in by.spec.split(JOIN) if part != FRONT]
    return by.shape, JOIN.join(named) or None


def without_front(federation: Federation) -> bool:
    """Whether the records have not been mapped by the frozen part of a network."""
    return federation.features_by is None or FRONT not in federation.features_by.spec.split(JOIN)
