"""The server's part in a search for ranges (`tacit.deploy.learning`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.deploy.frames import Request
from tacit.deploy.gathering import Gathering
from tacit.deploy.learning import JobRanges
from tacit.deploy.reading import Unprepared
from tacit.engine.files import write_atomically
from tacit.errors import MessageError


@dataclass(frozen=True)
class RangeParts(Unprepared):
    """The server's reader for a step."""

    ranges: JobRanges

    @property
    def sent_bytes(self) -> int:
        """Length of a silo's part."""
        return self.ranges.part_bytes

    def quorum(self, quorum: int, asked: int) -> int:
        """The consortium's quorum, or everybody if fewer were asked."""
        return min(quorum, asked)

    def read(self, body: bytes) -> Any | None:
        """Number of records and sums, if they can be read."""
        try:
            return self.ranges.read_part(body)
        except MessageError:
            return None

    def total(self, request: Request, read: Mapping[str, Any]) -> tuple[Tensor, int]:
        """The sum of all parts, and the number of records in it."""
        sums = torch.tensor([own for _, own in read.values()], dtype=torch.float64)
        return sums.sum(0), sum(records for records, _ in read.values())


def learn_ranges(ranges: JobRanges, request: Request, gathering: Gathering, path: Path) -> bytes:
    """Search with the silos; the means of all steps. After a restart, the search goes on where it was.

    The means of a step are on disk before silos are asked for the next one, which tells them the means.
    """
    reader = RangeParts(ranges)
    stored = json.loads(path.read_bytes()) if path.exists() else {}
    means = bytes.fromhex(stored["means"]) if stored.get("run") == request.run else b""
    while len(means) < ranges.most_bytes:
        asked = replace(request, kind="range", round=0, accepted={}, body=means)
        messages, _ = replace(gathering, reader=reader).messages(asked, gathering.sites, {})
        means += ranges.means([messages[site].content for site in gathering.sites if site in messages])
        write_atomically(path, json.dumps({"run": request.run, "means": means.hex()}).encode(), mode=0o600)
    return means
