"""Private ranges of several numbers per record, by one binary search with noisy counts for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tacit.errors import DataError, RequestError
from tacit.federation import Federation
from tacit.models.gradients import sums_by_client
from tacit.privacy.promises.guarantee import Target
from tacit.side.release import NoisyMeans, SideRelease, check_range

Numbers = npt.NDArray[np.float64]

HALVINGS = 16
"""How often limits are halved: a range is found to 1/65,536 of their distance."""

ENDS = (0.02, 0.98)
"""The shares of the records below the two ends, before they are moved outwards by `MARGIN` of the width."""

MARGIN = 0.1


@dataclass(frozen=True)
class Limits:
    """What is public about a number before its range is learned: where it surely lies, and on which scale."""

    name: str
    lower: float
    upper: float
    logarithmic: bool = False

    def __post_init__(self) -> None:
        check_range(self.name, self.lower, self.upper)
        if self.logarithmic and self.lower <= 0:
            raise RequestError(f"{self.name}: a logarithmic scale needs limits above 0, not {self.lower!r}")

    def to_scale(self, numbers: Numbers) -> Numbers:
        """Numbers on the scale of the search, within the limits; gaps stay NaN."""
        clipped: Numbers = np.clip(numbers, self.lower, self.upper)
        return np.log(clipped) if self.logarithmic else clipped

    def from_scale(self, number: float) -> float:
        """The number itself, with three digits."""
        return float(f"{math.exp(number) if self.logarithmic else number:.3g}")


def private_ranges(
    federation: Federation,
    numbers: Numbers,
    limits: Sequence[Limits],
    *,
    name: str = "",
    target: Target,
    seed: int | None = None,
) -> SideRelease[tuple[tuple[float, float], ...]]:
    """For each number of a record a range that holds most of it.

    Every client sends HALVINGS + 1 noisy sums of one vector per record. First, for each number: +1/2 if it is
    known and -1/2 if it is a gap. Then, for each number and each of its two ends: +1/2 if it lies at or below the
    current threshold, -1/2 if above, 0 for a gap. The thresholds halve the limits, as in `private_quantile`.

    Guarantee: a vector has at most 2 k entries of at most 1/2 for k numbers, so a norm of at most sqrt(k/2),
    whatever the record is. All messages together are therefore that many Gaussian mechanisms of this bound, in
    both adjacencies, and meet `target`. Thresholds depend on earlier messages only, which composition allows.

    Args:
        federation: the records; a record is a person, if persons have several rows.
        numbers: (records, k), NaN for gaps, in the order of the federation's records.
        limits: the public limits of each of the k numbers.
        name: two releases with the same seed and limits need different names.
        target: what the release alone may cost.
        seed: for research; by default the noise is lattice noise from the operating system's entropy.
    """
    if numbers.shape != (federation.records, len(limits)):
        raise DataError(f"numbers must be {federation.records} times {len(limits)}, not {numbers.shape}")
    scaled = np.stack([one.to_scale(numbers[:, k]) for k, one in enumerate(limits)], axis=1)
    scaled = np.repeat(scaled, 2, axis=1)
    known = ~np.isnan(scaled)
    question = f"ranges {name} {[*limits]} by {HALVINGS}"
    dim = 2 * len(limits)
    release = NoisyMeans(federation, question, math.sqrt(dim) / 2, HALVINGS + 1, target, seed, dim)

    def share(signs: Numbers, turn: int) -> Numbers:
        sums = sums_by_client(torch.from_numpy(signs / 2), federation.sizes)
        return release.means(sums, turn).numpy()

    complete = np.clip(share(np.where(known, 1.0, -1.0), 0) + 0.5, 0.05, 1.0)
    ends = np.tile(ENDS, len(limits))
    low, high = (np.repeat([float(one.to_scale(np.array(getattr(one, end)))) for one in limits], 2)
                 for end in ("lower", "upper"))  # fmt: skip
    for turn in range(HALVINGS):
        middle = (low + high) / 2
        below = share(np.where(known, np.where(scaled <= middle, 1.0, -1.0), 0.0), turn + 1)
        # Of the known numbers, a share q lies below where the balance is (q - 1/2) times their share.
        up = below < (ends - 0.5) * complete
        low, high = np.where(up, middle, low), np.where(up, high, middle)
    found = ((low + high) / 2).reshape(-1, 2)
    value = tuple(_widened(one, *pair) for one, pair in zip(limits, found.tolist(), strict=True))
    return release.released(value, *(f"that {one.name} lies in {one.lower:g} to {one.upper:g}" for one in limits))


def _widened(limits: Limits, low: float, high: float) -> tuple[float, float]:
    """The range with a margin, within the limits; all of them, if noise has hidden it."""
    margin = MARGIN * (high - low)
    start, end = limits.from_scale(low - margin), limits.from_scale(high + margin)
    start, end = max(start, limits.lower), min(end, limits.upper)
    return (start, end) if start < end else (limits.lower, limits.upper)
