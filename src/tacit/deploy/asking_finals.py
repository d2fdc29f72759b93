"""The server's part in final releases: ask the silos for their parts, keep them, and add them up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from tacit.deploy.correcting import JobCorrection
from tacit.deploy.final_parts import Gathered
from tacit.deploy.final_release import FinalRelease
from tacit.deploy.frames import Request, point_to_bytes
from tacit.deploy.gathering import Gathering
from tacit.deploy.job import Job
from tacit.deploy.parts import Part, part_bytes
from tacit.deploy.reading import PartReader, Reader
from tacit.deploy.seam import Backend
from tacit.deploy.summed import Summed
from tacit.deploy.summing import Summing
from tacit.engine.files import write_atomically
from tacit.errors import MessageError


class FinalReader(Reader, Protocol):
    """How the server reads the parts of a final release."""

    def gathered(self, request: Request, parts: Mapping[int, Part]) -> Gathered:
        """All of these parts, by the silo's number, and what opens their sum."""
        ...


class SeenParts(PartReader):
    """For parts that the server sees one by one."""

    def gathered(self, request: Request, parts: Mapping[int, Part]) -> Gathered:
        """The parts as they are."""
        return Gathered(hashlib.sha256(request.body).hexdigest(), request.round, parts)


class SummedParts(Summed):
    """For masked parts, of which only the sum can be opened. They are not the messages of training."""

    def __init__(
        self,
        release: FinalRelease,
        job: Job,
        backend: Backend,
        directory: Path,
        deadline_seconds: float,
        attempts: int,
    ) -> None:
        super().__init__(job, backend, directory, deadline_seconds, attempts)
        self._dim = release.question.dim

    @cached_property
    def sent_bytes(self) -> int:
        """Length of a silo's part."""
        return part_bytes(self._dim, masked=True)

    def read(self, body: bytes) -> Any:
        """The part, if it can be read."""
        try:
            return Part.from_bytes(body, self._dim, masked=True)
        except MessageError:
            return None

    def gathered(self, request: Request, parts: Mapping[int, Part]) -> Gathered:
        """Open the sum of these parts."""
        sites = self._job.sites
        masked = {sites[silo]: np.array(part.sums).astype(np.uint32) for silo, part in parts.items()}
        closing, _, secrets = self.opened(request, masked)
        used = {silo: parts[silo] for silo in sorted(closing.silos)}
        return Gathered(hashlib.sha256(request.body).hexdigest(), request.round, used, self.batch, secrets)


@dataclass(frozen=True)
class FinalOutcome:
    """What the final releases of a run came to."""

    parameters: Tensor
    """the model that the run ends with"""
    stated: Mapping[str, Any]
    """what the run's certificate states about them"""
    correction: Mapping[str, Any] | None = None
    """how the trained model was corrected, if it was"""


@dataclass(frozen=True)
class FinalRounds:
    """Asks for the final releases of a run, one after the other.

    Like a round, each needs a quorum. A silo that is missing is left out: sums are divided by the number of
    records of those that answered. With fewer than a quorum, the server stops. If it is restarted, it asks again,
    and silos that have answered send the same bytes. Parts are on disk before anything is opened, and what was
    opened is on disk before silos are asked for anything else: a restarted server ends with the same model.
    """

    job: Job
    gathering: Gathering
    directory: Path
    """the server's own"""
    at: Callable[[str], None]
    """called before and after every release"""

    def outcome(self, certify: Request, trained: Tensor) -> FinalOutcome:
        """The outcome for a trained model; `certify` is the request that comes afterwards."""
        job, parameters, stated, corrected = self.job, trained, dict[str, Any](), None
        group = Summing(job).group(certify.run) if job.summed else None
        for release in job.separate_finals:
            body = point_to_bytes(parameters)
            request = replace(certify, kind=release.name.kind, round=release.round, body=body)
            self.at(f"before {release.name}")
            gathered = self._gathered(release, request)
            self.at(f"after {release.name}")
            stated[release.name] = gathered.to_dict(job.sites)
            if isinstance(release, JobCorrection):
                # Everybody can check what was made of it.
                stated[release.name]["trained"] = body.hex()
                corrected = release.told(gathered, group)
                parameters = release.corrected(job.algorithm.work.model, parameters, gathered, group)
        return FinalOutcome(parameters, stated, corrected)

    def _gathered(self, release: FinalRelease, request: Request) -> Gathered:
        """Have silos release their parts at the model of a request, and open their sum."""
        sites, dim, masked = self.job.sites, release.question.dim, release.trust is not None
        place = self.directory / "finals"
        done, parts = (place / f"{release.name}{end}.json" for end in ("", "-parts"))
        if (stored := _stored(done, request)) is not None:
            return Gathered.from_dict(stored, sites, dim, masked=masked)
        reader = self._reader(release)
        reader.prepare(request)
        bodies = _stored(parts, request)
        if bodies is None:
            messages, _ = replace(self.gathering, reader=reader).messages(request, sites, {})
            bodies = {site: messages[site].reply.body.hex() for site in sites if site in messages}
            _write(parts, request, bodies)
        read = {
            sites.index(site): Part.from_bytes(bytes.fromhex(body), dim, masked=masked)
            for site, body in bodies.items()
        }
        made = reader.gathered(request, read)
        _write(done, request, made.to_dict(sites))
        return made

    def _reader(self, release: FinalRelease) -> FinalReader:
        if release.trust is None:
            return SeenParts(release.question.dim)
        asking = self.gathering
        return SummedParts(
            release, self.job, asking.backend, self.directory, asking.deadline_seconds, asking.attempts
        )


def _write(path: Path, request: Request, values: dict[str, Any]) -> None:
    write_atomically(path, json.dumps({"run": request.run, "values": values}).encode(), mode=0o600)


def _stored(path: Path, request: Request) -> dict[str, Any] | None:
    found = json.loads(path.read_bytes()) if path.exists() else {}
    return found["values"] if found.get("run") == request.run else None
