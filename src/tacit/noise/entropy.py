"""Random bits that nobody else can know: the operating system's entropy, stretched by a cipher."""

from __future__ import annotations

import os
import secrets
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from tacit.errors import RequestError, TacitError, count

KEY_BYTES = 32
_ZEROS = bytes(2**17)

_family = object()


def _after_fork_in_child() -> None:
    global _family
    _family = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Keystream:
    """An endless stream of random words for the noise of one party.

    Guarantee: the words are those of AES-256 in counter mode under a key that was drawn from the operating
    system for this instance and never disclosed, so anyone who can tell them from independent uniform words
    can break AES. Among N cipher blocks none repeats, while true randomness would repeat one with probability
    N^2 / 2^129, or 2^-49 for 16 terabytes. The counter has 128 bits and never wraps around. Two instances never
    share words, and a stream cannot be split by accident: copying and pickling are refused, and so is drawing
    in a forked process, which would repeat its parent's noise.

    Noise whose stream is repeated or known can be subtracted. This class cannot detect a virtual machine that is
    restored from a snapshot twice: create the stream after the restart. The key stays in the memory of the
    process as long as the stream does.

    A given `key` makes the stream reproducible. Use it in tests only: the noise then protects nothing.

    >>> Keystream(bytes(32)).uint64(2).tolist()
    [9910523521560253916, 9736928157321283757]
    >>> bool((Keystream().uint64(4) == Keystream().uint64(4)).any())
    False
    """

    def __init__(self, key: bytes | None = None) -> None:
        key = secrets.token_bytes(KEY_BYTES) if key is None else key
        if len(key) != KEY_BYTES:
            raise RequestError(f"key must have {KEY_BYTES} bytes, not {len(key)}; leave it out for a fresh one")
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        # The process id is not enough: a child in another PID namespace may have the same id as its parent.
        self._owner = (_family, os.getpid())

    def uint64(self, words: int) -> NDArray[np.uint64]:
        """The next `words` words, uniform on [0, 2**64): 8 bytes each, the lowest first."""
        words = count("words", words, at_least=0)
        if self._owner != (_family, os.getpid()):
            raise TacitError("a keystream cannot be used in a forked process; make a new Keystream() there")
        drawn = np.empty(words, dtype="<u8")
        target = drawn.view(np.uint8).data
        for start in range(0, len(target), len(_ZEROS)):
            part = target[start : start + len(_ZEROS)]
            self._cipher.update_into(_ZEROS[: len(part)], part)
        return drawn.astype(np.uint64, copy=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a keystream cannot be copied or pickled: both ends would draw the same noise")
