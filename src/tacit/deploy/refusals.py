"""Why a silo does not answer: a code for the server, and a reason for the silo's operators."""

from __future__ import annotations

from tacit.deploy.seam import Code


class RefusedError(Exception):
    """A code for the server and, if there is more to say, a reason for the silo's operators."""

    def __init__(self, code: Code, reason: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.reason = reason
