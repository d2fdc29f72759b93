"""A site's records as its job has them, and the stand-in for them that every party can make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tacit.data.schema import Schema
from tacit.engine.fronts import as_given, model_and_records, with_features, without_front
from tacit.errors import RequestError, unknown_name
from tacit.federation import Federation

if TYPE_CHECKING:
    from tacit.deploy.job import Job


def at_site(job: Job, site: str, records: Federation) -> Federation:
    """A silo's own records, under the number and with the weight that the job gives it."""
    if site not in job.sites:
        raise unknown_name("site", site, job.sites)
    if records.clients != 1:
        raise RequestError(f"a silo holds the records of one client, not of {records.clients}")
    if records.records < (least := job.least_records(site)):
        raise RequestError(
            f"the job counts on {least} records at {site}, not {records.records}: agree on a smaller min_records"
        )
    shape, classes = as_given(records)[0], records.classes
    mapped = "features" in job.recipe.data_settings and math.prod(shape) == math.prod(job.feature_shape)
    if (shape != job.feature_shape and not mapped) or classes != job.classes:
        raise RequestError(
            f"the job is about records of shape {list(job.feature_shape)} with classes = {job.classes}; "
            f"these have shape {list(shape)} and classes = {classes}"
        )
    records = _prepared(job, records)
    place = job.blank().client(job.sites.index(site))
    also = (*job.schema.peeks, *job.schema.units) if job.schema is not None else ()
    peeks = tuple(dict.fromkeys((*records.peeks, *also)))
    return replace(records, ids=place.ids, weights=place.weights, schema=job.schema, peeks=peeks)


def _prepared(job: Job, records: Federation) -> Federation:
    """Records with the features that the recipe names, mapped by the frozen part of its model."""
    records = with_features(records, job.recipe.data_settings.get("features"))
    if not without_front(records):
        return records
    return model_and_records(job.recipe.model or "", job.recipe.model_settings, records)[1]


def blank_records(
    sites: Sequence[str],
    each: Sequence[int],
    shape: tuple[int, ...],
    classes: int | None,
    schema: Schema | None = None,
) -> Federation:
    """So many records of zeros for each site, of this shape."""
    return Federation(
        torch.zeros(1).expand(sum(each), *shape),
        torch.zeros(1, dtype=torch.float32 if classes is None else torch.int64).expand(sum(each)),
        torch.tensor(each),
        torch.arange(len(sites)),
        classes=classes,
        names=tuple(sites),
        class_names=None if schema is None else schema.target.classes or None,
        schema=schema,
    )
