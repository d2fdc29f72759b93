"""The server's part in a search for ranges (`tacit.deploy.learning`)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tacit.deploy.frames import Request
from tacit.deploy.gathering import Gathering
from tacit.deploy.learning import JobRanges
from tacit.deploy.reading import PartReader
from tacit.engine.files import write_atomically


def learn_ranges(ranges: JobRanges, request: Request, gathering: Gathering, path: Path) -> bytes:
    """Search with the silos; the means of all steps. After a restart, the search goes on where it was.

    The means of a step are on disk before silos are asked for the next one, which tells them the means.
    """
    reader = PartReader(ranges.dim)
    stored = json.loads(path.read_bytes()) if path.exists() else {}
    means = bytes.fromhex(stored["means"]) if stored.get("run") == request.run else b""
    while len(means) < ranges.most_bytes:
        asked = replace(request, kind="range", round=0, accepted={}, body=means)
        messages, _ = replace(gathering, reader=reader).messages(asked, gathering.sites, {})
        means += ranges.means([messages[site].content for site in gathering.sites if site in messages])
        write_atomically(path, json.dumps({"run": request.run, "means": means.hex()}).encode(), mode=0o600)
    return means
