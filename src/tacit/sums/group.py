"""Who may take part in sums, what they sign, and what a batch of rounds is.

Silos are numbered 0, 1, ..., M - 1, as in the list of provisioned identities.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tacit.errors import MessageError, RequestError, count
from tacit.sums.masks import KEY_BYTES

SIGNATURE_BYTES = 64
CONTEXT_BYTES = 32
MOST_ROUNDS = 1024
"""The most rounds of a batch."""

MOST_SILOS = 1024
_HEAD = struct.Struct("<III")


@dataclass(frozen=True)
class SumGroup:
    """The silos of one run and what they agreed on.

    session: 32 bytes that no other run shares: all signatures are for this session alone.
    identities: the silos' public Ed25519 keys, as provisioned.
    quorum: the least number of silos in a sum.
    colluding: how many silos may help the server.
    """

    session: bytes
    identities: tuple[bytes, ...]
    quorum: int
    colluding: int

    def __post_init__(self) -> None:
        threshold_of(len(self.identities), self.quorum, self.colluding)
        if len(self.session) != CONTEXT_BYTES or len(set(self.identities)) != len(self.identities):
            raise RequestError("a group needs a session of 32 bytes and a different key for every silo")

    @property
    def silos(self) -> int:
        """M, the number of silos."""
        return len(self.identities)

    @property
    def threshold(self) -> int:
        """How many silos must agree before anything is opened; see `threshold_of`."""
        return threshold_of(self.silos, self.quorum, self.colluding)

    def signed(self, key: Ed25519PrivateKey, purpose: str, content: bytes) -> bytes:
        """A silo's signature, for this session and purpose."""
        return key.sign(self._text(purpose, content))

    def has_signed(self, silo: int, signature: bytes, purpose: str, content: bytes) -> bool:
        """Whether a silo has signed this, for this session and purpose."""
        try:
            public = Ed25519PublicKey.from_public_bytes(self.identities[silo])
            public.verify(signature, self._text(purpose, content))
        except (InvalidSignature, ValueError, IndexError):
            return False
        return True

    def _text(self, purpose: str, content: bytes) -> bytes:
        return b"tacit-sum-1 " + purpose.encode() + b"\0" + self.session + content

    def list_bytes(self, silos: Collection[int]) -> bytes:
        """A set of silos as bits."""
        bits = sum(1 << silo for silo in silos)
        return bits.to_bytes(self._list_bytes, "little")

    def list_from(self, content: bytes) -> frozenset[int]:
        """The inverse of `list_bytes`, for bytes that may come from anyone."""
        bits = int.from_bytes(content, "little")
        if len(content) != self._list_bytes or bits >> self.silos:
            raise MessageError("not a list of silos")
        return frozenset(silo for silo in range(self.silos) if bits >> silo & 1)

    @property
    def _list_bytes(self) -> int:
        return (self.silos + 7) // 8


def threshold_of(silos: int, quorum: int, colluding: int) -> int:
    """The number of silos that must agree before a sum is opened: the least above (silos + colluding) / 2.

    Guarantee: two groups of this size share a silo that does not help the server, and an honest silo agrees to
    only one list per round. So no two lists of a round both find enough silos. Numbers for which this is
    impossible, or for which a sum could have a single honest share of noise, are refused.

    >>> threshold_of(5, 4, 1), threshold_of(100, 80, 10)
    (4, 56)
    """
    if count("silos", silos) > MOST_SILOS:
        raise RequestError(f"sums are possible for at most {MOST_SILOS} silos, not {silos}")
    count("quorum", quorum)
    count("colluding", colluding, at_least=0)
    if quorum > silos:
        raise RequestError(f"quorum must be at most the number of silos, {silos}, not {quorum}")
    if quorum - colluding < 2:
        raise RequestError(
            f"quorum = {quorum} and colluding = {colluding}: a sum needs at least two silos that do not help the "
            "server (quorum - colluding >= 2), because a sum with one of them shows that silo's own message"
        )
    threshold = (silos + colluding) // 2 + 1
    if threshold > quorum:
        raise RequestError(
            f"quorum = {quorum} is too small for {silos} silos of which {colluding} may help the server: two "
            f"groups of {quorum} could open two sums of one round. Use quorum >= {threshold}, or fewer colluding"
        )
    return threshold


@dataclass(frozen=True)
class Bundle:
    """A silo's public keys for a batch of rounds, signed with its identity.

    sealing: the X25519 key to which others encrypt shares for this silo.
    rounds: for each round, the X25519 key of the pairwise masks and a commitment to the seed of the own mask.
    """

    sealing: bytes
    rounds: tuple[tuple[bytes, bytes], ...]
    signature: bytes = b""

    @staticmethod
    def length(rounds: int) -> int:
        """Length in bytes."""
        return KEY_BYTES * (1 + 2 * rounds) + SIGNATURE_BYTES

    @property
    def keys(self) -> bytes:
        """What is signed."""
        return self.sealing + b"".join(public + commitment for public, commitment in self.rounds)

    def to_bytes(self) -> bytes:
        """Keys and signature."""
        return self.keys + self.signature

    @classmethod
    def from_bytes(cls, content: bytes, rounds: int) -> Bundle:
        """The inverse, for bytes that may come from anyone."""
        if len(content) != cls.length(rounds):
            raise MessageError("a silo's keys have the wrong length")
        keys = [content[n : n + KEY_BYTES] for n in range(0, len(content) - SIGNATURE_BYTES, KEY_BYTES)]
        pairs = tuple(zip(keys[1::2], keys[2::2], strict=True))
        return cls(keys[0], pairs, content[-SIGNATURE_BYTES:])


@dataclass(frozen=True)
class Rounds:
    """Consecutive rounds that are prepared together. A later batch has a higher number."""

    number: int
    first: int
    count: int

    def __post_init__(self) -> None:
        if not (1 <= self.count <= MOST_ROUNDS and self.first + self.count < 2**31 and self.number < 2**31):
            raise MessageError("not a batch of rounds")

    def to_bytes(self) -> bytes:
        """Three numbers of four bytes."""
        return _HEAD.pack(self.number, self.first, self.count)

    @classmethod
    def from_bytes(cls, content: bytes) -> Rounds:
        """The inverse."""
        if len(content) != _HEAD.size:
            raise MessageError("not a batch of rounds")
        return cls(*_HEAD.unpack(content))

    def place(self, round: int) -> int:
        """The place of a round in the batch; `MessageError` if it is not in it."""
        if not self.first <= round < self.first + self.count:
            raise MessageError("the round is not in the batch that was prepared")
        return round - self.first


ROUNDS_BYTES = _HEAD.size


@dataclass(frozen=True)
class KeyBatch:
    """Rounds, and the keys of the silos that take part in them: what every member signs."""

    rounds: Rounds
    bundles: Mapping[int, Bundle]

    @property
    def members(self) -> tuple[int, ...]:
        """The silos that take part."""
        return tuple(self.bundles)

    @functools.cached_property
    def digest(self) -> bytes:
        """Identifies the batch: rounds, members and all of their keys."""
        return hashlib.sha256(self.to_bytes()).digest()

    def round_id(self, round: int, context: bytes) -> bytes:
        """Identifies one round of this batch and what it is about."""
        return hashlib.sha256(self.digest + struct.pack("<I", round) + context).digest()

    def to_bytes(self) -> bytes:
        """Rounds, then every member's number and keys."""
        parts = (struct.pack("<H", silo) + bundle.to_bytes() for silo, bundle in self.bundles.items())
        return self.rounds.to_bytes() + b"".join(parts)

    @classmethod
    def from_bytes(cls, content: bytes, group: SumGroup) -> KeyBatch:
        """The inverse, for bytes that may come from anyone: every key is checked against its owner's identity."""
        rounds = Rounds.from_bytes(content[:ROUNDS_BYTES])
        each = 2 + Bundle.length(rounds.count)
        rest = content[ROUNDS_BYTES:]
        if len(rest) % each or len(rest) > each * group.silos:
            raise MessageError("the keys of a batch are truncated")
        bundles = {
            int.from_bytes(rest[n : n + 2], "little"): Bundle.from_bytes(rest[n + 2 : n + each], rounds.count)
            for n in range(0, len(rest), each)
        }
        members = list(bundles)
        if members != sorted(bundles) or len(members) * each != len(rest):
            raise MessageError("the members of a batch are not in order")
        if len(members) < group.quorum:
            raise MessageError(f"a batch has {len(members)} members, fewer than the quorum of {group.quorum}")
        for silo, bundle in bundles.items():
            check_bundle(group, rounds, silo, bundle)
        return cls(rounds, bundles)


def check_bundle(group: SumGroup, rounds: Rounds, silo: int, bundle: Bundle) -> None:
    """Raise `MessageError` unless this silo's identity signed these keys, for these rounds of this session."""
    if not group.has_signed(silo, bundle.signature, "keys", rounds.to_bytes() + bundle.keys):
        raise MessageError(f"the keys of silo {silo} are not signed by its identity for these rounds")
