"""The shuffler mixes what it cannot read, and nobody else can either."""

from __future__ import annotations

from collections import Counter

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tacit.deploy.shuffler import SEAL_BYTES, Shuffler, seal, unseal
from tacit.errors import MessageError, RequestError

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


def _filled(messages: dict[str, bytes]) -> Shuffler:
    shuffler = Shuffler(frozenset(messages), SEAL_BYTES + 1)
    for site, message in messages.items():
        shuffler = shuffler.after(site, seal(message, PUBLIC, CONTEXT))
    return shuffler


def test_all_messages_arrive_in_every_order() -> None:
    messages = {"a": b"1", "b": b"2", "c": b"3"}
    orders: Counter[bytes] = Counter()
    for _ in range(300):
        orders[b"".join(unseal(sealed, ANALYSER, CONTEXT) for sealed in _filled(messages).mixed())] += 1
    assert set(orders) == {b"123", b"132", b"213", b"231", b"312", b"321"}
    # Each is seen 50 times on average; that one is seen fewer than 15 times has a chance below 1e-8.
    assert min(orders.values()) >= 15


def test_nothing_leaves_before_all_are_there() -> None:
    shuffler = Shuffler(frozenset(["a", "b"]), SEAL_BYTES + 1).after("a", seal(b"1", PUBLIC, CONTEXT))
    assert not shuffler.complete
    with pytest.raises(RequestError, match="1 of 2 messages"):
        shuffler.mixed()


def test_strangers_second_messages_and_other_lengths_are_refused() -> None:
    shuffler = Shuffler(frozenset(["a", "b"]), SEAL_BYTES + 1).after("a", seal(b"1", PUBLIC, CONTEXT))
    for site, message in (("c", b"1"), ("a", b"1"), ("b", b"12")):
        with pytest.raises(MessageError):
            shuffler.after(site, seal(message, PUBLIC, CONTEXT))
