"""Private ranges of several numbers per record, by one binary search with noisy counts for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import DataError, RequestError
from tacit.federation import Federation
from tacit.models.gradients import sums_by_client
from tacit.privacy.promises.guarantee import Target
from tacit.side.release import NoisyMeans, SideRelease, check_range

Numbers = npt.NDArray[np.float64]

HALVINGS = 16
"""How often limits are halved: a range is found to 1/65,536 of their distance."""

STEPS = HALVINGS + 1
"""How many noisy sums every client sends: one about gaps, then one for each halving."""

ENDS = (0.02, 0.98)
"""The shares of the records below the two ends, before they are moved outwards by `MARGIN` of the width."""

MARGIN = 0.1

SMALLEST = 1e-9
"""On a signed scale, numbers that are closer to 0 are hardly told apart."""


@dataclass(frozen=True)
class Limits:
    """What is public about a number before its range is learned: where it surely lies, and on which scale."""

    name: str
    lower: float
    upper: float
    logarithmic: bool = False
    signed: bool = field(default=False, repr=False)
    """whether the scale is logarithmic on both sides of 0"""

    def __post_init__(self) -> None:
        check_range(self.name, self.lower, self.upper)
        if self.logarithmic and self.lower <= 0:
            raise RequestError(f"{self.name}: a logarithmic scale needs limits above 0, not {self.lower!r}")

    def to_scale(self, numbers: Numbers) -> Numbers:
        """Numbers on the scale of the search, within the limits; gaps stay NaN."""
        clipped: Numbers = np.clip(numbers, self.lower, self.upper)
        if self.signed:
            return np.arcsinh(clipped / SMALLEST)
        return np.log(clipped) if self.logarithmic else clipped

    def inverse(self, number: float) -> float:
        """The number at a place of the scale."""
        if self.signed:
            return SMALLEST * math.sinh(number)
        return math.exp(number) if self.logarithmic else number

    def from_scale(self, number: float) -> float:
        """The same with three digits."""
        return float(f"{self.inverse(number):.3g}")


@dataclass(frozen=True)
class RangeSearch:
    """A binary search for the ranges of several numbers at once, of which every step is one noisy mean.

    Each record contributes one vector to every step. In the first, for each number and each of its two ends: +1/2
    if the number is known and -1/2 if it is a gap. In the others: +1/2 if it lies at or below the current
    threshold of that end, -1/2 if above, 0 for a gap. The thresholds halve the limits, as in `private_quantile`.

    Guarantee: a vector has 2 k entries of at most 1/2 for k numbers, so a norm of at most `bound` = sqrt(k/2),
    whatever the record is and wherever the thresholds are. So STEPS steps are STEPS Gaussian mechanisms of this
    bound, in both adjacencies, also if someone else chose the thresholds.
    """

    limits: tuple[Limits, ...]
    low: Numbers
    """(2 k,): for each end the number above which it lies, on the scale of the search"""
    high: Numbers
    complete: Numbers | None = None
    """(2 k,): about which share of the records has each number; None before the first step"""
    ends: tuple[float, float] = ENDS
    """the shares of the records below the two ends"""

    @classmethod
    def start(
        cls, limits: Sequence[Limits], ends: tuple[float, float] = ENDS, *, gaps: bool = True
    ) -> RangeSearch:
        """Before the first step, which is about gaps if there may be any."""
        low, high = (
            np.repeat([float(one.to_scale(np.array(getattr(one, end)))) for one in limits], 2)
            for end in ("lower", "upper")
        )
        return cls(tuple(limits), low, high, None if gaps else np.ones(len(low)), ends)

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return 2 * len(self.limits)

    @property
    def bound(self) -> float:
        """The most that a record's vector can be long."""
        return math.sqrt(self.dim) / 2

    def contributions(self, numbers: Numbers) -> Numbers:
        """The vector of every record: (records, dim), from its k numbers, NaN for gaps."""
        scaled = np.stack([one.to_scale(numbers[:, k]) for k, one in enumerate(self.limits)], axis=1)
        scaled = np.repeat(scaled, 2, axis=1)
        known = ~np.isnan(scaled)
        if self.complete is None:
            return np.where(known, 0.5, -0.5)
        return np.where(known, np.where(scaled <= (self.low + self.high) / 2, 0.5, -0.5), 0.0)

    def moved(self, means: Numbers) -> RangeSearch:
        """After one more step, whose noisy means of all records' vectors are these."""
        if self.complete is None:
            return replace(self, complete=np.clip(means + 0.5, 0.05, 1.0))
        # Of the known numbers, a share q lies below where the balance is (q - 1/2) times their share.
        up = means < (np.tile(self.ends, len(self.limits)) - 0.5) * self.complete
        middle = (self.low + self.high) / 2
        return replace(self, low=np.where(up, middle, self.low), high=np.where(up, self.high, middle))

    @property
    def ranges(self) -> tuple[tuple[float, float], ...]:
        """The range of every number, as far as the search has come, with a margin."""
        found = ((self.low + self.high) / 2).reshape(-1, 2).tolist()
        return tuple(_widened(one, *pair) for one, pair in zip(self.limits, found, strict=True))


def ranges_release(
    search: RangeSearch, federation: Federation, question: str, target: Target, seed: int | None
) -> NoisyMeans:
    """The release of all steps of a search: its noise and event depend on the number of limits and `target`."""
    name = f"ranges {question} {[*search.limits]} by {HALVINGS}"
    return NoisyMeans(federation, name, search.bound, STEPS, target, seed, search.dim)


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

    Every client sends STEPS noisy sums of one vector per record (`RangeSearch`).

    Guarantee: all messages together meet `target`. Thresholds depend on earlier messages only, which composition
    allows.

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
    search = RangeSearch.start(limits)
    release = ranges_release(search, federation, name, target, seed)
    search, _ = search_ranges(search, numbers, federation, release.messages)
    assumed = (f"that {one.name} lies in {one.lower:g} to {one.upper:g}" for one in limits)
    return release.released(search.ranges, *assumed)


def search_ranges(
    search: RangeSearch,
    numbers: Numbers,
    federation: Federation,
    answer: Callable[[Tensor, int], Tensor],
    steps: int = STEPS,
) -> tuple[RangeSearch, list[Tensor]]:
    """All steps of a search: where it ends, and every step's messages, which `answer` makes of clients' sums."""
    messages = []
    for step in range(steps):
        messages.append(answer(range_sums(search, numbers, federation.sizes), step))
        search = search.moved((messages[-1].sum(0) / federation.records).numpy())
    return search, messages


def range_sums(search: RangeSearch, numbers: Numbers, sizes: Tensor) -> Tensor:
    """What every client adds up in a step: (clients, dim) double."""
    return sums_by_client(torch.from_numpy(search.contributions(numbers)), sizes)


def _widened(limits: Limits, low: float, high: float) -> tuple[float, float]:
    """The range with a margin, within the limits; all of them, if noise has hidden it."""
    margin = MARGIN * (high - low)
    start, end = limits.from_scale(low - margin), limits.from_scale(high + margin)
    start, end = max(start, limits.lower), min(end, limits.upper)
    return (start, end) if start < end else (limits.lower, limits.upper)
