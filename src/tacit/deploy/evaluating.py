"""The server's part in an evaluation through a secure sum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tacit.deploy.evaluation_sum import OpenedEvaluation, part_bytes, part_from_bytes
from tacit.deploy.frames import Request
from tacit.deploy.gathering import Gathering
from tacit.deploy.summed import Summed
from tacit.engine.files import write_atomically
from tacit.errors import MessageError


class SummedParts(Summed):
    """The reader for the sum of an evaluation, whose messages are not those of training."""

    @cached_property
    def sent_bytes(self) -> int:
        """Length of a silo's part."""
        return part_bytes(self._dim)

    def read(self, body: bytes) -> Any:
        """The part as it was sent, if it can be read."""
        try:
            part_from_bytes(body, self._dim)
        except MessageError:
            return None
        return body

    def statement(self, request: Request, bodies: Mapping[str, bytes]) -> dict[str, Any]:
        """Open the sum of these parts; what the run's certificate states about it."""
        parts = {site: part_from_bytes(body, self._dim) for site, body in bodies.items()}
        closing, _, secrets = self.opened(request, {site: part.masked for site, part in parts.items()})
        sites, batch = self._job.sites, self.batch
        used = {silo: parts[sites[silo]] for silo in sorted(closing.silos)}
        point = hashlib.sha256(request.body).hexdigest()
        return OpenedEvaluation(point, request.round, used, batch, secrets).to_dict(sites)

    @property
    def _dim(self) -> int:
        assert self._job.evaluation is not None, "the job asks for an evaluation"
        return self._job.evaluation.scoring.dim


def evaluate(request: Request, gathering: Gathering, reader: SummedParts, directory: Path) -> dict[str, Any]:
    """Have silos evaluate a model, and open the sum; after a restart the same one again.

    Parts are on disk before anything is opened, and what was opened is on disk before silos are asked for their
    certificates: then they forget their keys.
    """
    done, parts = directory / "evaluation.json", directory / "parts.json"
    if (stored := _stored(done, request)) is not None:
        return stored
    reader.prepare(request)
    bodies = _stored(parts, request)
    if bodies is None:
        messages, _ = replace(gathering, reader=reader).messages(request, gathering.sites, {})
        bodies = {site: message.content.hex() for site, message in messages.items()}
        _write(parts, request, bodies)
    statement = reader.statement(request, {site: bytes.fromhex(body) for site, body in bodies.items()})
    _write(done, request, statement)
    return statement


def _write(path: Path, request: Request, values: dict[str, Any]) -> None:
    write_atomically(path, json.dumps({"run": request.run, "values": values}).encode(), mode=0o600)


def _stored(path: Path, request: Request) -> dict[str, Any] | None:
    found = json.loads(path.read_bytes()) if path.exists() else {}
    return found["values"] if found.get("run") == request.run else None
