"""Philox 4x64 at many addresses at once.

A run of many local steps draws a record or two for each client in each step. Creating numpy's generator for every
address takes several times as long as the step itself. Here the first numbers of all addresses are computed
together, and they are the numbers that numpy's generator would draw.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Unsigned = NDArray[np.uint64]

_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_KEY_STEPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_ROUNDS = 10
_LOW, _HALF = np.uint64(2**32 - 1), np.uint64(32)

FIRST = 8
"""The number of 32-bit words in a block."""


def first_words(key: int, counters: Unsigned) -> Unsigned:
    """The first 32-bit words at each counter, in the order in which numpy uses them.

    Args:
        key: 128 bits.
        counters: (addresses, 4), as in the state of numpy's generator.

    Returns:
        (addresses, 8), each below 2^32.
    """
    # numpy increments the counter before every block.
    a, b, c, d = (counters + np.array([1, 0, 0, 0], dtype=np.uint64)).T
    keys = [key % 2**64, key >> 64]
    for _ in range(_ROUNDS):
        (high_a, low_a), (high_c, low_c) = _product(_MULTIPLIERS[0], a), _product(_MULTIPLIERS[1], c)
        a, b, c, d = high_c ^ b ^ np.uint64(keys[0]), low_c, high_a ^ d ^ np.uint64(keys[1]), low_a
        keys = [(k + step) % 2**64 for k, step in zip(keys, _KEY_STEPS, strict=True)]
    words = np.stack([a, b, c, d], axis=1)
    return np.stack([words & _LOW, words >> _HALF], axis=2).reshape(len(words), FIRST)


def _product(constant: int, values: Unsigned) -> tuple[Unsigned, Unsigned]:
    """The high and the low half of 128-bit products."""
    high, low = np.uint64(constant >> 32), np.uint64(constant % 2**32)
    tops, bottoms = values >> _HALF, values & _LOW
    middle = high * bottoms + (low * bottoms >> _HALF)
    other = low * tops + (middle & _LOW)
    return high * tops + (middle >> _HALF) + (other >> _HALF), np.uint64(constant) * values


def below(words: Unsigned, ends: Unsigned) -> tuple[Unsigned, NDArray[np.bool_]]:
    """Uniform integers below `ends`, at most 2^32 - 1, as numpy makes them; and which of them are to be used.

    The others (about one in 2^32 / end) have to be drawn again: numpy goes on to the next word.
    """
    products = words * ends
    return products >> _HALF, (products & _LOW) >= (np.uint64(2**32) - ends) % ends
