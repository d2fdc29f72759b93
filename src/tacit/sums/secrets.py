"""A silo's secrets for a batch of rounds. All follow from one seed, so that a restarted silo has them again."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tacit.errors import MessageError
from tacit.sums.group import Bundle, KeyBatch, Rounds, SumGroup
from tacit.sums.masks import agreed, derived, public_half, stretched
from tacit.sums.shamir import COEFFICIENT_BYTES, SHARE_BYTES, checked_share, shares_of

_TAG_BYTES = 16
_NONCE = bytes(12)
"""Every key encrypts one parcel: it belongs to one batch, sender and receiver."""


def parcel_bytes(rounds: int) -> int:
    """The length of one silo's shares for another: two for each round, encrypted."""
    return 2 * SHARE_BYTES * rounds + _TAG_BYTES


def commitment_to(seed: bytes) -> bytes:
    """Public bytes that belong to one seed of a mask and reveal nothing about it."""
    return derived(seed, "commitment")


@dataclass(frozen=True)
class Secrets:
    """The secrets of one silo for one batch.

    seed: 32 bytes from the operating system, for this batch only.
    """

    seed: bytes

    @property
    def sealing(self) -> bytes:
        """The X25519 key with which shares are encrypted."""
        return derived(self.seed, "sealing key")

    def pair_key(self, place: int) -> bytes:
        """The X25519 key of the pairwise masks of the round at this place of the batch."""
        return derived(self.seed, "pair key", _place(place))

    def self_seed(self, place: int) -> bytes:
        """The seed of the silo's own mask for that round."""
        return derived(self.seed, "self mask", _place(place))

    def bundle(self, rounds: Rounds, group: SumGroup, identity: Ed25519PrivateKey) -> Bundle:
        """The public halves, signed."""
        keys = tuple(
            (public_half(self.pair_key(place)), commitment_to(self.self_seed(place)))
            for place in range(rounds.count)
        )
        bundle = Bundle(public_half(self.sealing), keys)
        return Bundle(bundle.sealing, keys, group.signed(identity, "keys", rounds.to_bytes() + bundle.keys))

    def parcels(self, me: int, batch: KeyBatch, threshold: int) -> list[bytes]:
        """For every member of the batch, its shares of this silo's secrets, encrypted for it."""
        shares = [
            shares_of(secret, batch.members, threshold, self._coefficients(purpose, place, threshold))
            for place in range(batch.rounds.count)
            for purpose, secret in (("self", self.self_seed(place)), ("pair", self.pair_key(place)))
        ]
        return [
            self._cipher(me, peer, batch, batch.bundles[peer].sealing).encrypt(
                _NONCE, b"".join(share[n] for share in shares), None
            )
            for n, peer in enumerate(batch.members)
        ]

    def opened(self, parcel: bytes, peer: int, me: int, batch: KeyBatch) -> bytes:
        """The shares that a peer sent to this silo: for every round, of its own mask's seed and its pair key."""
        try:
            content = self._cipher(peer, me, batch, batch.bundles[peer].sealing).decrypt(_NONCE, parcel, None)
        except InvalidTag as error:
            raise MessageError(f"the shares of silo {peer} are not for this silo and batch") from error
        if len(content) != 2 * SHARE_BYTES * batch.rounds.count:
            raise MessageError(f"the shares of silo {peer} have the wrong length")
        for n in range(0, len(content), SHARE_BYTES):
            checked_share(content[n : n + SHARE_BYTES])
        return content

    def _coefficients(self, purpose: str, place: int, threshold: int) -> bytes:
        key = derived(self.seed, f"coefficients {purpose}", _place(place))
        return stretched(key, COEFFICIENT_BYTES * (threshold - 1))

    def _cipher(self, sender: int, receiver: int, batch: KeyBatch, public: bytes) -> AESGCM:
        context = batch.digest + struct.pack("<HH", sender, receiver)
        return AESGCM(agreed(self.sealing, public, "shares", context))


def pair_seed(private: bytes, public: bytes, silos: Sequence[int], round_id: bytes) -> bytes:
    """The seed of the mask that two silos share in a round."""
    return agreed(private, public, "pair mask", round_id + struct.pack("<HH", *sorted(silos)))


def own_seed(seed: bytes, round_id: bytes) -> bytes:
    """The seed of a silo's own mask in a round."""
    return derived(seed, "own mask", round_id)


def _place(place: int) -> bytes:
    return struct.pack("<I", place)
