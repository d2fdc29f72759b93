"""The envelope of every message: six bytes that identify a message and protect it against damage.

    offset  bytes  field
    0       1      mark and format version: 0xC1 is version 1
    1       1      codec: how the values are written (1 float32, 2 qsgd, 3 natural,
                   4 whole steps, 5 coins, 6 masked); +16: rand-k, seed first; +32: top-k, positions first
    2       4      CRC-32 of the agreement (levels, dim, kept), of the two bytes above and of the body
    6              body: [8 bytes rand-k seed, or top-k positions], then the values

All numbers are little-endian. What both parties agreed on before any message (`Format`) is not sent: for a small
model it would take more space than the values. It is part of the checksum instead, so that a message for another
dimension or another number of levels is still refused. The length of a message also follows from the agreement: a
reader checks it first, and allocates nothing for a message of another length.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.errors import MessageError

MARK = 0xC0
VERSION = 1
_HEADER = struct.Struct("<BB")
_AGREEMENT = struct.Struct("<HQQ")
_CHECKSUM = struct.Struct("<I")
OVERHEAD_BYTES = _HEADER.size + _CHECKSUM.size
"""The number of bytes that the envelope adds to a body."""


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
        header = _HEADER.pack(MARK | VERSION, self.codec)
        header_checksum = zlib.crc32(header, self._agreed())
        messages = []
        for row in bodies:
            body = row.tobytes()
            messages.append(header + _CHECKSUM.pack(zlib.crc32(body, header_checksum)) + body)
        return messages

    def open(self, messages: Sequence[bytes]) -> NDArray[np.uint8]:
        """The bodies, (clients, body_bytes), of messages from untrusted senders.

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

    def _agreed(self) -> int:
        return zlib.crc32(_AGREEMENT.pack(self.levels, self.dim, self.kept))

    def _check(self, position: int, message: bytes) -> None:
        mark, codec = _HEADER.unpack_from(message)
        if mark & 0xF0 != MARK:
            raise MessageError(f"message {position} is not a tacit message: it starts with {message[:4]!r}")
        if mark != MARK | VERSION:
            raise MessageError(f"message {position} has version {mark & 0x0F}, expected {VERSION}")
        if codec != self.codec:
            raise MessageError(f"message {position} has codec {codec}, expected {self.codec}")
        (checksum,) = _CHECKSUM.unpack_from(message, _HEADER.size)
        view = memoryview(message)
        if checksum != zlib.crc32(view[OVERHEAD_BYTES:], zlib.crc32(view[: _HEADER.size], self._agreed())):
            raise MessageError(
                f"message {position} has a wrong checksum: it was damaged in transit, or written for another "
                f"dimension than {self.dim} or for other settings of the compressor"
            )
