"""Sealed messages are for one reader and one context, and may show who sealed them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tacit.deploy.sealing import SEAL_BYTES, public_bytes, read_key, seal, unseal, write_key
from tacit.errors import DataError, MessageError

ANALYSER = X25519PrivateKey.generate()
PUBLIC = ANALYSER.public_key().public_bytes_raw()
CONTEXT = b"run, round 3"


@given(st.binary(max_size=300))
def test_the_analyser_alone_can_read_a_sealed_message(message: bytes) -> None:
    sealed = seal(message, PUBLIC, CONTEXT)
    assert len(sealed) == len(message) + SEAL_BYTES
    assert unseal(sealed, ANALYSER, CONTEXT) == message
    assert seal(message, PUBLIC, CONTEXT) != sealed
    for key, context in ((X25519PrivateKey.generate(), CONTEXT), (ANALYSER, b"run, round 4")):
        with pytest.raises(MessageError):
            unseal(sealed, key, context)


@given(st.data())
def test_a_flipped_bit_of_a_sealed_message_shows(data: st.DataObject) -> None:
    sealed = bytearray(seal(b"a message", PUBLIC, CONTEXT))
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(MessageError):
        unseal(bytes(sealed), ANALYSER, CONTEXT)


@pytest.mark.parametrize("sealed", [b"", b"short", bytes(48), bytes(200)])
def test_bytes_that_nobody_sealed_are_refused(sealed: bytes) -> None:
    with pytest.raises(MessageError):
        unseal(sealed, ANALYSER, CONTEXT)


def test_a_sender_cannot_be_feigned() -> None:
    sender, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    sealed = seal(b"mine", PUBLIC, CONTEXT, sender=sender)
    assert unseal(sealed, ANALYSER, CONTEXT, sender=public_bytes(sender)) == b"mine"
    for wrong in (public_bytes(other), None):
        with pytest.raises(MessageError):
            unseal(sealed, ANALYSER, CONTEXT, sender=wrong)
    with pytest.raises(MessageError):
        unseal(seal(b"mine", PUBLIC, CONTEXT), ANALYSER, CONTEXT, sender=public_bytes(sender))


def test_keys_are_kept_for_their_owner(tmp_path: Path) -> None:
    write_key(tmp_path / "key", ANALYSER)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert public_bytes(read_key(tmp_path / "key")) == PUBLIC
    (tmp_path / "key").write_text("not one")
    with pytest.raises(DataError, match="not a private key"):
        read_key(tmp_path / "key")
