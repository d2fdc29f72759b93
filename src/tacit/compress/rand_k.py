"""Random sparsification: k coordinates chosen at random, the others zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.compress.identity import Identity
from tacit.compress.quantiser import Quantiser
from tacit.compress.sparse import Sparsifier
from tacit.errors import RequestError, count, probability


@dataclass(frozen=True, kw_only=True)
class RandK(Sparsifier):
    """Sends k of d coordinates, chosen uniformly, times d/k (SoteriaFL, Example 1): omega = d/k - 1.

    `fraction` sets k = max(1, floor(fraction d)), as SoteriaFL's experiments do with 0.05; `count` sets
    k = min(count, d). Exactly one of them is given. A message carries a 64-bit seed from which the receiver
    computes the k positions, so only values travel. The factor d/k is applied by the sender: a value that it
    would push out of float32 is refused before it is sent.

    >>> RandK(fraction=0.05).kept(50_890), RandK(count=128).kept(100)
    (2544, 100)
    """

    fraction: float | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None and self.fraction is None:
            object.__setattr__(self, "count", count("rand-k count", self.count))
        elif self.fraction is not None and self.count is None:
            object.__setattr__(self, "fraction", float(probability("rand-k fraction", self.fraction)))
        else:
            raise RequestError(
                "rand-k needs exactly one of fraction and count, "
                f"not fraction={self.fraction!r} and count={self.count!r}"
            )

    @property
    def values_as(self) -> Quantiser:
        return Identity()

    def kept(self, dim: int) -> int:
        dim = count("dim", dim)
        if self.count is not None:
            return min(self.count, dim)
        assert self.fraction is not None, "one of the two is given"
        # In floating point 0.29 * 100 is just below 29: a hair of room keeps the floor on the decimal side.
        return min(dim, max(1, math.floor(self.fraction * dim * (1 + 1e-12))))

    def omega(self, dim: int) -> float:
        return dim / self.kept(dim) - 1

    def spec(self) -> str:
        return f"rand-k:{self.fraction if self.count is None else self.count}"
