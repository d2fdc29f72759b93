"""Public bounds that make the first and second moments of features a sum of bounded contributions.

With t a record's features, scaled by the bounds so that they lie within [-1, 1], the record contributes t_j and
t_j^2 - c for every feature j. Everybody knows c, so it changes no release; but it decides what the squares cost,
and with the right one they cost little or nothing. With s_j = t_j^2 and d features:

    Box, c = 1      |t_j| <= 1, so t_j^2 + (t_j^2 - 1)^2 = 1 - s_j (1 - s_j) <= 1. The contribution's norm is at
                    most sqrt(d), which the t_j alone attain, at t = (1, ..., 1) and its mirror image: second
                    moments are free, and no smaller bound holds in either adjacency.
    Ball, c = 1/d   ||t|| <= 1, so s lies in the simplex with corners 0 and e_1, ..., e_d, and the squared norm,
                    the sum of all s_j + (s_j - 1/d)^2, is convex in s: largest in a corner. There it is 1/d or
                    1 + (1 - 1/d)^2 + (d - 1)/d^2 = 2 - 1/d. However many features: below sqrt(2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.errors import RequestError, positive
from tacit.privacy.side.release import check_range


@dataclass(frozen=True)
class FeatureBox:
    """A range for every feature: one for all of them, or one for each. What lies beyond is clipped.

    It should hug the data as far as that is known without a look: the noise grows with the width, and with the
    square root of the number of features.
    """

    lower: float | Sequence[float]
    upper: float | Sequence[float]

    def __post_init__(self) -> None:
        for side in ("lower", "upper"):
            numbers = torch.as_tensor(getattr(self, side), dtype=torch.float64).detach().cpu()
            object.__setattr__(self, side, tuple(numbers.flatten().tolist()) if numbers.ndim else numbers.item())

    def limits(self, dim: int) -> tuple[Tensor, Tensor]:
        """Middle and half width, for each of `dim` features."""
        lower, upper = _for_each("lower", self.lower, dim), _for_each("upper", self.upper, dim)
        for feature, (low, high) in enumerate(zip(lower.tolist(), upper.tolist(), strict=True)):
            check_range(f"feature {feature}", low, high)
        return (lower + upper) / 2, (upper - lower) / 2

    def clip(self, scaled: Tensor) -> Tensor:
        """Every feature by itself."""
        return scaled.clamp(-1, 1)

    def square_centre(self, dim: int) -> float:
        """The constant c."""
        return 1.0

    def norm(self, dim: int) -> float:
        """The largest norm of a contribution."""
        return math.sqrt(dim)

    def assumed(self, name: str) -> str:
        """What everybody is taken to know, in words."""
        if isinstance(self.lower, float) and isinstance(self.upper, float):
            return f"the bounds of {name}, {self.lower:g} to {self.upper:g}"
        return f"the bounds of each of the {name}"


@dataclass(frozen=True)
class FeatureBall:
    """A bound on the norm of a record's features; longer records are shortened to it.

    For rows of which little more than the length is known (embeddings of norm 1, sparse rows). The noise on means
    and on variances is in proportion to clip_norm sqrt(2) and clip_norm^2 sqrt(2); in a box of half width h it is
    h sqrt(d) and h^2 sqrt(d), so that a box that fits d features well is often better.
    """

    clip_norm: float

    def __post_init__(self) -> None:
        positive("clip_norm", self.clip_norm)

    def limits(self, dim: int) -> tuple[Tensor, Tensor]:
        """Zero and the clip norm, for each of `dim` features."""
        return torch.zeros(dim).double(), torch.full((dim,), self.clip_norm, dtype=torch.float64)

    def clip(self, scaled: Tensor) -> Tensor:
        """Every record by itself, by a hair more than needed: norms are rounded."""
        norms: Tensor = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
        return scaled / norms.clamp(min=1.0) * (1 - 1e-9)

    def square_centre(self, dim: int) -> float:
        """The constant c."""
        return 1 / dim

    def norm(self, dim: int) -> float:
        """The largest norm of a contribution."""
        return math.sqrt(2 - 1 / dim)

    def assumed(self, name: str) -> str:
        """What everybody is taken to know, in words."""
        return f"the bound {self.clip_norm:g} on the norm of {name}"


def _for_each(setting: str, given: float | Sequence[float], dim: int) -> Tensor:
    values = torch.as_tensor(given, dtype=torch.float64).flatten()
    if len(values) not in (1, dim):
        raise RequestError(f"{setting} must be one number, or one for each of {dim} features, not {len(values)}")
    return values.expand(dim)
