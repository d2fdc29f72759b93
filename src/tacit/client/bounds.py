"""Bounds on one record's influence, whatever the record is.

A bound is applied to each record separately. Clipping the mean of a batch instead would let one record move the
sum by the whole bound times the batch size; no function here does that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self, final

import torch
from torch import Tensor

from tacit.errors import RequestError, positive, unknown_name
from tacit.models.gradients import Divisible, Gradients, chunks_of_rows, owners_of
from tacit.models.shares import LayeredGradients

SHAVE = 1 - 1e-4
"""Gradients are clipped to slightly less than the bound, so that it holds for norms in single precision.

Their relative error was at most 3e-6 for random gradients of 10^5 parameters; the margin is for worse ones.
"""


_LEAST, _MOST = 1e-12, 1e12
"""Outside this range, noise proportional to the bound would underflow or overflow in single precision."""

_LEAST_SCALE = torch.finfo(torch.float32).tiny
"""Smaller scales lose digits in single precision, up to twice their value: such a gradient counts as zero."""


def _check_bound(setting: str, value: float) -> None:
    if not _LEAST <= positive(setting, value) <= _MOST:
        raise RequestError(f"{setting} must be between {_LEAST:g} and {_MOST:g}, not {value!r}")


def _check_products() -> None:
    """Refuse to scale gradients with matrix products that keep only eight or eleven bits of their factors."""
    precision = torch.get_float32_matmul_precision()
    if precision != "highest" or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise RequestError(
            "no bound on a record holds with matrix products of reduced precision: call "
            'torch.set_float32_matmul_precision("highest"), and train outside of torch.autocast'
        )


class Bound(Protocol):
    """Maps each record's vector into a ball.

    Guarantee: whatever the gradients are (zero, huge, not finite), each record adds to `sums` a vector of
    norm at most `norm(dim)`. A gradient that is not finite adds zero, and so does one that is too large to be
    scaled precisely: if a layer's inputs are longer than 1e20, or the scale is below 1e-38.

    This concerns the terms of the sum. The rounding error of adding them up in single precision is treated in
    docs/privacy.md, under "Entropy and floating point".
    """

    def norm(self, dim: int) -> float:
        """The largest Euclidean norm of a bounded vector."""
        ...

    def sums(self, gradients: Gradients) -> Tensor:
        """For each client, the sum of its records' bounded gradients: (clients, dim)."""
        ...

    def on_share(self, share: float) -> Bound:
        """The bound for a gradient of which only a share p of the coordinates is kept.

        A limit per coordinate stays as it is, which allows a norm of c sqrt(p d). A norm G becomes G sqrt(p), the
        norm of p of the coordinates on average. Either way the noise falls with sqrt(p). Clipping the whole
        gradient to G before dropping the other coordinates would not work: all of the norm may lie on those that
        are kept.

        >>> ClipNorm(1.0).on_share(0.25)
        ClipNorm(clip_norm=0.5)
        """
        ...


class Scaling:
    """A bound that multiplies each gradient by one factor, which keeps its form (such as an outer product)."""

    def scales(self, gradients: Gradients) -> Tensor:
        """The factor on each gradient."""
        raise NotImplementedError

    def on_share(self, share: float) -> Self:
        """The same kind of bound, sqrt(share) times as long."""
        ((name, size),) = vars(self).items()
        return replace(self, **{name: math.sqrt(share) * size})  # type: ignore[type-var]  # bounds are dataclasses

    @final
    def sums(self, gradients: Gradients) -> Tensor:
        """One pass for the norms, one weighted sum."""
        return gradients.weighted_sums(self.scales(gradients))


@dataclass(frozen=True)
class ClipNorm(Scaling):
    """g min(1, C / ||g||): gradients shorter than C are unchanged.

    >>> from tacit.models.shares import LayeredGradients
    >>> gradients = LayeredGradients.written(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.tensor([2]))
    >>> ClipNorm(1.0).sums(gradients)
    tensor([[0.8999, 1.1999]])
    """

    clip_norm: float
    """C, above 0"""

    def __post_init__(self) -> None:
        _check_bound("clip_norm", self.clip_norm)

    def norm(self, dim: int) -> float:
        return self.clip_norm

    def scales(self, gradients: Gradients) -> Tensor:
        """The factor on each gradient, min(1, C / ||g||)."""
        _check_products()
        norms = gradients.norms()
        scales = (self.clip_norm * SHAVE / norms).clamp(max=1.0)
        return torch.where(scales >= _LEAST_SCALE, scales, 0.0)


@dataclass(frozen=True)
class Normalise(Scaling):
    """g C / ||g||: every gradient has the same length; a zero gradient stays zero."""

    length: float
    """C, above 0"""

    def __post_init__(self) -> None:
        _check_bound("length", self.length)

    def norm(self, dim: int) -> float:
        return self.length

    def scales(self, gradients: Gradients) -> Tensor:
        """The factor on each gradient, C / ||g||."""
        _check_products()
        norms = gradients.norms()
        scales = self.length * SHAVE / norms
        # Scales must fit into single precision, so a gradient that is too short counts as zero.
        usable = (scales >= _LEAST_SCALE) & (norms > self.length * 1e-30)
        return torch.where(usable, scales, 0.0)


@dataclass(frozen=True)
class ClipEachCoordinate:
    """Each coordinate is clipped to [-c, c], so the norm is at most c sqrt(dim): Fed-SPA (Hu et al. 2021).

    It is the only bound that needs single coordinates, so it writes the gradients out, in chunks.
    """

    limit: float
    """c, above 0"""

    def __post_init__(self) -> None:
        _check_bound("limit", self.limit)

    def norm(self, dim: int) -> float:
        """c sqrt(dim)."""
        return float(self.limit * dim**0.5)

    def on_share(self, share: float) -> ClipEachCoordinate:
        return self

    def sums(self, gradients: Gradients) -> Tensor:
        """Clip the rows and sum them per client."""
        total = gradients.rows(0, 0).new_zeros(len(gradients.counts), gradients.dim)
        owners, limit = owners_of(gradients.counts), self.limit * SHAVE
        # Rows that must be computed again are not computed in such small groups.
        for start, stop in chunks_of_rows(gradients, in_cache=not isinstance(gradients, Divisible)):
            rows = gradients.rows(start, stop)
            # A sum is cheaper than a check of every number; if it overflows, every number is checked.
            if not bool(rows.sum().isfinite()):
                rows = torch.where(torch.isfinite(rows).all(1, keepdim=True), rows, 0.0)
            total.index_add_(0, owners[start:stop].to(rows.device), rows.clamp(-limit, limit))
        return total


@dataclass(frozen=True)
class Unbounded:
    """No bound, for algorithms that make no promise: no amount of noise would be enough."""

    def norm(self, dim: int) -> float:
        return math.inf

    def on_share(self, share: float) -> Unbounded:
        return self

    def sums(self, gradients: Gradients) -> Tensor:
        like = gradients.shares[0].like if isinstance(gradients, LayeredGradients) else gradients.rows(0, 0)
        return gradients.weighted_sums(torch.ones(int(gradients.counts.sum()), device=like.device))


BOUNDS: dict[str, Callable[[float], Bound]] = {
    "clip-norm": ClipNorm,
    "normalise": Normalise,
    "clip-each-coordinate": ClipEachCoordinate,
}


def build_bound(name: str, size: float) -> Bound:
    """Build a bound from its name and size."""
    if name not in BOUNDS:
        raise unknown_name("bound", name, BOUNDS)
    return BOUNDS[name](size)


def describe_bound(bound: Bound) -> tuple[str, float]:
    """The inverse of `build_bound`.

    >>> describe_bound(ClipEachCoordinate(0.1))
    ('clip-each-coordinate', 0.1)
    """
    name = next(name for name, kind in BOUNDS.items() if kind is type(bound))
    (size,) = vars(bound).values()
    return name, size
