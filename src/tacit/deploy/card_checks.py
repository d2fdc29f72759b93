"""Checking the files beside a model that say what its numbers mean: both follow from the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tacit.data.schema import Schema
from tacit.deploy.job import Job
from tacit.deploy.signatures import CertificateError
from tacit.deploy.statements import card_of, ranges_in
from tacit.engine.model_card import CARD, SCHEMA, ModelCard


def check_card(job: Job, learned: Mapping[str, Sequence[float]], files: Mapping[str, bytes]) -> list[str]:
    """What was checked; `CertificateError` if the model's card, or its schema, is not that of the job.

    With another schema, the same weights would predict something else. `learned` has the ranges that silos state.
    """
    if job.ranges is not None and not learned:
        # No silo gave a certificate, or this one was away when they were learned.
        return []
    ranges = ranges_in(job, learned)
    expected, checked = card_of(job, ranges), []
    if SCHEMA in files:
        if _schema(files[SCHEMA]) != expected.schema:
            raise CertificateError(f"{SCHEMA} is not the schema of its job")
        checked.append(f"{SCHEMA} is the schema of the job{', with the learned ranges' if ranges else ''}")
    if CARD in files:
        if _card(files[CARD], expected.schema) != expected:
            raise CertificateError(f"{CARD} does not describe the model of its job")
        checked.append(f"{CARD} describes the model of the job")
    return checked


def _schema(content: bytes) -> Schema | None:
    try:
        return Schema.from_toml(content.decode())
    except ValueError:
        return None


def _card(content: bytes, schema: Schema | None) -> ModelCard | None:
    try:
        return ModelCard.from_json(content.decode(), schema)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
