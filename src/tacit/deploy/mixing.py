"""A shuffler as a party: the server learns what was sent, but not by whom.

After ISRL-DP (Lowy & Razaviyayn 2023), section 5. All bytes travel through the server, so a message has two
covers: an inner one that only the server can open, and an outer one that only the shuffler can open. The server
passes the covered messages of a round to the shuffler. The shuffler opens the outer covers, checks that there is
exactly one message from each silo of the round, and returns the contents in random order. So the shuffler knows
who sent a message but cannot read it; the server can read it but does not know who sent it.

Why a lying server gains nothing as long as the shuffler does not help it:

- Outer covers are made with each silo's own key, so the server's own messages do not count: it cannot fill a
  round with them to make one silo's message stand out.
- Both covers are for one job, run, round and point (`context_of`). A silo answers a round once, so the messages
  that can be mixed for a round are always the same, and mixing them again reveals nothing. If silos were sent
  different points, so that their messages could be told apart, they are not mixed at all.

Coins (`CoinGradient`) are protected as the sum over all silos, because every single bit is mixed with those of
all others. Mixed bits reveal only how many ones there are, so here they are added instead: a silo gives the
server its counts plus a mask of uniform numbers modulo 2^32, and gives the shuffler the mask's seed. From the
shuffler the server gets the sum of all masks, and with it the sum of all counts, and nothing else.
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
    """The public keys of all parties that seal or open messages. A party reads them from its own folder only."""

    server: bytes
    shuffler: bytes
    silos: Mapping[str, bytes]

    def to_values(self) -> dict[str, Any]:
        """The keys as hexadecimal digits, for TOML."""
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
        """Cover a message for the server, anonymously."""
        return seal(message, self.keys.server, context)

    def outer(self, message: bytes, context: bytes) -> bytes:
        """Cover a message for the shuffler, authenticated as coming from this silo."""
        return seal(message, self.keys.shuffler, context + self.site.encode(), sender=self.key)


def uncovered(sealed: bytes, site: str, key: X25519PrivateKey, keys: PublicKeys, context: bytes) -> bytes:
    """Open the outer cover of a silo's message, at the shuffler."""
    return unseal(sealed, key, context + site.encode(), sender=keys.silos[site])


def context_of(job: str, run: str, round: int, point_digest: bytes) -> bytes:
    """The context that the covers of a round are bound to; all parts have a fixed length."""
    return bytes.fromhex(job) + bytes.fromhex(run) + round.to_bytes(4, "little") + point_digest


def point_digest(body: bytes) -> bytes:
    """The digest of the point as it was sent."""
    return hashlib.sha256(body).digest()


class Mixing(Protocol):
    """How the messages of one round are covered, mixed and read."""

    @property
    def covered_bytes(self) -> int:
        """Length of the part of a silo's message that goes to the shuffler: its first bytes."""
        ...

    @property
    def sent_bytes(self) -> int:
        """Length of what a silo sends."""
        ...

    @property
    def mixed_bytes(self) -> int:
        """Length of what the shuffler returns."""
        ...

    def cover(self, message: bytes, covers: Covers, context: bytes) -> bytes:
        """Cover a message for sending, at a silo."""
        ...

    def mix(self, opened: Sequence[bytes]) -> bytes:
        """What the shuffler returns, given the contents of the outer covers of all silos of a round."""
        ...

    def total(self, sent: Sequence[bytes], mixed: bytes, key: X25519PrivateKey, context: bytes) -> Tensor:
        """The sum of all messages of a round, at the server; `MessageError` if they do not give a valid sum."""
        ...


@dataclass(frozen=True)
class InRandomOrder:
    """Whole messages of equal length, in an order from the operating system's entropy."""

    compressor: Compressor
    dim: int
    cohort: int

    @property
    def covered_bytes(self) -> int:
        """Length of the whole message under two covers."""
        return self._inner_bytes + SEAL_BYTES

    @property
    def sent_bytes(self) -> int:
        """The same: everything that is sent goes to the shuffler."""
        return self.covered_bytes

    @property
    def mixed_bytes(self) -> int:
        """Length of all messages under their inner covers."""
        return self.cohort * self._inner_bytes

    @property
    def _inner_bytes(self) -> int:
        return self.compressor.message_bytes(self.dim) + SEAL_BYTES

    def cover(self, message: bytes, covers: Covers, context: bytes) -> bytes:
        """Put the inner and then the outer cover around a message."""
        return covers.outer(covers.inner(message, context), context)

    def mix(self, opened: Sequence[bytes]) -> bytes:
        """Concatenate the messages in random order."""
        return b"".join(secrets.SystemRandom().sample(list(opened), len(opened)))

    def total(self, sent: Sequence[bytes], mixed: bytes, key: X25519PrivateKey, context: bytes) -> Tensor:
        """Add up the messages that can be read; one that a silo spoilt is left out."""
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
            raise RequestError(f"{self.cohort} silos with {self.bits.bits} bits per value are too many to add")

    @property
    def covered_bytes(self) -> int:
        """Length of the covered seed of a mask."""
        return KEY_BYTES + SEAL_BYTES

    @property
    def sent_bytes(self) -> int:
        """Length of the covered seed and the masked counts."""
        return self.covered_bytes + self.mixed_bytes

    @property
    def mixed_bytes(self) -> int:
        """Length of one number per coordinate."""
        return self.dim * _MODULUS_BITS // 8

    def cover(self, message: bytes, covers: Covers, context: bytes) -> bytes:
        """The covered seed, followed by the masked counts, which look like uniform numbers."""
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
        """The sum of masked counts minus that of the masks. A silo that breaks the rules spoils the round."""
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
    """How the messages of an algorithm are mixed; None if each travels alone."""
    compressor, dim = algorithm.uplink.compressor, algorithm.length
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
                f"no party here sums the messages of {algorithm.name!r} before the server sees them"
            )
