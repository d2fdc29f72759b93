"""The parts of a final release, and what the run's certificate states about all of them.

Where the server sees every message, each silo's sums have all of their noise. With secure sums, they are masked
integers with a share of the noise, and the server opens their total: one more round of the protocol, after the
last one. Nobody learns one silo's part. What opens the total is in the run's certificate: the masked parts, the
keys, and the secrets that silos revealed for this one list. So whoever reads the certificate opens the total
again, and sees that it is that of what silos have signed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacit.deploy.parts import Part
from tacit.errors import MessageError
from tacit.sums.arithmetic import Residues
from tacit.sums.group import KeyBatch, SumGroup
from tacit.sums.requests import Closing
from tacit.sums.server import unmasked


@dataclass(frozen=True)
class Gathered:
    """The parts of a final release and, with secure sums, all that opens their total."""

    point: str
    """the digest of the model"""
    round: int
    parts: Mapping[int, Part]
    """by the silo's number, those that are used"""
    batch: bytes = b""
    """with secure sums: the keys; masked parts are numbers modulo 2^32"""
    secrets: Mapping[int, bytes] = field(default_factory=dict)
    """of every member: the seed of its own mask, or its pair key if it is not in the sum"""

    @property
    def records(self) -> int:
        """How many records are in it."""
        return sum(part.records for part in self.parts.values())

    def opened(self, group: SumGroup) -> Residues:
        """The opened sum; `MessageError` unless it is that of these parts, with keys that silos have signed."""
        closing = Closing(self.round, bytes.fromhex(self.point), frozenset(self.parts))
        batch = KeyBatch.from_bytes(self.batch, group)
        if len(closing.silos) < group.quorum or not closing.silos <= set(batch.members):
            raise MessageError("a sum is opened for a quorum of members")
        each = [np.array(part.sums).astype(np.uint32) for part in self.parts.values()]
        masked: Residues = np.sum(each, axis=0, dtype=np.uint32)
        return unmasked(batch, closing, masked, self.secrets)

    def to_dict(self, sites: Sequence[str]) -> dict[str, Any]:
        """As plain data for a certificate."""
        opens = {
            "batch": self.batch.hex(),
            "secrets": {sites[n]: secret.hex() for n, secret in self.secrets.items()},
        }
        return {
            "point": self.point,
            "round": self.round,
            "parts": {
                sites[n]: {"records": part.records, "sums": list(part.sums)} for n, part in self.parts.items()
            },
            **(opens if self.batch else {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], sites: Sequence[str], dim: int, *, masked: bool) -> Gathered:
        """The inverse, for what a server states; raises `MessageError` if it is malformed."""
        try:
            parts = {
                sites.index(site): Part.from_bytes(
                    Part(part["records"], part["sums"]).to_bytes(masked=masked), dim, masked=masked
                )
                for site, part in values["parts"].items()
            }
            made = cls(values["point"], values["round"], parts)
            if masked:
                secrets = {sites.index(site): bytes.fromhex(secret) for site, secret in values["secrets"].items()}
                made = cls(made.point, made.round, parts, bytes.fromhex(values["batch"]), secrets)
            if (
                made.to_dict(sites) != values
                or len(bytes.fromhex(made.point)) != 32
                or type(made.round) is not int
            ):
                raise MessageError("it is not written as a server writes it")
            return made
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
            raise MessageError(f"what the parts of silos come to is malformed: {error!s:.200}") from error
