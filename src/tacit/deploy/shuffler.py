"""The shuffler of papers/001, section 5, as a party: it mixes sealed messages that it cannot read.

A silo seals its message for the analyser (the server): X25519 with a key of one use, HKDF-SHA256,
ChaCha20-Poly1305. The shuffler gets one sealed message of each silo, waits until there are as many as agreed,
and hands them on in an order from the operating system's entropy. It learns who sent something, not what; the
analyser learns what was sent, not by whom. Both hold as long as the two do not work together, and no longer:
against both at once a message is protected by its own noise alone. Silos must reach the shuffler without the
analyser on the way: who carries a sealed message and can open it has seen whose it is.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.errors import MessageError, RequestError, count

_KEY_BYTES, _TAG_BYTES = 32, 16
SEAL_BYTES = _KEY_BYTES + _TAG_BYTES
"""What sealing adds to every message: the key of one use, and the tag."""

_NONCE = bytes(12)
"""Constant, because no key is used twice."""


def seal(message: bytes, analyser: bytes, context: bytes) -> bytes:
    """A message that only the holder of the analyser's private key can read, for this run and round.

    >>> key = X25519PrivateKey.generate()
    >>> sealed = seal(b"noise", key.public_key().public_bytes_raw(), b"run 1, round 3")
    >>> len(sealed) - len(b"noise"), unseal(sealed, key, b"run 1, round 3")
    (48, b'noise')
    """
    once = X25519PrivateKey.generate()
    public = once.public_key().public_bytes_raw()
    key = _key(once.exchange(X25519PublicKey.from_public_bytes(analyser)), public, analyser)
    return public + ChaCha20Poly1305(key).encrypt(_NONCE, message, context)


def unseal(sealed: bytes, analyser: X25519PrivateKey, context: bytes) -> bytes:
    """The message; `MessageError` if it was damaged, or sealed for somebody or something else."""
    public, ciphertext = sealed[:_KEY_BYTES], sealed[_KEY_BYTES:]
    try:
        shared = analyser.exchange(X25519PublicKey.from_public_bytes(public))
        key = _key(shared, public, analyser.public_key().public_bytes_raw())
        return ChaCha20Poly1305(key).decrypt(_NONCE, ciphertext, context)
    except (InvalidTag, ValueError) as error:
        raise MessageError(
            "a sealed message was damaged, or sealed for another analyser, run or round"
        ) from error


def _key(shared: bytes, once: bytes, analyser: bytes) -> bytes:
    return HKDF(hashes.SHA256(), _KEY_BYTES, salt=None, info=b"tacit-seal-1" + once + analyser).derive(shared)


@dataclass(frozen=True)
class Shuffler:
    """Mixes the sealed messages of one round: exactly one of each of `sites`, all of one length.

    Guarantee: `mixed` is a uniformly random order of what the sites sent, drawn after the last of them arrived,
    and there is none before that. Fewer messages than the accountant counted on would hide less.
    """

    sites: frozenset[str]
    sealed_bytes: int
    """the length of every sealed message: another length would tell its sender"""
    received: tuple[tuple[str, bytes], ...] = ()

    def __post_init__(self) -> None:
        count("sites", len(self.sites))
        count("sealed_bytes", self.sealed_bytes, at_least=SEAL_BYTES)

    def after(self, site: str, sealed: bytes) -> Shuffler:
        """The shuffler with one more message; a stranger's, a second one or another length is refused."""
        if site not in self.sites:
            raise MessageError(f"{site!r} is not among the sites of this round")
        if len(sealed) != self.sealed_bytes:
            raise MessageError(f"a sealed message has {len(sealed)} bytes, not {self.sealed_bytes}")
        if any(site == sender for sender, _ in self.received):
            raise MessageError(f"{site!r} has sent its message already")
        return Shuffler(self.sites, self.sealed_bytes, (*self.received, (site, sealed)))

    @property
    def complete(self) -> bool:
        """Whether all messages are there."""
        return len(self.received) == len(self.sites)

    def mixed(self) -> list[bytes]:
        """The messages in random order, without names."""
        if not self.complete:
            raise RequestError(
                f"{len(self.received)} of {len(self.sites)} messages are there; the promise is about all of them"
            )
        messages = [sealed for _, sealed in self.received]
        secrets.SystemRandom().shuffle(messages)
        return messages
