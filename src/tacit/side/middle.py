"""Where the targets of a regression lie and how far apart, by one private search before training.

Steps and clip norms assume targets of a certain size. For arrays that nobody has described, it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from dp_accounting import DpEvent
from torch import Tensor

from tacit.federation import Federation
from tacit.privacy.promises.guarantee import Target
from tacit.side.ranges import Limits, Numbers, RangeSearch, search_ranges
from tacit.side.release import NoisyMeans, SideRelease

QUARTILES = (0.25, 0.75)

FARTHEST = 1e12
"""Targets that are farther from 0 count as this."""

LIMITS = Limits("target", -FARTHEST, FARTHEST, signed=True)

HALVINGS = (16, 12)
"""How often limits are halved: quartiles are found within 0.15% of themselves, or 2.4% where noise is large."""

CERTAIN = 0.07
"""The noise on the share of records below a threshold is at most this: less than a third of a quarter."""

APART = 2
"""Quartiles differ if they are at least so many of the smallest steps apart: many targets may be the same."""


@dataclass(frozen=True)
class Middle:
    """Where the targets of a regression lie, as far as it was learned."""

    centre: float
    """the middle of the two quartiles"""
    half: float | None
    """half of their distance; None if nothing could be told of it"""
    charged: DpEvent | None = field(default=None, compare=False, repr=False)
    """what every client released for it; None if it was read without privacy"""


def middle_release(
    federation: Federation, *, name: str = "", targets: Sequence[Target], seed: int | None = None
) -> NoisyMeans | None:
    """The release of a binary search for both quartiles; its noise and event depend on public numbers alone.

    It is the finest search that is certain enough, for the first of `targets` that permits one. None if noise
    would hide the quartiles.

    Guarantee: that of `RangeSearch`, without the step about gaps: a Gaussian mechanism with a bound of sqrt(1/2)
    for every halving, whatever the targets and the thresholds are.
    """
    searches = (middle_means(federation, halvings, name, one, seed) for one in targets for halvings in HALVINGS)
    return next((search for search in searches if search.noise_std <= CERTAIN), None)


def middle_means(
    federation: Federation, halvings: int, name: str, target: Target, seed: int | None
) -> NoisyMeans:
    """The release of a search with so many halvings, for this target."""
    start = _start()
    return NoisyMeans(federation, f"middle {name} by {halvings}", start.bound, halvings, target, seed, start.dim)


def private_middle(
    federation: Federation, *, name: str = "", targets: Sequence[Target], seed: int | None = None
) -> SideRelease[Middle] | None:
    """The middle of the two quartiles of all targets, and half of their distance.

    The search is on a logarithmic scale on both sides of zero, so nothing has to be known about the targets.
    None if noise would hide the quartiles: then nothing is released.

    Guarantee: the release keeps the one of `targets` that it was made for (`middle_release`).

    Args:
        federation: the records of a regression.
        name: two releases with the same seed need different names.
        targets: what the release alone may cost; the first that is enough is used.
        seed: for research; by default the noise is lattice noise from the operating system's entropy.

    >>> import torch
    >>> prices = torch.linspace(100_000, 300_000, 9000)
    >>> three = Federation.from_arrays(prices[:, None], prices, [0, 1, 2] * 3000)
    >>> found = private_middle(three, targets=[Target(0.5, 1e-5)], seed=0).value
    >>> round(found.centre, -4), round(found.half, -4)
    (200000.0, 50000.0)
    """
    release = middle_release(federation, name=name, targets=targets, seed=seed)
    if release is None:
        return None
    found, _ = search_middle(federation, release.releases, release.messages)
    low, high = ((found.low + found.high) / 2).tolist()
    apart = high - low >= APART * (found.high - found.low).max()
    middle = _middle(LIMITS.inverse(low), LIMITS.inverse(high), apart=bool(apart))
    return release.released(replace(middle, charged=release.event(release.noise_multiplier)))


def search_middle(
    federation: Federation, halvings: int, answer: Callable[[Tensor, int], Tensor]
) -> tuple[RangeSearch, list[Tensor]]:
    """Where the search ends, and every step's messages, which `answer` makes of clients' sums."""
    return search_ranges(_start(), _numbers(federation.targets), federation, answer, halvings)


def exact_middle(targets: Tensor) -> Middle:
    """The same without noise, for runs that promise nothing."""
    low, high = np.quantile(_numbers(targets)[:, 0], QUARTILES).tolist()
    return _middle(low, high, apart=high > low)


def _start() -> RangeSearch:
    """Before the first step; no target is missing."""
    return RangeSearch.start([LIMITS], QUARTILES, gaps=False)


def _numbers(targets: Tensor) -> Numbers:
    numbers: Numbers = targets.detach().cpu().double().numpy()[:, None]
    return numbers


def _middle(low: float, high: float, *, apart: bool) -> Middle:
    return Middle((low + high) / 2, (high - low) / 2 if apart else None)
