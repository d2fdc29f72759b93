"""Mean and scale of every feature from one release, and features standardised by them.

With t a record's features, scaled into [-1, 1] by public bounds, its contribution is (t_j, t_j^2 - c) for every feature
j. The constant c decides what the squares cost, and with the right one they cost little or nothing:

    Box, c = 1       |t_j| <= 1:  t_j^2 + (t_j^2 - 1)^2 = 1 - s (1 - s) <= 1 for s = t_j^2 in [0, 1]. So the norm is at
                     most sqrt(d), which the t_j alone attain: second moments are free, and the bound is tight.
    Ball, c = 1/d    ||t|| <= 1:  sum_j s_j + (s_j - 1/d)^2 is convex in s, and s lies in the simplex with corners 0 and
                     e_1, ..., e_d. At 0 it is 1/d, at e_j it is 1 + (1 - 1/d)^2 + (d - 1)/d^2 = 2 - 1/d. So the norm is at
                     most sqrt(2 - 1/d) however many features there are.

t is a multiple of 2^-16, so that sums over records are whole-number arithmetic: a sum moves no further than its record.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tacit.errors import RequestError, positive
from tacit.federation import Federation
from tacit.privacy.guarantee import Target
from tacit.privacy.side.release import NoisyMeans, SideRelease, check_range

GRID = 2**16
"""Steps from 0 to 1 of a scaled feature: far finer than the noise, and 2^31 squares add up in 64 bits."""

NUMBERS_AT_A_TIME = 2**22


@dataclass(frozen=True)
class Box:
    """Public bounds of every feature: one pair for all of them, or one for each. Features beyond are clipped.

    They should hug the data as far as that is known without a look: noise grows with the width.
    """

    lower: float | Sequence[float]
    upper: float | Sequence[float]

    def __post_init__(self) -> None:
        for side in ("lower", "upper"):
            numbers = torch.as_tensor(getattr(self, side)).detach().cpu().double().tolist()
            object.__setattr__(self, side, tuple(numbers) if isinstance(numbers, list) else numbers)

    def limits(self, dim: int) -> tuple[Tensor, Tensor]:
        """Middle and half width, for each of `dim` features."""
        lower, upper = (_for_each(side, getattr(self, side), dim) for side in ("lower", "upper"))
        for feature, (low, high) in enumerate(zip(lower.tolist(), upper.tolist(), strict=True)):
            check_range(f"feature {feature}", low, high)
        return (lower + upper) / 2, (upper - lower) / 2

    def clip(self, scaled: Tensor) -> Tensor:
        """Every feature by itself."""
        return scaled.clamp(-1, 1)

    def square_centre(self, dim: int) -> float:
        """1."""
        return 1.0

    def norm(self, dim: int) -> float:
        """sqrt(d)."""
        return math.sqrt(dim)

    def assumed(self, name: str) -> str:
        """What everybody has to know, in words."""
        if isinstance(self.lower, tuple) or isinstance(self.upper, tuple):
            return f"the bounds of each of the {name}"
        return f"the bounds of the {name}, {self.lower:g} to {self.upper:g}"


@dataclass(frozen=True)
class Ball:
    """A public bound on the norm of a record's features; longer records are shortened to it.

    For many features on one scale (pixels, embeddings): unlike with a box, the noise does not grow with their number.
    """

    clip_norm: float

    def __post_init__(self) -> None:
        positive("clip_norm", self.clip_norm)

    def limits(self, dim: int) -> tuple[Tensor, Tensor]:
        """Zero, and the clip norm."""
        return torch.zeros(dim).double(), torch.full((dim,), self.clip_norm).double()

    def clip(self, scaled: Tensor) -> Tensor:
        """By a hair more than needed: norms are rounded."""
        norms = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
        return scaled / norms.clamp(min=1.0) * (1 - 1e-9)

    def square_centre(self, dim: int) -> float:
        """1/d."""
        return 1 / dim

    def norm(self, dim: int) -> float:
        """sqrt(2 - 1/d)."""
        return math.sqrt(2 - 1 / dim)

    def assumed(self, name: str) -> str:
        """What everybody has to know, in words."""
        return f"the bound {self.clip_norm:g} on the norm of the {name}"


class MeanAndScale(NamedTuple):
    """What features are standardised by, both in the shape of one record's features."""

    mean: Tensor
    scale: Tensor


def private_mean_and_scale(
    federation: Federation,
    within: Box | Ball,
    *,
    columns: Sequence[int] | None = None,
    name: str = "features",
    target: Target,
    seed: int | None = None,
) -> SideRelease[MeanAndScale]:
    """The mean and the standard deviation of every feature over all records, from clipped first and second moments.

    Guarantee: one Gaussian release for each client, which keeps `target`; its bound is `within.norm` (proved at the head
    of the file). `noise_std` is on the means of the scaled features and of their squares, so in half widths of the range.

    What the noise did is repaired as far as that can be done without a look: means stay in range, the noise's part in the
    squared mean is taken out of the variance, and a variance below the noise becomes as large as the noise, so that a
    constant feature is not blown up. With `columns`, only these (of the flattened features) are looked at; the others
    get mean 0 and scale 1, as one-hot ones should.

    `name` says what the features are. Two releases with one seed need different names; without a seed, the noise comes
    from the operating system's entropy.

    >>> heights = torch.linspace(150, 190, 5000)[:, None]
    >>> federation = Federation.from_arrays(heights, heights[:, 0], [0, 1] * 2500)
    >>> height = private_mean_and_scale(federation, Box(100, 220), target=Target(1.0, 1e-5), seed=0)
    >>> mean, scale = height.value
    >>> round(mean.item()), round(scale.item()), round(heights.std().item())
    (170, 12, 12)
    """
    rows = federation.features.flatten(1)
    chosen = _checked_columns(columns, rows.shape[1])
    dim = len(chosen)
    middle, half = within.limits(dim)
    question = f"mean and scale of {name} {chosen.tolist()} within {within!r}"
    moments = NoisyMeans(federation, question, within.norm(dim), 1, target, seed)
    means = moments.means(_sums(rows, chosen, within, federation.sizes))

    noise_std = moments.noise_std
    first = means[:dim].clamp(-1, 1)
    second = (means[dim:] + within.square_centre(dim)).clamp(0, 1)
    variance = (second - first**2 + noise_std**2).clamp(min=min(noise_std, 1.0), max=1.0)
    mean, scale = torch.zeros(rows.shape[1]).double(), torch.ones(rows.shape[1]).double()
    mean[chosen], scale[chosen] = middle + half * first, half * variance.sqrt()
    value = MeanAndScale(mean.reshape(federation.feature_shape), scale.reshape(federation.feature_shape))
    return moments.released(value, within.assumed(name))


def standardise(federation: Federation, mean: Tensor, scale: Tensor) -> Federation:
    """The same records and test records with features (x - mean) / scale.

    Free of charge, and no look of its own at the records: that is up to where `mean` and `scale` are from, a private
    release or public knowledge. What was prepared with a look before stays noted in `peeks`.

    >>> federation = Federation.from_clients([([[1.0], [3.0]], [0, 1])])
    >>> standardise(federation, torch.tensor([2.0]), torch.tensor([0.5])).features.tolist()
    [[-2.0], [2.0]]
    """
    shape = federation.feature_shape
    for setting, given in (("mean", mean), ("scale", scale)):
        if tuple(given.shape) != shape or not bool(torch.isfinite(given).all()):
            raise RequestError(
                f"{setting} must be finite and have the shape {shape} of one record's features, "
                f"not {tuple(given.shape)}"
            )
    if not bool((scale > 0).all()):
        raise RequestError(f"scale must be above 0 everywhere; its smallest entry is {scale.min().item()!r}")

    def prepared(features: Tensor) -> Tensor:
        device = features.device
        return ((features - mean.to(device)) / scale.to(device)).to(features.dtype)

    test = federation.test_features
    return dataclasses.replace(
        federation,
        features=prepared(federation.features),
        test_features=None if test is None else prepared(test),
    )


def _sums(rows: Tensor, columns: Tensor, within: Box | Ball, sizes: Tensor) -> Tensor:
    """For every client the sum of its records' contributions: (clients, 2 columns) double."""
    dim = len(columns)
    middle, half = within.limits(dim)
    owners = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    steps, squares = (torch.zeros(len(sizes), dim, dtype=torch.int64) for _ in range(2))
    at_a_time = max(1, NUMBERS_AT_A_TIME // rows.shape[1])
    for part, owner in zip(rows.split(at_a_time), owners.split(at_a_time), strict=True):
        scaled = within.clip((part.cpu()[:, columns].double() - middle) / half)
        # Towards zero, so that rounding makes no record longer.
        grid = torch.trunc(scaled * GRID).long()
        steps.index_add_(0, owner, grid)
        squares.index_add_(0, owner, grid**2)
    centre = within.square_centre(dim) * sizes[:, None].double()
    return torch.cat([steps.double() / GRID, squares.double() / GRID**2 - centre], dim=1)


def _for_each(setting: str, given: float | Sequence[float], dim: int) -> Tensor:
    values = torch.as_tensor(given).double()
    if values.numel() not in (1, dim):
        raise RequestError(
            f"{setting} must be one number, or one for each of {dim} features, not {values.numel()}"
        )
    return values.flatten().expand(dim)


def _checked_columns(columns: Sequence[int] | None, dim: int) -> Tensor:
    if columns is None:
        return torch.arange(dim)
    whole = [column for column in columns if isinstance(column, int) and 0 <= column < dim]
    if not whole or len(whole) != len(columns) or len(set(whole)) != len(whole):
        raise RequestError(f"columns must be distinct positions 0 to {dim - 1}, at least one, not {columns!r}")
    return torch.tensor(whole)
