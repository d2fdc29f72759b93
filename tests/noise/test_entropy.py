"""Random bits that nobody else can know."""

from __future__ import annotations

import copy
import os
import pickle
import warnings

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.errors import RequestError, TacitError
from tacit.noise.entropy import KEY_BYTES, Keystream


def blocks_of_counters(key: bytes, blocks: int) -> bytes:
    """Counter mode from its definition: the cipher of 0, 1, 2, ... as 128-bit numbers, highest byte first."""
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return cipher.update(b"".join(i.to_bytes(16, "big") for i in range(blocks)))


def test_the_stream_is_aes_256_in_counter_mode() -> None:
    key = bytes(range(KEY_BYTES))
    drawn = Keystream(key).uint64(60_000)
    assert drawn.dtype == np.uint64
    assert drawn.tobytes() == blocks_of_counters(key, 30_000)


def test_known_answer_for_the_zero_key() -> None:
    # NIST's known answer for AES-256: the zero block under the zero key.
    assert Keystream(bytes(32)).uint64(2).astype("<u8").tobytes().hex() == "dc95c078a2408989ad48a21492842087"


@given(st.lists(st.integers(0, 40_000), max_size=5))
def test_how_a_stream_is_cut_does_not_matter(sizes: list[int]) -> None:
    whole, parts = Keystream(bytes(32)), Keystream(bytes(32))
    together = np.concatenate([np.empty(0, np.uint64), *(parts.uint64(size) for size in sizes)])
    assert np.array_equal(whole.uint64(sum(sizes)), together)


def test_no_two_instances_and_no_two_draws_share_words() -> None:
    streams = [Keystream() for _ in range(20)]
    words = np.concatenate([stream.uint64(500) for stream in streams for _ in range(2)])
    assert len(np.unique(words)) == len(words)


def test_every_bit_is_a_fair_coin() -> None:
    words = Keystream(bytes(32)).uint64(200_000)
    ones = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).sum(0)
    assert stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue > 1e-6
    assert np.abs(ones.astype(np.int64) - 100_000).max() < 6 * np.sqrt(200_000 / 4)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_stream_cannot_be_duplicated(duplicate: object) -> None:
    with pytest.raises(TypeError, match="copied or pickled"):
        duplicate(Keystream())  # type: ignore[operator]


def test_the_key_is_not_kept_where_it_could_be_printed() -> None:
    key = bytes(range(KEY_BYTES))
    stream = Keystream(key)
    assert key not in vars(stream).values()
    assert "000102" not in repr(stream)


def draws_in_a_fork(stream: Keystream) -> str:
    """What happens when a forked child draws: "drew", or the name of the error."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            stream.uint64(1)
            outcome = "drew"
        except BaseException as error:
            outcome = type(error).__name__
        os.write(writer, outcome.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        outcome = pipe.read()
    os.waitpid(child, 0)
    return outcome


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
class TestFork:
    def test_a_child_does_not_repeat_its_parents_words(self) -> None:
        stream = Keystream()
        assert draws_in_a_fork(stream) == "TacitError"
        assert len(stream.uint64(3)) == 3

    def test_not_even_with_its_parents_process_id(self, monkeypatch: pytest.MonkeyPatch) -> None:
        here = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: here)
        assert draws_in_a_fork(Keystream()) == "TacitError"


def test_another_process_id_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # A fork behind Python's back runs no hook.
    stream, elsewhere = Keystream(), os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: elsewhere)
    with pytest.raises(TacitError, match=r"make a new Keystream\(\) there"):
        stream.uint64(1)


@pytest.mark.parametrize("key", [b"", bytes(16), bytes(33)])
def test_keys_of_other_lengths_are_refused(key: bytes) -> None:
    with pytest.raises(RequestError, match="key must have 32 bytes"):
        Keystream(key)


@pytest.mark.parametrize("words", [-1, 1.5, float("nan")])
def test_only_whole_numbers_of_words(words: float) -> None:
    with pytest.raises(RequestError, match="words must be a whole number"):
        Keystream().uint64(words)  # type: ignore[arg-type]
