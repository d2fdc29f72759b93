"""Which reader a job needs."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tacit.deploy.job import Job
from tacit.deploy.mixing import mixing_of
from tacit.deploy.reading import Mixed, OneByOne, Reader
from tacit.deploy.seam import Backend
from tacit.deploy.summed import Summed
from tacit.errors import RequestError


def reader_for(
    job: Job,
    backend: Backend,
    key: X25519PrivateKey | None,
    directory: Path,
    deadline_seconds: float,
    attempts: int,
) -> Reader:
    """The reader for a job. With a shuffler, it needs the server's key for sealed messages."""
    if job.summed:
        return Summed(job, backend, directory, deadline_seconds, attempts)
    mixing = mixing_of(job.algorithm)
    if mixing is None:
        return OneByOne(job)
    if key is None:
        raise RequestError(
            f"algorithm {job.recipe.algorithm!r} needs a shuffler, and the server a key for mixed messages: "
            "provision the consortium with this version, which creates both"
        )
    return Mixed(job, mixing, key, backend, deadline_seconds, attempts)
