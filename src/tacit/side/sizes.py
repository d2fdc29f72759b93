"""How large the features of records typically are: one private release, before training.

Steps and clip norms assume features of a certain size. For arrays that nobody has described, it is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.federation import Federation
from tacit.models.gradients import ROWS_AT_A_TIME
from tacit.privacy.promises.guarantee import Target
from tacit.side.release import NoisyMeans, SideRelease

EXPECTED = 0.5
"""The size that features are expected to have."""

FARTHEST = 1e5
"""Sizes are measured up to so many times the expected size, and down to one over it."""

TOLERANCE, COMMON_TOLERANCE = 3.0, 1.5
"""A column within the first factor of the others has their size. If that is within the second factor of what is
expected, it is left alone. What is common to all is known through less noise."""

SMALLER, LARGER = 1.0, 2.0
"""Nor is anything done about a difference of fewer standard deviations of the noise. Features that are made too
large lose little, because gradients are clipped; those that are made too small lose everything."""

CERTAIN = 1.0
"""A size is used if the noise on its natural logarithm is at most this: a factor of e."""

_SPAN = math.log(FARTHEST)

_OF_MEDIAN = math.sqrt(math.pi / 2)
"""The noise on the median of many numbers, over that on their mean."""


@dataclass(frozen=True)
class SizesRelease:
    """How sizes are measured: what every record contributes, with which noise. Only public numbers decide it.

    A size is measured as a logarithm: relative to what is expected, and divided by the span that is measured, so
    that it lies in [-1, 1]. A record contributes that of its length; or, for each column, that of the absolute
    value (0 for zero) and +1/2 or -1/2 for whether it is not zero.

    Guarantee: what a record contributes has a norm of at most 1, or sqrt(5/4 d) with d columns, whatever the
    record is. So the release is one Gaussian mechanism of this bound, in both adjacencies.
    """

    means: NoisyMeans
    columns: int
    """how many columns are measured one by one: all, or none and only the length of records"""

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on the logarithm of a size; in a column, if no number is zero."""
        return _SPAN * self.means.noise_std

    @property
    def event(self) -> DpEvent:
        """What every client releases."""
        return self.means.event(self.means.noise_multiplier)

    def contributions(self, features: Tensor) -> Tensor:
        """What every record contributes: (records, 1 or 2 columns) double."""
        rows = features.detach().cpu().double()
        if self.columns:
            present = torch.where(rows == 0, -0.5, 0.5).double()
            return torch.cat([_logarithms(rows.abs()), present], dim=1)
        return _logarithms(torch.linalg.vector_norm(rows, dim=1, keepdim=True) / math.sqrt(rows.shape[1]))

    def sizes(self, means: Tensor) -> tuple[float, ...]:
        """What the noisy means of all contributions say: a size for each column, or one for all of them.

        A column that is not clearly larger or smaller than the median column has its size: that is known through
        less noise, and noise alone must not make alike columns differ. Columns that are too often zero to be
        certain alone have one size together. If even that is uncertain, they are taken for as small as all
        columns are, but never for as large: that could hide them.
        """
        if not self.columns:
            return (_common(_SPAN * means.item(), self.noise),)
        logarithms, shares = _SPAN * means[: self.columns].double(), means[self.columns :].double() + 0.5
        certain = shares >= self.noise / CERTAIN
        rest = self._together(logarithms[~certain], shares[~certain])
        if rest is None:
            rest = min(EXPECTED, self._together(logarithms, shares) or EXPECTED)
        own, noises = logarithms / shares, self.noise / shares
        usual, usual_noise = (float(one[certain].median()) if certain.any() else 0.0 for one in (own, noises))
        alike = _common(usual, usual_noise * _OF_MEDIAN / math.sqrt(max(1, int(certain.sum()))))

        def size(one: float, noise: float) -> float:
            if not _differs(one - usual, noise, TOLERANCE, self.columns):
                return alike
            return _rounded(one) if _differs(one, noise, TOLERANCE) else EXPECTED

        each = zip(own.tolist(), noises.tolist(), certain.tolist(), strict=True)
        return tuple(size(one, noise) if sure else rest for one, noise, sure in each)

    def _together(self, logarithms: Tensor, shares: Tensor) -> float | None:
        """The common size of several columns; None if it is not certain."""
        total, noise = float(shares.sum()), self.noise * math.sqrt(len(shares))
        return (
            _common(float(logarithms.sum()) / total, noise / total)
            if total > 0 and noise <= total * CERTAIN
            else None
        )


def sizes_release(
    federation: Federation, *, name: str = "", target: Target, seed: int | None = None
) -> SizesRelease | None:
    """The most that can be measured: each column, only the length of records, or nothing for that much noise."""
    width = federation.features.shape[1]
    columns = NoisyMeans(federation, f"sizes {name}", math.sqrt(1.25 * width), 1, target, seed, 2 * width)
    length = NoisyMeans(federation, f"size {name}", 1.0, 1, target, seed)
    choices = SizesRelease(columns, width), SizesRelease(length, 0)
    return next((one for one in choices if one.noise <= CERTAIN), None)


def private_sizes(
    federation: Federation, *, name: str = "", target: Target, seed: int | None = None
) -> SideRelease[tuple[float, ...]] | None:
    """The typical size of every feature where it is not zero: for each column, or one number for all of them.

    Means of logarithms are geometric means, so a few huge values do not count for more than others. Sizes are
    rounded to powers of two, so that dividing by them is exact, and are `EXPECTED` wherever nothing else is
    certain. None if noise would hide even the length of records: then nothing is released.

    Guarantee: the release keeps `target` (`SizesRelease`).

    Args:
        federation: the records; their features must be vectors.
        name: two releases with the same seed need different names.
        target: what the release alone may cost.
        seed: for research; by default the noise is lattice noise from the operating system's entropy.

    >>> mixed = torch.linspace(-1, 1, 9000).reshape(-1, 1) * torch.tensor([0.001, 1.0])
    >>> three = Federation.from_arrays(mixed, mixed[:, 0], [0, 1, 2] * 3000)
    >>> private_sizes(three, target=Target(0.5, 1e-5), seed=0).value
    (0.00048828125, 0.5)
    """
    release = sizes_release(federation, name=name, target=target, seed=seed)
    if release is None:
        return None
    return release.means.released(release.sizes(release.means.means(size_sums(release, federation))))


def size_sums(release: SizesRelease, federation: Federation) -> Tensor:
    """What every client adds up: (clients, dim) double, computed in parts that fit into memory."""
    at_a_time = max(1, ROWS_AT_A_TIME // release.means.dim)
    owners = federation.batch().owners().cpu()
    sums = torch.zeros(federation.clients, release.means.dim, dtype=torch.float64)
    for rows, held_by in zip(federation.features.split(at_a_time), owners.split(at_a_time), strict=True):
        sums.index_add_(0, held_by, release.contributions(rows))
    return sums


def _logarithms(sizes: Tensor) -> Tensor:
    """In [-1, 1]; 0 for what is expected, and for zero."""
    known = torch.where(sizes > 0, sizes, EXPECTED)
    return ((known / EXPECTED).log() / _SPAN).clamp(-1, 1)


def _common(logarithm: float, noise: float) -> float:
    """The size of many features together, from its logarithm relative to what is expected."""
    return _rounded(logarithm) if _differs(logarithm, noise, COMMON_TOLERANCE) else EXPECTED


def _rounded(logarithm: float) -> float:
    """A size as a power of two."""
    return EXPECTED * 2.0 ** round(max(-_SPAN, min(_SPAN, logarithm)) / math.log(2))


def _differs(logarithm: float, noise: float, tolerance: float, compared: int = 1) -> bool:
    """Whether a size is another one, by the logarithm of their ratio and the noise on it.

    If many are compared, the largest noise of that many must not be taken for a difference.
    """
    deviations = max(LARGER if logarithm > 0 else SMALLER, math.sqrt(2 * math.log(compared)))
    return abs(logarithm) > max(math.log(tolerance), deviations * noise)
