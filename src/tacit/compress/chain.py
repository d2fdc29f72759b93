"""Two compressors one after the other: fewer coordinates, and fewer bits per coordinate."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.compress.identity import Identity
from tacit.compress.quantiser import Quantiser
from tacit.compress.rand_k import RandK
from tacit.compress.sparse import Sparsifier
from tacit.errors import RequestError


@dataclass(frozen=True)
class Chain(Sparsifier):
    """Rand-k, then a quantiser on the k remaining values.

    Unbiased, because each is unbiased given the other's randomness, with
    1 + omega = (1 + omega of rand-k at d) (1 + omega of the quantiser at k): their second moments multiply.

    >>> from tacit.compress.natural import Natural
    >>> Chain(RandK(fraction=0.05), Natural()).omega(1000)
    21.5
    """

    first: RandK
    """chooses the coordinates"""
    then: Quantiser
    """rounds their values"""

    def __post_init__(self) -> None:
        if not isinstance(self.first, RandK):
            raise RequestError(f"a chain must start with rand-k, not {_name(self.first)}")
        if not isinstance(self.then, Quantiser) or isinstance(self.then, Identity):
            raise RequestError(f"after rand-k a chain must have qsgd or natural, not {_name(self.then)}")

    @property
    def values_as(self) -> Quantiser:
        return self.then

    def kept(self, dim: int) -> int:
        return self.first.kept(dim)

    def omega(self, dim: int) -> float:
        return (1 + self.first.omega(dim)) * (1 + self.then.omega(self.kept(dim))) - 1

    def spec(self) -> str:
        return f"{self.first.spec()}+{self.then.spec()}"


def _name(part: object) -> str:
    spec = getattr(part, "spec", None)
    return str(spec()) if callable(spec) else repr(part)
