"""Sealed messages: X25519 with a single-use key, HKDF-SHA256, ChaCha20-Poly1305.

A message is sealed for a recipient and for one context (job, run, round and point). If the recipient must know
the sender, the key also depends on the sender's secret (the authenticated mode of RFC 9180), so that only the
sender and the recipient could have made the message.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.engine.files import write_atomically
from tacit.errors import DataError, MessageError

KEY_BYTES, _TAG_BYTES = 32, 16
SEAL_BYTES = KEY_BYTES + _TAG_BYTES
"""What sealing adds to every message: the single-use public key and the tag."""

_NONCE = bytes(12)
"""Constant, because no key is used twice."""


def seal(message: bytes, recipient: bytes, context: bytes, *, sender: X25519PrivateKey | None = None) -> bytes:
    """Seal a message so that only the holder of the recipient's private key can read it, in this context.

    >>> key = X25519PrivateKey.generate()
    >>> sealed = seal(b"noise", public_bytes(key), b"run 1, round 3")
    >>> len(sealed) - len(b"noise"), unseal(sealed, key, b"run 1, round 3")
    (48, b'noise')
    """
    once, to = X25519PrivateKey.generate(), X25519PublicKey.from_public_bytes(recipient)
    shared = once.exchange(to) + (sender.exchange(to) if sender else b"")
    key = _key(shared, public_bytes(once), recipient, public_bytes(sender) if sender else b"")
    return public_bytes(once) + ChaCha20Poly1305(key).encrypt(_NONCE, message, context)


def unseal(sealed: bytes, recipient: X25519PrivateKey, context: bytes, *, sender: bytes | None = None) -> bytes:
    """Open a message. `MessageError` if it was damaged, or has another recipient, context or sender."""
    once, ciphertext = sealed[:KEY_BYTES], sealed[KEY_BYTES:]
    try:
        shared = b"".join(
            recipient.exchange(X25519PublicKey.from_public_bytes(public))
            for public in (once, *(() if sender is None else (sender,)))
        )
        key = _key(shared, once, public_bytes(recipient), sender or b"")
        return ChaCha20Poly1305(key).decrypt(_NONCE, ciphertext, context)
    except (InvalidTag, ValueError) as error:
        raise MessageError(
            "a sealed message was damaged, or is for another recipient, run, round or point"
        ) from error


def _key(shared: bytes, once: bytes, recipient: bytes, sender: bytes) -> bytes:
    info = b"tacit-seal-2" + once + recipient + sender
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(shared)


def public_bytes(key: X25519PrivateKey) -> bytes:
    """The public half of a key."""
    return key.public_key().public_bytes_raw()


def write_key(path: Path, key: X25519PrivateKey | Ed25519PrivateKey) -> None:
    """Write a private key to a file that only its owner can read."""
    write_atomically(
        path,
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        mode=0o600,
    )


def read_key(path: Path) -> X25519PrivateKey:
    """The inverse of `write_key`."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a private key for sealed messages: {error}") from error
    if not isinstance(key, X25519PrivateKey):
        raise DataError(f"{path} is not an X25519 key")
    return key
