"""A private quantile of one number per record, by a binary search with noisy counts."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tacit.errors import RequestError, count, positive
from tacit.federation import Batch, Federation
from tacit.models.gradients import sums_by_client
from tacit.privacy.promises.guarantee import Target
from tacit.side.release import NoisyMeans, SideRelease, check_one_number_each, check_range

RecordValues = Tensor | Callable[[Batch], Tensor]
"""One number for each record, or a function that computes it from each record separately."""

BOUND = 0.5
"""A record counts +1/2 on one side of a threshold and -1/2 on the other."""


def private_quantile(
    federation: Federation,
    values: RecordValues,
    quantile: float,
    *,
    name: str,
    lower: float,
    upper: float,
    bins: int = 1024,
    logarithmic: bool = False,
    target: Target,
    seed: int | None = None,
) -> SideRelease[float]:
    """Approximately the smallest number in [lower, upper] that a share `quantile` of all records does not exceed.

    Guarantee: the whole search keeps `target`. A record counts +1/2 if it lies at or below a threshold and -1/2
    if not, so the Gaussian event of bound 1/2 is exact in both adjacencies: a replaced record moves the count
    by 1, one that is left out (as if it lay half on either side) by 1/2. Numbers outside the range count as its
    nearest end.

    Each of the k = ceil(log2(bins)) halvings of the range asks every client for one noisy count. `noise_std` is
    the noise on the share of all records below a threshold, which is about the error of the answer's rank. The
    remaining range is (upper - lower) / 2^k wide, or, if `logarithmic`, spans a factor (upper / lower)^(1 / 2^k).
    A histogram with the same number of bins would need only one round, but its replace-one sensitivity is sqrt(2)
    and its bins must be added up: sqrt(bins / (2 k)) times as much noise on the rank of the median.

    `name` describes the values. Two releases with the same seed need different names; without a seed, the noise
    is lattice noise from the operating system's entropy.

    >>> import torch
    >>> ages = torch.linspace(20, 60, 6000)[:, None]
    >>> hospitals = Federation.from_arrays(ages, ages[:, 0], [0, 1, 2] * 2000)
    >>> age = private_quantile(
    ...     hospitals, lambda batch: batch.features[:, 0], 0.75,
    ...     name="age", lower=0, upper=120, target=Target(1.0, 1e-5), seed=1)
    >>> round(age.value), round(age.noise_std, 3)
    (50, 0.003)
    >>> age.guarantee.epsilon <= 1.0
    True
    """
    if not 0 < quantile < 1:
        raise RequestError(f"quantile must be above 0 and below 1, not {quantile!r}; 0.5 is the median")
    if logarithmic:
        positive("lower", lower)
    check_range(name, lower, upper)
    numbers = torch.as_tensor(values(federation.batch()) if callable(values) else values).detach().cpu().double()
    check_one_number_each(name, numbers, federation)

    halvings, low, high = halvings_of(bins), float(lower), float(upper)
    question = f"quantile {float(quantile)} of {name} in {low}, {high} by {halvings} {logarithmic}"
    counts = NoisyMeans(federation, question, BOUND, halvings, target, seed)
    for release in range(halvings):
        middle = _middle(low, high, logarithmic)
        below = counts.means(_balances(numbers, middle, federation.sizes), release).item() + BOUND
        low, high = (middle, high) if below < quantile else (low, middle)
    return counts.released(_middle(low, high, logarithmic), bounds_taken(name, lower, upper))


def planned_quantile(
    federation: Federation, value: float, *, name: str, lower: float, upper: float, bins: int, target: Target
) -> SideRelease[float]:
    """What `private_quantile` would release and cost, with a value that is made up: no record is looked at."""
    counts = NoisyMeans(federation, name, BOUND, halvings_of(bins), target, seed=0)
    return counts.released(value, bounds_taken(name, lower, upper))


def halvings_of(bins: int) -> int:
    """How often a search halves the range, and so how many noisy counts every client sends."""
    return (count("bins", bins, at_least=2) - 1).bit_length()


def bounds_taken(name: str, lower: float, upper: float) -> str:
    """What a search takes as public."""
    return f"the bounds of {name}, {lower:g} to {upper:g}"


def _middle(low: float, high: float, logarithmic: bool) -> float:
    return math.sqrt(low) * math.sqrt(high) if logarithmic else low + (high - low) / 2


def _balances(numbers: Tensor, threshold: float, sizes: Tensor) -> Tensor:
    """For each client, half its records at or below the threshold minus half the others: (clients, 1), exact."""
    return sums_by_client(torch.where(numbers <= threshold, BOUND, -BOUND)[:, None].double(), sizes)
