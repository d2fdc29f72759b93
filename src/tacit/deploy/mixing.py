"""How the server learns what was sent and not by whom: a shuffler as a party (ISRL-DP, section 5).

All bytes travel through the server, so a message has two covers. The inner one only the server can open, the
outer one only the shuffler. The server takes the covered messages of a round to the shuffler, which opens the
outer covers, checks that there is exactly one message of each silo of the round, and gives back what was inside
in random order. So the shuffler sees whose a message is and cannot read it, and the server the other way round.

Why a server that lies gains nothing as long as the shuffler does not help it:

- Outer covers are made with each silo's own key, so that messages of the server's making do not count: it cannot
  fill a round with them until one silo's message stands out.
- Both covers are for one job, run, round and point (`context_of`). A silo answers a round once, so the messages
  that can be mixed for a round are always the same; that they are mixed again tells nothing. And silos that were
  sent different points, so that their messages could be told apart, are not mixed at all.

Coins (`CoinGradient`) are protected as the sum over all silos, because every single bit is mixed with those of
all others. All that mixed bits show is how many ones there are, so here they are added instead: a silo gives the
server its counts plus a mask of uniform numbers modulo 2^32, and the shuffler the mask's seed. From the shuffler
the server gets the sum of all masks, and with it the sum of all counts, and nothing else.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.trust import Travel
from tacit.compress.compressor import Compressor
from tacit.deploy.frames import LARGEST_COORDINATE
from tacit.deploy.sealing import KEY_BYTES, SEAL_BYTES, seal, unseal
from tacit.errors import MessageError, RequestError
from tacit.shuffle.coin_bits import CoinBits

DIGEST_BYTES = 32
_MODULUS_BITS = 32


@dataclass(frozen=True)
class PublicKeys:
    """Of all parties that seal or open messages; a party has them from its own folder, never from a message."""

    server: bytes
    shuffler: bytes
    silos: Mapping[str, bytes]

    def to_values(self) -> dict[str, Any]:
        """As hexadecimal digits."""
        silos = {site: key.hex() for site, key in self.silos.items()}
        return {"server": self.server.hex(), "shuffler": self.shuffler.hex(), "silos": silos}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> PublicKeys:
        """The inverse of `to_values`."""
        try:
            silos = {site: bytes.fromhex(key) for site, key in values["silos"].items()}
            keys = cls(bytes.fromhex(values["server"]), bytes.fromhex(values["shuffler"]), silos)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RequestError(f"not the public keys of a consortium with a shuffler: {error}") from error
        if any(len(key) != KEY_BYTES for key in (keys.server, keys.shuffler, *silos.values())):
            raise RequestError(f"public keys must have {KEY_BYTES} bytes")
        return keys


@dataclass(frozen=True)
class Covers:
    """What a silo needs to cover its messages."""

    site: str
    key: X25519PrivateKey
    keys: PublicKeys

    def inner(self, message: bytes, context: bytes) -> bytes:
        """For the server, from nobody in particular."""
        return seal(message, self.keys.server, context)

    def outer(self, message: bytes, context: bytes) -> bytes:
        """For the shuffler, from this silo."""
        return seal(message, self.keys.shuffler, context + self.site.encode(), sender=self.key)


def uncovered(sealed: bytes, site: str, key: X25519PrivateKey, keys: PublicKeys, context: bytes) -> bytes:
    """What is under the outer cover of a silo's message, for the shuffler."""
    return unseal(sealed, key, context + site.encode(), sender=keys.silos[site])


def context_of(job: str, run: str, round: int, point_digest: bytes) -> bytes:
    """What the covers of a round are for; all parts have a fixed length."""
    return bytes.fromhex(job) + bytes.fromhex(run) + round.to_bytes(4, "little") + point_digest


def point_digest(body: bytes) -> bytes:
    """Of the point as it was sent."""
    return hashlib.sha256(body).digest()


class Mixing(Protocol):
    """How the messages of one round are covered, mixed and read."""

    @property
    def covered_bytes(self) -> int:
        """Of what the shuffler gets of each silo: the first bytes of what it sends."""
        ...

    @property
    def sent_bytes(self) -> int:
        """Of what a silo sends."""
        ...

    @property
    def mixed_bytes(self) -> int:
        """Of what the shuffler gives back."""
        ...

    def cover(self, message: bytes, covers: Covers, context: bytes) -> bytes:
        """What a silo sends for a message."""
        ...

    def mix(self, opened: Sequence[bytes]) -> bytes:
        """What the shuffler gives back for what was under the outer covers of all silos of a round."""
        ...

    def total(self, sent: Sequence[bytes], mixed: bytes, key: X25519PrivateKey, context: bytes) -> Tensor:
        """The sum of all messages of a round, at the server; `MessageError` if they do not add up to one."""
        ...


@dataclass(frozen=True)
class InRandomOrder:
    """Whole messages of equal length, in an order from the operating system's entropy."""

    compressor: Compressor
    dim: int
    cohort: int

    @property
    def covered_bytes(self) -> int:
        """Two covers."""
        return self._inner_bytes + SEAL_BYTES

    @property
    def sent_bytes(self) -> int:
        """All of it is covered."""
        return self.covered_bytes

    @property
    def mixed_bytes(self) -> int:
        """Inner covers only."""
        return self.cohort * self._inner_bytes

    @property
    def _inner_bytes(self) -> int:
        return self.compressor.message_bytes(self.dim) + SEAL_BYTES

    def cover(self, message: bytes, covers: Covers, context: bytes) -> bytes:
        """Twice."""
        return covers.outer(covers.inner(message, context), context)

    def mix(self, opened: Sequence[bytes]) -> bytes:
        """One after the other, in random order."""
        return b"".join(secrets.SystemRandom().sample(list(opened), len(opened)))

    def total(self, sent: Sequence[bytes], mixed: bytes, key: X25519PrivateKey, context: bytes) -> Tensor:
        """Of those that can be read: one that a silo spoilt is left out."""
        total, size = torch.zeros(self.dim), self._inner_bytes
        usable = 0
        for start in range(0, len(mixed), size):
            try:
                packets = self.compressor.decode([unseal(mixed[start : start + size], key, context)], self.dim)
            except MessageError:
                continue
            if bool((packets.sum().abs() <= LARGEST_COORDINATE).all()):
                packets.add_sum_to(total)
                usable += 1
        if not usable:
            raise MessageError("no message of the round can be read")
        return total


@dataclass(frozen=True)
class Added:
    """Counts of ones under masks that the shuffler adds up."""

    bits: CoinBits
    dim: int
    cohort: int

    def __post_init__(self) -> None:
        if self.cohort * self.bits.bits >= 2**_MODULUS_BITS:
            raise RequestError(f"{self.cohort} silos of {self.bits.bits} bits a coordinate are too many to add")

    @property
    def covered_bytes(self) -> int:
        """The seed of a mask."""
        return KEY_BYTES + SEAL_BYTES

    @property
    def sent_bytes(self) -> int:
        """And the masked counts."""
        return self.covered_bytes + self.mixed_bytes

    @property
    def mixed_bytes(self) -> int:
        """One number a coordinate."""
        return self.dim * _MODULUS_BITS // 8

    def cover(self, message: bytes, covers: Covers, context: bytes) -> bytes:
        """The seed, covered; then counts that look like uniform numbers."""
        seed = secrets.token_bytes(KEY_BYTES)
        ones = self.bits.ones(self.bits.decode([message], self.dim).dense())[0].astype(np.uint32)
        masked: bytes = (ones + self._mask(seed)).astype("<u4").tobytes()
        return covers.outer(seed, context) + masked

    def mix(self, opened: Sequence[bytes]) -> bytes:
        """The sum of all masks."""
        total = np.zeros(self.dim, dtype=np.uint32)
        for seed in opened:
            total += self._mask(seed)
        return total.astype("<u4").tobytes()

    def total(self, sent: Sequence[bytes], mixed: bytes, key: X25519PrivateKey, context: bytes) -> Tensor:
        """All counts less all masks; a silo that did not follow the rules spoils the round."""
        ones = np.zeros(self.dim, dtype=np.uint32) - np.frombuffer(mixed, dtype="<u4")
        for one in sent:
            ones += np.frombuffer(one, dtype="<u4", offset=self.covered_bytes)
        if int(ones.max(initial=0)) > self.cohort * self.bits.bits:
            raise MessageError("the counts of a round do not add up")
        return self.bits.values(ones.astype(np.int64), self.cohort)

    def _mask(self, seed: bytes) -> NDArray[np.uint32]:
        stream = Cipher(ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(self.mixed_bytes))
        return np.frombuffer(stream, dtype="<u4")


def mixing_of(algorithm: Algorithm) -> Mixing | None:
    """How the messages of an algorithm are mixed; None where each travels alone."""
    compressor, dim = algorithm.uplink.compressor, algorithm.work.model.dim
    cohort = algorithm.trust.quorum
    match algorithm.travel:
        case Travel.SHUFFLED:
            return InRandomOrder(compressor, dim, cohort)
        case Travel.COUNTED:
            assert isinstance(compressor, CoinBits), "counted messages are bits"
            return Added(compressor, dim, cohort)
        case Travel.ALONE:
            return None
        case Travel.SUMMED:
            raise RequestError(
                f"nobody here adds up the messages of {algorithm.name!r} before the server sees them"
            )
