"""Masks: uniform numbers from AES-256 in counter mode, and the keys behind them."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.errors import MessageError
from tacit.sums.arithmetic import Residues

KEY_BYTES = 32
_BLOCK = 2**16
_ZEROS = bytes(4 * _BLOCK)


def derived(secret: bytes, purpose: str, context: bytes = b"") -> bytes:
    """A key of 32 bytes for one purpose and context (HKDF with SHA-256)."""
    info = b"tacit-sum-1 " + purpose.encode() + b"\0" + context
    return HKDF(SHA256(), KEY_BYTES, None, info).derive(secret)


def agreed(private: bytes, public: bytes, purpose: str, context: bytes) -> bytes:
    """The key that the holders of two X25519 keys share, for one purpose and context."""
    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise MessageError("a public key is not usable") from error
    return derived(secret, purpose, context)


def public_half(private: bytes) -> bytes:
    """The public half of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def stretched(key: bytes, length: int) -> bytes:
    """Bytes that nobody without the key can tell from uniform ones. Use a key once."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(length))


def add_mask(total: Residues, key: bytes, sign: int) -> None:
    """Add the mask of a key to `total`, modulo 2^32, in place; subtract it if `sign` is -1.

    Modulo 2^32 is also modulo any smaller power of two.
    """
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    buffer = np.empty(min(_BLOCK, len(total)), dtype="<u4")
    combine = np.add if sign > 0 else np.subtract
    for start in range(0, len(total), _BLOCK):
        part = total[start : start + _BLOCK]
        mask = buffer[: len(part)]
        cipher.update_into(_ZEROS[: 4 * len(part)], mask.view(np.uint8).data)
        combine(part, mask, out=part)
