"""Terms of the objective that depend on the model alone.

They are added after the bound and the noise: no record influences them, so they cost no privacy, and clipping
would only distort them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Penalty(Protocol):
    """A function of the point, for one point (d,) or one per client (clients, d)."""

    @property
    def curvature(self) -> float:
        """The largest absolute second derivative along any coordinate."""
        ...

    def value(self, point: Tensor) -> Tensor:
        """The penalty, summed over the last axis."""
        ...

    def gradient(self, point: Tensor) -> Tensor:
        """The gradient of the penalty."""
        ...


@dataclass(frozen=True)
class Ridge:
    """strength/2 ||x - c||^2, which makes a convex loss strongly convex with constant `strength`.

    c is 0, but for its last coordinate if an intercept starts elsewhere: pulling that to 0 would undo its start.
    """

    strength: float
    """the factor"""
    last_at: float = 0.0
    """the last coordinate of c"""

    @property
    def curvature(self) -> float:
        return self.strength

    def value(self, point: Tensor) -> Tensor:
        """strength/2 ||x - c||^2."""
        return self.strength / 2 * self._away(point).square().sum(-1)

    def gradient(self, point: Tensor) -> Tensor:
        return self.strength * self._away(point)

    def _away(self, point: Tensor) -> Tensor:
        if self.last_at == 0:
            return point
        return torch.cat([point[..., :-1], point[..., -1:] - self.last_at], dim=-1)


@dataclass(frozen=True)
class NonconvexPenalty:
    """strength * sum_j x_j^2 / (1 + x_j^2): SoteriaFL (Li et al. 2022), appendix A.1, with strength 0.2.

    >>> import torch
    >>> NonconvexPenalty(0.2).value(torch.ones(3))
    tensor(0.3000)
    """

    strength: float
    """the factor"""

    @property
    def curvature(self) -> float:
        """The second derivative (2 - 6 x^2)/(1 + x^2)^3 is largest at 0, where it is 2."""
        return 2 * self.strength

    def value(self, point: Tensor) -> Tensor:
        """strength * sum_j x_j^2 / (1 + x_j^2)."""
        squares = point.square()
        return self.strength * (squares / (1 + squares)).sum(-1)

    def gradient(self, point: Tensor) -> Tensor:
        """strength * 2 x_j / (1 + x_j^2)^2."""
        return self.strength * 2 * point / (1 + point.square()).square()
