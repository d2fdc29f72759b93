"""The envelope of every message: what it is, for which dimension, and a checksum over all of it.

    offset  bytes  field
    0       4      magic, b"TCIT"
    4       1      format version
    5       1      codec: how the values are written (1 float32, 2 qsgd, 3 natural); +16: rand-k, seed first
    6       2      levels of qsgd, else 0
    8       8      dim: the length of the vector
    16      8      kept: how many coordinates the message carries (dim, or rand-k's k)
    24      4      CRC-32 of all other bytes
    28             body: [8 bytes rand-k seed], then the values

All numbers are little-endian. The length of a message follows from its `Format` alone, which both parties
know before the message exists: a reader compares it first, and allocates nothing for a message that differs.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.errors import MessageError

MAGIC = b"TCIT"
VERSION = 1
_HEADER = struct.Struct("<4sBBHQQ")
_CHECKSUM = struct.Struct("<I")
OVERHEAD_BYTES = _HEADER.size + _CHECKSUM.size
"""What the envelope adds to a body."""


@dataclass(frozen=True)
class Format:
    """What both parties agree on before any message is sent."""

    codec: int
    levels: int
    dim: int
    kept: int
    body_bytes: int

    @property
    def message_bytes(self) -> int:
        """The exact length of every message in this format."""
        return OVERHEAD_BYTES + self.body_bytes

    def seal(self, bodies: NDArray[np.uint8]) -> list[bytes]:
        """One message for each row of `bodies`, of shape (clients, body_bytes)."""
        header = _HEADER.pack(MAGIC, VERSION, self.codec, self.levels, self.dim, self.kept)
        header_checksum = zlib.crc32(header)
        messages = []
        for row in bodies:
            body = row.tobytes()
            messages.append(header + _CHECKSUM.pack(zlib.crc32(body, header_checksum)) + body)
        return messages

    def open(self, messages: Sequence[bytes]) -> NDArray[np.uint8]:
        """The bodies, (clients, body_bytes), of messages that may come from anyone.

        Raises `MessageError` for a message of another length, kind or format, or with a wrong checksum.
        """
        for position, message in enumerate(messages):
            if len(message) != self.message_bytes:
                raise MessageError(
                    f"message {position} has {len(message)} bytes, but this format has exactly "
                    f"{self.message_bytes}: it is truncated, oversized, or written by another compressor"
                )
        for position, message in enumerate(messages):
            self._check(position, message)
        joined = b"".join(memoryview(message)[OVERHEAD_BYTES:] for message in messages)
        return np.frombuffer(joined, dtype=np.uint8).reshape(len(messages), self.body_bytes)

    def _check(self, position: int, message: bytes) -> None:
        magic, version, codec, levels, dim, kept = _HEADER.unpack_from(message)
        if magic != MAGIC:
            raise MessageError(f"message {position} is not a tacit message: it starts with {magic!r}")
        found = {"version": version, "codec": codec, "levels": levels, "dim": dim, "kept": kept}
        expected = {
            "version": VERSION,
            "codec": self.codec,
            "levels": self.levels,
            "dim": self.dim,
            "kept": self.kept,
        }
        for field, value in found.items():
            if value != expected[field]:
                raise MessageError(f"message {position} has {field} {value}, expected {expected[field]}")
        (checksum,) = _CHECKSUM.unpack_from(message, _HEADER.size)
        view = memoryview(message)
        if checksum != zlib.crc32(view[OVERHEAD_BYTES:], zlib.crc32(view[: _HEADER.size])):
            raise MessageError(f"message {position} has a wrong checksum: it was damaged on its way")
