"""What the server asks of silos, as bytes: a kind, then parts of known length."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from tacit.errors import MessageError
from tacit.sums.group import CONTEXT_BYTES, SIGNATURE_BYTES, SumGroup

_CLOSING = struct.Struct("<I")


class SumStep(IntEnum):
    """The five steps that silos are asked for, in order."""

    ADVERTISE = 1
    """your keys for these rounds"""
    SHARE = 2
    """here are everybody's keys: your shares for each of them"""
    DELIVER = 3
    """here are everybody's shares, and everybody's signature under the batch"""
    SIGN = 4
    """these silos' messages arrived: your signature under the list"""
    REVEAL = 5
    """enough silos signed the list: your shares of the secrets that open it"""


def asked(request: bytes) -> tuple[SumStep, bytes]:
    """The kind of a request, and the rest of it."""
    try:
        return SumStep(request[0]), request[1:]
    except (IndexError, ValueError) as error:
        raise MessageError("not a request of a known kind") from error


@dataclass(frozen=True)
class Closing:
    """A round, what it is about, and the silos whose messages are to be opened."""

    round: int
    context: bytes
    silos: frozenset[int]

    def to_bytes(self, group: SumGroup) -> bytes:
        """Of fixed length for a group."""
        return _CLOSING.pack(self.round) + self.context + group.list_bytes(self.silos)

    @staticmethod
    def length(group: SumGroup) -> int:
        """Length in bytes."""
        return _CLOSING.size + CONTEXT_BYTES + len(group.list_bytes(()))

    @classmethod
    def from_bytes(cls, content: bytes, group: SumGroup) -> Closing:
        """The inverse, for bytes that may come from anyone."""
        if len(content) != cls.length(group):
            raise MessageError("not a list of a round")
        start = _CLOSING.size
        silos = group.list_from(content[start + CONTEXT_BYTES :])
        return cls(_CLOSING.unpack_from(content)[0], content[start : start + CONTEXT_BYTES], silos)


def signatures_to_bytes(signatures: Mapping[int, bytes]) -> bytes:
    """Signatures by silo."""
    return b"".join(silo.to_bytes(2, "little") + signature for silo, signature in signatures.items())


def signatures_from_bytes(content: bytes, group: SumGroup) -> dict[int, bytes]:
    """The inverse, for bytes that may come from anyone."""
    each = 2 + SIGNATURE_BYTES
    if len(content) % each or len(content) > each * group.silos:
        raise MessageError("not signatures of silos")
    parts = [content[n : n + each] for n in range(0, len(content), each)]
    return {int.from_bytes(part[:2], "little"): part[2:] for part in parts}
