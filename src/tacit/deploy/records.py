"""Loading a silo's own records from a file or from a Python function."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from tacit.data import build, prepare
from tacit.data.encode import Task
from tacit.data.files import from_files
from tacit.deploy.job import Job
from tacit.errors import DataError, RequestError
from tacit.federation import Federation

_SHARED_LOOKS = ("normalise", "pca")
"""Preparation steps that need the records of all clients at once."""


def own_records(source: str, job: Job, *, target: str | None = None, prepared: bool = False) -> Federation:
    """The records of one silo, as a federation of one client.

    `source` is a file (.csv, .parquet, .npz, .svmlight) or `module:function`; the function takes nothing and
    returns (features, targets) or a `Federation`. Of the recipe's preparation steps, only `unit_norm` is applied
    here, because it treats each record separately. With `prepared`, no step is applied.
    """
    settings = job.recipe.data_settings
    options: dict[str, Any] = {
        "classes": settings.get("classes", job.classes),
        "task": "regression" if job.classes is None else "classification",
    }
    records = _called(source, options) if _is_function(source) else _read(source, target, settings, options)
    if prepared:
        return records
    for name in _SHARED_LOOKS:
        if settings.get(name):
            raise RequestError(
                f"data.{name} = {settings[name]!r} in the recipe needs the records of all silos at once: prepare "
                f"them at each silo by a public rule, and leave the setting out of the recipe"
            )
    return _unit_norm(records) if settings.get("unit_norm") is True else records


def _is_function(source: str) -> bool:
    module, colon, name = source.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _read(source: str, target: str | None, settings: dict[str, Any], options: dict[str, Any]) -> Federation:
    return from_files([source], target=target or settings.get("target"), **options)


def _called(source: str, options: dict[str, Any]) -> Federation:
    module, _, name = source.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RequestError(f"--data {source}: {error}") from error
    records = function()
    if isinstance(records, Federation):
        return records
    try:
        features, targets = records
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{source} must return (features, targets) or a Federation, not {type(records)}"
        ) from error
    return build.from_clients([(features, targets)], **options)


def _unit_norm(records: Federation) -> Federation:
    flat = records.features.reshape(records.records, -1).numpy()
    scaled = np.ascontiguousarray(prepare.unit_norm(flat)).reshape(tuple(records.features.shape))
    targets = records.targets.numpy()
    task: Task = "regression" if records.classes is None else "classification"
    return build.from_clients([(scaled, targets)], classes=records.classes, task=task)
