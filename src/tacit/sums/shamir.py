"""Secrets shared among silos so that a threshold of them can restore one, and fewer learn nothing (Shamir 1979).

The shares of a secret are the values, at 1, 2, ..., of a polynomial over a prime field whose value at 0 is the
secret and whose other coefficients are uniform. `threshold` values determine it; with fewer, every secret is
equally likely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tacit.errors import MessageError

PRIME = 2**256 + 297
"""The smallest prime above 2^256, so that 32 bytes are a field element."""

SECRET_BYTES = 32
SHARE_BYTES = 33
COEFFICIENT_BYTES = 48
"""Bytes per random coefficient: reduced modulo PRIME they are uniform up to 2^-127."""


def shares_of(secret: bytes, holders: Sequence[int], threshold: int, random: bytes) -> list[bytes]:
    """One share of a secret for each holder.

    holders: distinct whole numbers from 0.
    random: COEFFICIENT_BYTES uniform bytes for each of the threshold - 1 coefficients.

    >>> shares = shares_of(bytes(31) + b"x", [0, 1, 2], 2, bytes(range(48)))
    >>> restored({0: shares[0], 2: shares[2]})[-1:]
    b'x'
    """
    coefficients = [int.from_bytes(secret)] + [
        int.from_bytes(random[n * COEFFICIENT_BYTES : (n + 1) * COEFFICIENT_BYTES]) % PRIME
        for n in range(threshold - 1)
    ]
    return [_value_at(holder + 1, coefficients).to_bytes(SHARE_BYTES) for holder in holders]


def _value_at(x: int, coefficients: Sequence[int]) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


def checked_share(share: bytes) -> bytes:
    """Return the share if it is a field element; raise `MessageError` otherwise."""
    if len(share) != SHARE_BYTES or int.from_bytes(share) >= PRIME:
        raise MessageError("a share of a secret is not a number of the field")
    return share


def weights_of(holders: Sequence[int]) -> dict[int, int]:
    """The factors with which shares of these holders add up to the secret: Lagrange's polynomials at 0."""
    points = [holder + 1 for holder in holders]
    weights = {}
    for holder, point in zip(holders, points, strict=True):
        others = [other for other in points if other != point]
        above, below = math.prod(others), math.prod(other - point for other in others)
        weights[holder] = above * pow(below, -1, PRIME) % PRIME
    return weights


def restored(shares: Mapping[int, bytes], weights: Mapping[int, int] | None = None) -> bytes:
    """The secret of which these are shares, given exactly as many as the threshold.

    Wrong shares give a wrong secret, or a `MessageError` if the result is no secret at all: compare it with a
    public commitment. `weights` (of these holders) saves time if there are many secrets.
    """
    weights = weights_of(list(shares)) if weights is None else weights
    secret = sum(weights[holder] * int.from_bytes(share) for holder, share in shares.items()) % PRIME
    if secret >= 1 << (8 * SECRET_BYTES):
        raise MessageError("shares do not belong to one secret")
    return secret.to_bytes(SECRET_BYTES)
