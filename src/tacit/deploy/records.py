"""Loading a silo's own records from a file or from a Python function."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tacit.data import prepare
from tacit.data.encode import Task
from tacit.data.files import KINDS, check_distinct, from_files, read_table
from tacit.data.frames import without_namesakes
from tacit.data.schema import Schema
from tacit.data.schema.records import TableSource, by_client, federate
from tacit.deploy.job import Job
from tacit.deploy.learning import OpenTable
from tacit.engine.recipe import Recipe
from tacit.errors import DataError, RequestError
from tacit.federation import Federation

_SHARED_LOOKS = ("normalise", "pca")
"""Preparation steps that need the records of all clients at once."""


def own_records(
    source: str, job: Job, *, target: str | None = None, prepared: bool = False
) -> Federation | OpenTable:
    """The records of one silo, as a federation of one client; or its table, if the job leaves ranges open.

    `source` is a file or `module:function`; the function takes nothing. If the job has a schema, it must be a
    table (.csv, .parquet, or a function that returns a pandas frame): what does not fit is refused here, by
    the name of the column, before anything is sent. Otherwise it is arrays (.npz, .svmlight, or a function that
    returns (features, targets) or a `Federation`). Of the recipe's preparation steps, only `unit_norm` is applied
    to them, because it treats each record separately. With `prepared`, arrays are used as they are.
    """
    if job.schema is not None and not prepared:
        return _described(source, job.schema, target)
    if not _is_function(source) and Path(source).suffix.lower() in (".csv", ".parquet"):
        raise RequestError(
            f"{source} is a table, but the job has no schema that says what its columns mean: provision the "
            'consortium with schema = "schema.toml", or give prepared arrays (.npz)'
        )
    settings = job.recipe.data_settings
    options: dict[str, Any] = {
        "classes": settings.get("classes", job.classes),
        "task": "regression" if job.classes is None else "classification",
    }
    if _is_function(source):
        records = _called(source, options)
    else:
        records = _read(source, target, settings, options | _columns(source, job))
    if prepared or job.schema is not None:
        return records
    for name in _SHARED_LOOKS:
        if settings.get(name):
            raise RequestError(
                f"data.{name} = {settings[name]!r} in the recipe needs the records of all silos at once: prepare "
                f"them at each silo by a public rule, and leave the setting out of the recipe"
            )
    return _unit_norm(records) if settings.get("unit_norm") is True else records


def _described(source: str, schema: Schema, target: str | None) -> Federation | OpenTable:
    """A table that the consortium's schema describes."""
    if target not in (None, schema.target.column):
        raise RequestError(
            f"--target {target}, but the job's schema predicts {schema.target.column}; leave it out"
        )
    table = TableSource(own_table(source), source, client="this silo")
    if not schema.open:
        return federate([table], schema)
    made = OpenTable((table,), schema)
    # What does not fit is refused here, with the widest ranges.
    assert made.wide.clients == 1, "a silo is one client"
    return made


def own_table(source: str) -> pd.DataFrame:
    """The table of a silo whose job has a schema, as it is."""
    if not _is_function(source):
        return read_table(Path(source))
    frame = _function(source)()
    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"{source} must return a pandas frame, which the job's schema describes")
    return frame


def open_tables(recipe: Recipe) -> OpenTable | None:
    """The tables of all clients of a recipe whose schema leaves ranges open; None for any other recipe."""
    given = recipe.data_settings.get("schema")
    if given is None:
        return None
    schema = given if isinstance(given, Schema) else Schema.read(given)
    if not schema.open:
        return None
    schema.check_confirmed(public_schema=bool(recipe.data_settings.get("public_schema", False)))
    paths: Sequence[str] = recipe.data.split(",")
    check_distinct([Path(path) for path in paths])
    frames: Sequence[pd.DataFrame] = [read_table(Path(path)) for path in paths]
    if schema.client is not None:
        used = list(schema.used)
        parts = [without_namesakes(frame, used, path) for frame, path in zip(frames, paths, strict=True)]
        whole = pd.concat(parts, ignore_index=True)
        paths, frames = zip(*by_client(whole, schema, recipe.data), strict=True)
    elif len(paths) == 1:
        raise RequestError(
            "where ranges are learned, every silo needs a table of its own: name the column in [client] of the "
            "schema, or give one file per silo, joined by commas"
        )
    sources = (TableSource(frame, path, client=path) for frame, path in zip(frames, paths, strict=True))
    return OpenTable(tuple(sources), replace(schema, client=None))


def _is_function(source: str) -> bool:
    module, colon, name = source.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _read(source: str, target: str | None, settings: dict[str, Any], options: dict[str, Any]) -> Federation:
    return from_files([source], target=target or settings.get("target"), **options)


def _columns(source: str, job: Job) -> dict[str, int]:
    """How many features the job says that there are, for files that do not say it."""
    return (
        {"columns": math.prod(job.feature_shape)} if KINDS.get(Path(source).suffix.lower()) == "svmlight" else {}
    )


def _called(source: str, options: dict[str, Any]) -> Federation:
    records = _function(source)()
    if isinstance(records, Federation):
        return records
    try:
        features, targets = records
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{source} must return (features, targets) or a Federation, not {type(records)}"
        ) from error
    return Federation.from_clients([(features, targets)], **options)


def _function(source: str) -> Callable[[], Any]:
    module, _, name = source.partition(":")
    try:
        found: Callable[[], Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RequestError(f"--data {source}: {error}") from error
    return found


def _unit_norm(records: Federation) -> Federation:
    flat = records.features.reshape(records.records, -1).numpy()
    scaled = np.ascontiguousarray(prepare.unit_norm(flat)).reshape(tuple(records.features.shape))
    targets = records.targets.numpy()
    task: Task = "regression" if records.classes is None else "classification"
    return Federation.from_clients([(scaled, targets)], classes=records.classes, task=task)
