"""The number of coordinates that a sparse message carries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tacit.errors import RequestError, count, probability


@dataclass(frozen=True, kw_only=True)
class KeptCoordinates:
    """k of d coordinates: `fraction` sets k = max(1, floor(fraction d)), `count` sets k = min(count, d).

    Exactly one of them is given.
    """

    name: ClassVar[str]
    fraction: float | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None and self.fraction is None:
            object.__setattr__(self, "count", count(f"{self.name} count", self.count))
        elif self.fraction is not None and self.count is None:
            object.__setattr__(self, "fraction", float(probability(f"{self.name} fraction", self.fraction)))
        else:
            raise RequestError(
                f"{self.name} needs exactly one of fraction and count, "
                f"not fraction={self.fraction!r} and count={self.count!r}"
            )

    def kept(self, dim: int) -> int:
        """The number k of coordinates that are kept."""
        dim = count("dim", dim)
        if self.count is not None:
            return min(self.count, dim)
        assert self.fraction is not None, "one of the two is given"
        # In floating point 0.29 * 100 is just below 29; a tiny margin gives the floor of the decimal value.
        return min(dim, max(1, math.floor(self.fraction * dim * (1 + 1e-12))))

    def spec(self) -> str:
        """The compressor as text that `parse_compressor` can read."""
        return f"{self.name}:{self.fraction if self.count is None else self.count}"
