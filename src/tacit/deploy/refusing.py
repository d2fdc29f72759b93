"""What a silo answers while its records do not fit the job: one code, whatever is asked."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.deploy.frames import Reply, Request
from tacit.deploy.seam import Code
from tacit.errors import MessageError


@dataclass(frozen=True)
class Refusing:
    """A party that takes no part. It has no records, so nothing about one can leave, and nothing is spent."""

    site: str
    code: Code

    def step(self, request: bytes) -> bytes:
        """The code, for the run and round that were asked about."""
        try:
            asked = Request.decode(request)
        except MessageError:
            return Reply(Code.MALFORMED, self.site).encode()
        return Reply(self.code, self.site, asked.run, asked.round).encode()
