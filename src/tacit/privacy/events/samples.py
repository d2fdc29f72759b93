"""Events of releases from sampled records: which records count, and how much."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dp_accounting import DpEvent

from tacit.errors import RequestError, positive, probability
from tacit.privacy.events.plain_numbers import batch_of, flag, keep_numbers, keep_whole, number


def _keep_average(event: TwoLevelDpEvent | FixedSizeTwoLevelDpEvent, most: float) -> None:
    """Make the event's average a plain number, at most what its other norms allow."""
    average = most if event.average == math.inf else positive("average", number("average", event.average))
    object.__setattr__(event, "average", min(average, most))


@dataclass(frozen=True)
class TwoLevelDpEvent(DpEvent):  # type: ignore[misc]
    """A Poisson-sampled release in which a record counts a little even when it is not sampled (SVRG, SAGA).

    A fresh coin of probability `sampling_rate` decides whether the record contributes a vector of norm at
    most `inside`, else at most `outside`, both in units of the bound. The average of the two vectors over the
    coin has a norm of at most `average`; the default is as much as the two norms allow. The contribution may
    depend on the record's own hidden past (SAGA's table): Theorem B of docs/privacy.md.
    """

    sampling_rate: float
    noise_multiplier: float
    inside: float
    outside: float
    average: float = math.inf

    def __post_init__(self) -> None:
        keep_numbers(self, "sampling_rate", "noise_multiplier", "inside", "outside")
        probability("sampling_rate", self.sampling_rate)
        positive("noise_multiplier", self.noise_multiplier)
        positive("inside", self.inside)
        if not 0 <= self.outside <= self.inside:
            raise RequestError(f"outside must be in [0, inside] = [0, {self.inside!r}], not {self.outside!r}")
        _keep_average(self, (1 - self.sampling_rate) * self.outside + self.sampling_rate * self.inside)


@dataclass(frozen=True)
class FixedSizeTwoLevelDpEvent(DpEvent):  # type: ignore[misc]
    """A fixed-size batch in which every record also counts outside the batch, without hidden state (SVRG).

    Each time the record is drawn it adds a vector of norm at most `difference`; drawn or not it adds one of
    norm at most `full`, both in units of the bound. On average over the draws it adds a vector of norm at most
    `average`; the default is as much as the two norms allow. What it adds is a function of the record and of
    earlier releases only.
    """

    records: int
    batch: int
    replacement: bool
    noise_multiplier: float
    difference: float
    full: float
    average: float = math.inf

    def __post_init__(self) -> None:
        keep_whole(self, "records", "batch")
        batch_of(self.records, self.batch, replacement=flag("replacement", self.replacement))
        keep_numbers(self, "noise_multiplier", "difference", "full")
        for setting in ("noise_multiplier", "difference", "full"):
            positive(setting, getattr(self, setting))
        _keep_average(self, self.full + self.difference * self.batch / self.records)


@dataclass(frozen=True)
class RevealedBatchesDpEvent(DpEvent):  # type: ignore[misc]
    """A whole run whose batches are revealed to the adversary (SAGA, fixed-size batches without replacement).

    In each of `rounds` rounds the record is in the batch with probability `sampling_rate` and then
    contributes at most `inside`, else at most `outside`. Amplification by sampling is not claimed; only the
    chance of being sampled less often counts.
    """

    rounds: int
    sampling_rate: float
    noise_multiplier: float
    inside: float
    outside: float

    def __post_init__(self) -> None:
        keep_numbers(self, "sampling_rate", "noise_multiplier", "inside", "outside")
        keep_whole(self, "rounds")
        TwoLevelDpEvent(self.sampling_rate, self.noise_multiplier, self.inside, self.outside)


@dataclass(frozen=True)
class OnePassDpEvent(DpEvent):  # type: ignore[misc]
    """A whole run over disjoint batches, chosen without looking at the data. Each record is used in one round."""

    noise_multiplier: float
    rounds: int

    def __post_init__(self) -> None:
        keep_numbers(self, "noise_multiplier")
        keep_whole(self, "rounds")
        positive("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class InexactNoiseDpEvent(DpEvent):  # type: ignore[misc]
    """The noise of a whole run comes from a real sampler, close but not equal to the ideal noise of other events.

    All draws together have their ideal probability up to a factor within exp(+-epsilon/2), after `cut_mass` has
    been removed from the tails of the ideal law. `tacit.noise.lattice` proves such numbers for its sampler.
    """

    epsilon: float
    cut_mass: float

    def __post_init__(self) -> None:
        positive("epsilon", number("epsilon", self.epsilon))
        probability("cut_mass", number("cut_mass", self.cut_mass))
