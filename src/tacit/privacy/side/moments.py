"""Mean and scale of every feature from one release, and features standardised by them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy.guarantee import Target
from tacit.privacy.side.feature_bounds import FeatureBall, FeatureBox
from tacit.privacy.side.release import NoisyMeans, SideRelease

GRID = 2**16
"""Steps from 0 to 1 of a scaled feature: far finer than any noise, and 2^31 squares add up in 64 bits.

Adding up is whole-number arithmetic, so that a sum moves no further than its record does.
"""

NUMBERS_AT_A_TIME = 2**22


class MeanAndScale(NamedTuple):
    """What features are standardised by, both in the shape of one record's features."""

    mean: Tensor
    scale: Tensor


def private_mean_and_scale(
    federation: Federation,
    within: FeatureBox | FeatureBall,
    *,
    columns: Sequence[int] | None = None,
    name: str = "features",
    target: Target,
    seed: int | None = None,
) -> SideRelease[MeanAndScale]:
    """The mean and standard deviation of every feature over all records, from clipped first and second moments.

    Guarantee: one Gaussian release of every client, which keeps `target`; why a record contributes at most
    `within.norm` is proved in `tacit.privacy.side.feature_bounds`. `noise_std` is on the means of the scaled
    features and of their squares, so it counts in half widths of the box, or in clip norms.

    What the noise did is repaired as far as that goes without a look: means stay in the box, the noise's part
    in a squared mean is taken out of the variance, and a variance below the noise is raised to it, so that a
    constant feature is not blown up. With `columns`, only these (of the flattened features) are released; the
    others get mean 0 and scale 1, which is what one-hot ones want.

    `name` says what the features are. Two releases with one seed need different names; without a seed, the
    noise is lattice noise from the operating system's entropy.

    >>> heights = torch.linspace(150, 190, 20_000)[:, None]
    >>> federation = Federation.from_arrays(heights, heights[:, 0], [0, 1] * 10_000)
    >>> height = private_mean_and_scale(federation, FeatureBox(100, 220), target=Target(1.0, 1e-5), seed=0)
    >>> mean, scale = height.value
    >>> round(mean.item()), round(scale.item()), round(heights.std().item())
    (170, 12, 12)
    """
    rows = federation.features.flatten(1)
    chosen = _checked_columns(columns, rows.shape[1])
    dim = len(chosen)
    middle, half = within.limits(dim)
    question = f"mean and scale of {name} {chosen.tolist()} of {rows.shape[1]} within {within!r}"
    moments = NoisyMeans(federation, question, within.norm(dim), 1, target, seed, 2 * dim)
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

    Free of charge, and no look of its own at the records: what it costs is up to where `mean` and `scale` are
    from, a private release or public knowledge. Earlier looks stay noted in `peeks`.

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


def _sums(rows: Tensor, columns: Tensor, within: FeatureBox | FeatureBall, sizes: Tensor) -> Tensor:
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
    centres = within.square_centre(dim) * sizes[:, None].double()
    return torch.cat([steps.double() / GRID, squares.double() / GRID**2 - centres], dim=1)


def _checked_columns(columns: Sequence[int] | None, dim: int) -> Tensor:
    if columns is None:
        return torch.arange(dim)
    whole = [column for column in columns if isinstance(column, int) and 0 <= column < dim]
    if not whole or len(whole) != len(columns) or len(set(whole)) != len(whole):
        raise RequestError(f"columns must be distinct positions 0 to {dim - 1}, at least one, not {columns!r}")
    return torch.tensor(whole)
