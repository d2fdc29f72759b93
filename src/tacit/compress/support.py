"""The coordinates that a rand-k message will carry, known in advance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tacit.compress.compressor import Compressor
from tacit.compress.sparse import Sparsifier
from tacit.errors import RequestError, count


@dataclass(frozen=True)
class MessageSupport:
    """Predicts the k coordinates that `compressor` will keep, from generators at the same address.

    A sender that works only on these coordinates loses nothing by compression, and its message is an ordinary
    one: a seed and k values. The seed is a generator's first raw number, as `Sparsifier` draws it, and the
    coordinates depend on nothing else.

    >>> from tacit.compress import RandK
    >>> MessageSupport(RandK(count=3)).indices([np.random.default_rng(0)], 10)
    tensor([[0, 6, 9]])
    """

    compressor: Sparsifier

    @classmethod
    def of(cls, compressor: Compressor) -> MessageSupport:
        """The support of a compressor that keeps some coordinates; others are refused."""
        if not isinstance(compressor, Sparsifier):
            raise RequestError(
                f"compressor must be rand-k (alone or with a quantiser), not {compressor.spec()}: "
                "rand-k:1.0 keeps every coordinate"
            )
        return cls(compressor)

    def kept(self, dim: int) -> int:
        """The number k of coordinates that the compressor keeps."""
        return self.compressor.kept(count("dim", dim))

    def indices(self, generators: Sequence[np.random.Generator], dim: int) -> Tensor:
        """Each client's coordinates, (clients, k), ascending; consumes the generators."""
        return self.compressor.choose(dim, generators).indices
