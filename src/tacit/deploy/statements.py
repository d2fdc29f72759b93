"""Making certificates: a silo makes its own, and the server makes that of the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from tacit.deploy.claims import accountant
from tacit.deploy.finals import Final
from tacit.deploy.job import Job
from tacit.deploy.learning import Ranges
from tacit.deploy.signatures import sign
from tacit.deploy.stated import LEDGER_FILE, Stated
from tacit.deploy.terms import Terms
from tacit.engine.files import write_atomically
from tacit.engine.model_card import ModelCard
from tacit.engine.trained import Trained

CERTIFICATE_FILE, JOB_FILE, MODEL_FILE = "certificate.json", "job.toml", "model.safetensors"
ONLY_STATED_BY_SERVER = {
    "accountant": "which software it used",
    "files": "that the run produced this model",
    "messages_used": "whose messages it used",
    "problems": "what went wrong during the run",
    "rounds": "how many rounds there were",
}
"""What a silo cannot know. The certificate of a run and `tacit verify` label it as such."""


def testify(
    terms: Terms,
    exported: bytes,
    run: str,
    witnessed: Mapping[str, Any],
    key: Ed25519PrivateKey,
    directory: Path,
) -> bytes:
    """Make a silo's certificate of a run and write it, with the ledger and the job next to it.

    Everything in it is public: it follows from settings, who answered when and, unless the promise is to whole
    sites and protects it, the number of records.
    """
    certificate = sign(Stated.by(terms, exported, run, witnessed).body(terms.job), key)
    write_atomically(directory / LEDGER_FILE, exported, mode=0o600)
    write_atomically(directory / JOB_FILE, terms.job.text.encode())
    write_atomically(directory / CERTIFICATE_FILE, certificate)
    return certificate


def testify_run(
    job: Job,
    run: str,
    parameters: Tensor,
    silos: Mapping[str, bytes | None],
    facts: dict[str, Any],
    key: Ed25519PrivateKey,
    directory: Path,
    ranges: Ranges,
) -> bytes:
    """The run's certificate, with those of all silos inside; written with model and job beside it.

    `ranges` were learned before training; the schema that is written has them.
    """
    card_of(job, ranges).save(directory, Trained(job.algorithm.work.model, parameters))
    write_atomically(directory / "recipe.toml", job.recipe.to_toml().encode())
    files = {MODEL_FILE: hashlib.sha256((directory / MODEL_FILE).read_bytes()).hexdigest()}
    inner = {site: None if silo is None else json.loads(silo) for site, silo in silos.items()}
    stated = {**facts, "accountant": accountant(), "files": files}
    certificate = sign(run_body(job.digest, job.recipe.algorithm, job.insecure, run, inner, stated), key)
    write_atomically(directory / JOB_FILE, job.text.encode())
    write_atomically(directory / CERTIFICATE_FILE, certificate)
    return certificate


def ranges_in(job: Job, learned: Mapping[str, Sequence[float]]) -> Ranges:
    """The job's open ranges, in its order, as a ledger or a certificate has them."""
    names = () if job.ranges is None else (one.name for one in job.ranges.limits)
    return {name: (learned[name][0], learned[name][1]) for name in names}


def card_of(job: Job, ranges: Ranges) -> ModelCard:
    """The card of a job's model; `ranges` were learned before training."""
    blank = job.blank()
    if job.schema is not None and ranges:
        blank = replace(blank, schema=job.schema.closed(ranges))
    return ModelCard.of(blank, job.algorithm.work.model, job.recipe)


def run_body(
    job: str, algorithm: str, insecure: bool, run: str, silos: Mapping[str, Any], stated: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of a run's certificate; `stated` has what only the server can say."""
    costs = [silo["epsilon"]["collaboration"] for silo in silos.values() if silo is not None]
    return {
        "kind": "run",
        "run": run,
        "job": job,
        "algorithm": algorithm,
        "insecure_reproducible": insecure,
        "largest_epsilon": max(costs, default=None),
        "silos": dict(silos),
        "only_stated": dict(ONLY_STATED_BY_SERVER),
        **{name: stated[name] for name in ONLY_STATED_BY_SERVER},
        # What silos sent for final releases, and what opens their sum: anybody can check it.
        **{str(name): stated[name] for name in Final if name in stated},
    }
