"""Private evaluation through a secure sum, as bytes: one more round of the protocol, after the last one.

Silos add the vectors of the records that they held back, each with a share of the noise, and the server opens
their sum. Nobody learns one silo's part. What opens the sum is in the run's certificate: the masked parts, the
keys, and the secrets that silos revealed for this one list. So whoever reads the certificate opens the sum again,
and sees that it is the sum of what silos have signed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.errors import MessageError
from tacit.sums.arithmetic import Residues
from tacit.sums.group import KeyBatch, SumGroup
from tacit.sums.requests import Closing
from tacit.sums.server import unmasked

_RECORDS = struct.Struct("<I")


@dataclass(frozen=True)
class Part:
    """What a silo sends: how many records it held back, and the masked integers of their vectors' sum."""

    records: int
    masked: Residues


def part_bytes(dim: int) -> int:
    """The length of a part."""
    return _RECORDS.size + 4 * dim


def part_to_bytes(records: int, masked: Sequence[float]) -> bytes:
    """A silo's answer; integers are kept as floats in its ledger."""
    return _RECORDS.pack(records) + np.array(masked, dtype="<u4").tobytes()


def part_from_bytes(content: bytes, dim: int) -> Part:
    """The inverse, for bytes that may come from anyone."""
    if len(content) != part_bytes(dim) or not (records := _RECORDS.unpack_from(content)[0]):
        raise MessageError("not a silo's part of an evaluation")
    return Part(records, np.frombuffer(content[_RECORDS.size :], dtype="<u4").astype(np.uint32))


@dataclass(frozen=True)
class OpenedEvaluation:
    """All that opens the sum of an evaluation. Parts and masks are numbers modulo 2^32."""

    point: str
    """the digest of the model"""
    round: int
    parts: Mapping[int, Part]
    """by the silo's number, those in the sum"""
    batch: bytes
    secrets: Mapping[int, bytes]
    """of every member: the seed of its own mask, or its pair key if it is not in the sum"""

    def total(self, group: SumGroup) -> Residues:
        """The opened sum; `MessageError` unless it is that of these parts, with keys that silos have signed."""
        closing = Closing(self.round, bytes.fromhex(self.point), frozenset(self.parts))
        batch = KeyBatch.from_bytes(self.batch, group)
        if len(closing.silos) < group.quorum or not closing.silos <= set(batch.members):
            raise MessageError("an evaluation is opened for a quorum of members")
        masked: Residues = np.sum([part.masked for part in self.parts.values()], axis=0, dtype=np.uint32)
        return unmasked(batch, closing, masked, self.secrets)

    def to_dict(self, sites: Sequence[str]) -> dict[str, Any]:
        """As plain data for a certificate."""
        return {
            "point": self.point,
            "round": self.round,
            "parts": {
                sites[n]: {"records": part.records, "sums": [float(one) for one in part.masked]}
                for n, part in self.parts.items()
            },
            "batch": self.batch.hex(),
            "secrets": {sites[n]: secret.hex() for n, secret in self.secrets.items()},
        }

    @classmethod
    def from_dict(cls, told: Mapping[str, Any], sites: Sequence[str], dim: int) -> OpenedEvaluation:
        """The inverse, for what a server states; raises `MessageError` if it is malformed."""
        try:
            parts = {
                sites.index(site): part_from_bytes(part_to_bytes(part["records"], part["sums"]), dim)
                for site, part in told["parts"].items()
            }
            secrets = {sites.index(site): bytes.fromhex(secret) for site, secret in told["secrets"].items()}
            made = cls(told["point"], told["round"], parts, bytes.fromhex(told["batch"]), secrets)
            if made.to_dict(sites) != told or len(bytes.fromhex(made.point)) != 32 or type(made.round) is not int:
                raise MessageError("it is not written as a server writes it")
            return made
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
            raise MessageError(f"what opens the evaluation is malformed: {error!s:.200}") from error
