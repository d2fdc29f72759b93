"""Random sparsification: k coordinates chosen at random, the others zero."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.compress.identity import Identity
from tacit.compress.kept import KeptCoordinates
from tacit.compress.quantiser import Quantiser
from tacit.compress.sparse import Sparsifier


@dataclass(frozen=True, kw_only=True)
class RandK(KeptCoordinates, Sparsifier):
    """Sends k of d random coordinates, times d/k: omega = d/k - 1 (SoteriaFL (Li et al. 2022), Example 1).

    `fraction` sets k = max(1, floor(fraction d)), as SoteriaFL's experiments do with 0.05; `count` sets
    k = min(count, d). Exactly one of them is given. A message carries a 64-bit seed from which the receiver
    computes the k positions, so only values are sent. The sender applies the factor d/k; a value that would then
    overflow float32 is refused before it is sent.

    >>> RandK(fraction=0.05).kept(50_890), RandK(count=128).kept(100)
    (2544, 100)
    """

    name = "rand-k"

    @property
    def values_as(self) -> Quantiser:
        return Identity()

    def omega(self, dim: int) -> float:
        return dim / self.kept(dim) - 1
