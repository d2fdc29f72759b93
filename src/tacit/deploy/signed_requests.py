"""Requests that only the server of the job can make, whoever carries them.

FLARE passes messages between silos, and tells a silo where a message comes from by a header that its sender
writes. FLARE's server compares it with the sender's token, except for tokens that are no longer registered: a
silo that registers twice keeps one. With it, it could name the server as the origin, open runs at another silo,
and so use up its budget. Therefore the server signs every request with the key that the job names, and parties
read no other.

The signature covers the whole frame, with its job, run and round. So a copy of a request can only ask for what
the server has asked for, and a party answers that with the same bytes again, or with a code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.deploy.frames import Reply
from tacit.deploy.seam import Answer, Backend, Code, Party
from tacit.deploy.signatures import signed_by

SIGNATURE_BYTES = 64

_PURPOSE = b"tacit request\n"
"""The same key signs certificates, which begin differently."""


@dataclass(frozen=True)
class SigningBackend:
    """A backend whose requests carry the server's signature."""

    backend: Backend
    signer: Ed25519PrivateKey

    def run_round(
        self, request: bytes, *, sites: Sequence[str], quorum: int, deadline_seconds: float
    ) -> dict[str, Answer]:
        """Sign the request and send it."""
        signature = self.signer.sign(_text(request))
        return self.backend.run_round(
            signature + request, sites=sites, quorum=quorum, deadline_seconds=deadline_seconds
        )


@dataclass(frozen=True)
class OnlyForServer:
    """A party that answers requests signed with this public key, and refuses all others before it reads them."""

    party: Party
    name: str
    server: str
    """the server's public key, 64 hexadecimal digits"""

    def step(self, request: bytes) -> bytes:
        """The party's answer, or a code."""
        signature, frame = bytes(request[:SIGNATURE_BYTES]), bytes(request[SIGNATURE_BYTES:])
        if not signed_by(self.server, signature, _text(frame)):
            return Reply(Code.MALFORMED, self.name).encode()
        return self.party.step(frame)


def _text(request: bytes) -> bytes:
    return _PURPOSE + hashlib.sha256(request).digest()
