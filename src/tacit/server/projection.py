"""The set W in which a model must lie, and the projection onto it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tacit.errors import RequestError, positive


class Projection(Protocol):
    """A closed convex set, given by its nearest-point map."""

    def nearest(self, point: Tensor) -> Tensor:
        """The point of the set that is nearest to `point`."""
        ...

    @property
    def diameter(self) -> float | None:
        """The set's diameter, D in ISRL-DP (Lowy & Razaviyayn 2023); None if it is unbounded or depends on d."""
        ...

    def check_start(self, point: Tensor) -> None:
        """Refuse a starting point outside the set."""
        ...

    def spec(self) -> str:
        """The set as text that `parse_projection` can read."""
        ...


@dataclass(frozen=True)
class Everywhere:
    """No restriction."""

    @property
    def diameter(self) -> float | None:
        """None, because the set is unbounded."""
        return None

    def nearest(self, point: Tensor) -> Tensor:
        return point

    def check_start(self, point: Tensor) -> None:
        """Every starting point is inside."""

    def spec(self) -> str:
        return "none"


@dataclass(frozen=True)
class Ball:
    """All points within `radius` of the origin.

    >>> Ball(1.0).nearest(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """

    radius: float

    def __post_init__(self) -> None:
        positive("radius", self.radius)

    @property
    def diameter(self) -> float | None:
        return 2 * self.radius

    def nearest(self, point: Tensor) -> Tensor:
        """The point itself, or scaled back onto the sphere if it is outside."""
        norm = torch.linalg.vector_norm(point, dim=-1, keepdim=True)
        return torch.where(norm > self.radius, point * (self.radius / norm), point)

    def check_start(self, point: Tensor) -> None:
        """The start must lie inside."""
        norm = float(torch.linalg.vector_norm(point))
        if norm > self.radius:
            raise RequestError(f"the start has norm {norm:.4g}, outside the ball of radius {self.radius:g}")

    def spec(self) -> str:
        return f"ball:{self.radius!r}"


@dataclass(frozen=True)
class Box:
    """All points whose coordinates lie in [low, high]."""

    low: float
    """the least coordinate"""
    high: float
    """the largest coordinate"""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise RequestError(f"a box needs low < high, not {self.low!r} and {self.high!r}")

    @property
    def diameter(self) -> float | None:
        """None, because it depends on the dimension: the caller multiplies the side by sqrt(d)."""
        return None

    def nearest(self, point: Tensor) -> Tensor:
        """The point with every coordinate clamped to [low, high]."""
        return point.clamp(self.low, self.high)

    def check_start(self, point: Tensor) -> None:
        """The start must lie inside."""
        if bool(((point < self.low) | (point > self.high)).any()):
            raise RequestError(f"the start lies outside the box [{self.low:g}, {self.high:g}]")

    def spec(self) -> str:
        return f"box:{self.low!r}:{self.high!r}"


def parse_projection(text: str) -> Projection:
    """Read a set: `none`, `ball:RADIUS` or `box:LOW:HIGH`.

    >>> parse_projection("ball:2"), parse_projection("box:-1:1")
    (Ball(radius=2.0), Box(low=-1.0, high=1.0))
    """
    name, *numbers = text.split(":")
    try:
        match name, [float(number) for number in numbers]:
            case "none", []:
                return Everywhere()
            case "ball", [radius]:
                return Ball(radius)
            case "box", [low, high]:
                return Box(low, high)
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
    raise RequestError(f"projection must be none, ball:RADIUS or box:LOW:HIGH, not {text!r}")
