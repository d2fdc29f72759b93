"""Which records a client uses in a round.

A scheme defines three things that belong together: how it draws, the *constant* by which the sum is divided
(never the size that was drawn, which is private), and the privacy event of one release. Because the event comes
from the scheme that draws, accountant and sampling cannot be mismatched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from dp_accounting import dp_event
from torch import Tensor

from tacit.client.cohort import Cohort
from tacit.errors import RequestError, unknown_name
from tacit.federation import Batch
from tacit.noise.randomness import Purpose
from tacit.privacy import events


@dataclass(frozen=True)
class Drawn:
    """The records of one round: the batch, and their indices in the federation."""

    batch: Batch
    rows: Tensor


@dataclass(frozen=True)
class Reach:
    """How far one record moves a sum, in bounds.

    Whether it is drawn or not, it adds a vector of norm at most `always`; each time it is drawn, it adds another
    one of norm at most `drawn`. On average over the draw, it adds a vector of norm at most `average`; the default
    is as much as the two norms allow.
    """

    drawn: float = 1.0
    always: float = 0.0
    average: float = math.inf

    def inside(self, rate: float) -> float:
        """The most that the record adds in a round in which it is drawn once."""
        return min(self.always + self.drawn, self.average + (1 - rate) * self.drawn)

    def with_slack(self, slack: float) -> Reach:
        """The reach on a lattice, where rounding changes what a record adds by at most `slack` bounds."""
        if not self.always:
            return Reach(self.drawn + slack)
        return Reach(self.drawn + 2 * slack, self.always + slack, self.average + slack)


ONE = Reach()
"""A record that is not drawn adds nothing; one that is drawn adds at most one bound."""


class Sampling(Protocol):
    """How a client's batch is drawn.

    `batch` is a number of records or, if below 1, a fraction of each client's records.
    """

    @property
    def name(self) -> str:
        """The name used in recipes."""
        ...

    @property
    def exact(self) -> bool:
        """Whether every batch has exactly b different records, so that its size is no secret."""
        ...

    @property
    def once(self) -> bool:
        """Whether a record is used in only one round of the run."""
        ...

    def batch_sizes(self, sizes: Tensor) -> Tensor:
        """The constant b by which a client of each size divides its sum: (clients,) double."""
        ...

    def rate(self, size: int) -> float:
        """The share of a client's records in a batch, b / m."""
        ...

    def draw(self, cohort: Cohort) -> Drawn:
        """Draw this round's records for each client of the cohort."""
        ...

    def check_rounds(self, sizes: Tensor, rounds: int) -> None:
        """Refuse more rounds than the scheme has batches for."""
        ...

    def event(self, size: int, noise_multiplier: float, rounds: int, reach: Reach = ONE) -> dp_event.DpEvent:
        """The privacy event of `rounds` releases of a client with `size` records.

        `reach` is how far a record moves the sum; `noise_multiplier` is the noise's standard deviation on that
        sum, in bounds.
        """
        ...


def _as_batch_sizes(batch: float, sizes: Tensor) -> Tensor:
    sizes = sizes.double()
    return sizes * batch if batch < 1 else sizes.clamp(max=float(batch))


def _check_batch(batch: float) -> None:
    if not math.isfinite(batch) or not (0 < batch < 1 or (batch >= 1 and batch == int(batch))):
        raise RequestError(
            f"batch must be a whole number of records, or a fraction between 0 and 1, not {batch!r}"
        )


def _gather(cohort: Cohort, picks: Sequence[np.ndarray]) -> Drawn:
    starts = cohort.federation.offsets[cohort.clients].tolist()
    rows = np.concatenate([start + pick for start, pick in zip(starts, picks, strict=True)] or [np.empty(0)])
    counts = torch.tensor([len(pick) for pick in picks], dtype=torch.int64)
    flat = torch.from_numpy(rows.astype(np.int64))
    return Drawn(cohort.federation.take(flat, counts), flat)


class _EveryRound:
    """A scheme that draws anew in every round, from all records."""

    once: ClassVar[bool] = False

    def check_rounds(self, sizes: Tensor, rounds: int) -> None:
        """Any number of rounds."""


@dataclass(frozen=True)
class Full(_EveryRound):
    """All records in every round."""

    name: str = "full"
    exact: ClassVar[bool] = True

    def batch_sizes(self, sizes: Tensor) -> Tensor:
        return sizes.double()

    def rate(self, size: int) -> float:
        return 1.0

    def draw(self, cohort: Cohort) -> Drawn:
        return Drawn(cohort.everything(), cohort.federation.records_of(cohort.clients))

    def event(self, size: int, noise_multiplier: float, rounds: int, reach: Reach = ONE) -> dp_event.DpEvent:
        """The Gaussian mechanism, `rounds` times."""
        return events.repeated(events.gaussian(noise_multiplier / min(reach.inside(1.0), reach.average)), rounds)


@dataclass(frozen=True)
class Poisson(_EveryRound):
    """Each record joins by its own independent coin, with probability q = batch / size. This is the default.

    An empty batch is valid: the client still sends its noise.
    """

    batch: float
    """the expected number of records, or below 1 a fraction of them"""
    name: str = "poisson"
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_batch(self.batch)

    def batch_sizes(self, sizes: Tensor) -> Tensor:
        """The expected size q m."""
        return _as_batch_sizes(self.batch, sizes)

    def rate(self, size: int) -> float:
        """q; if the batch is a fraction, it is the same for clients of all sizes."""
        return self.batch if self.batch < 1 else min(1.0, self.batch / size)

    def draw(self, cohort: Cohort) -> Drawn:
        pairs = zip(cohort.sizes.tolist(), cohort.generators(Purpose.SAMPLE), strict=True)
        return _gather(cohort, [np.flatnonzero(g.random(size) < self.rate(size)) for size, g in pairs])

    def event(self, size: int, noise_multiplier: float, rounds: int, reach: Reach = ONE) -> dp_event.DpEvent:
        """The Poisson-sampled Gaussian mechanism, or its two-level form (Theorem B), `rounds` times."""
        rate = self.rate(size)
        if rate == 1:
            return Full().event(size, noise_multiplier, rounds, reach)
        if reach.always:
            one = events.two_level(rate, noise_multiplier, reach.inside(rate), reach.always, reach.average)
        else:
            one = events.poisson(rate, noise_multiplier / reach.drawn)
        return events.repeated(one, rounds)


@dataclass(frozen=True)
class _WholeBatches:
    """A scheme whose batches have a fixed number of records."""

    batch: float
    """the number of records, or below 1 a fraction of them"""

    def __post_init__(self) -> None:
        _check_batch(self.batch)

    def batch_sizes(self, sizes: Tensor) -> Tensor:
        return _as_batch_sizes(self.batch, sizes).round().clamp(min=1)

    def rate(self, size: int) -> float:
        """The share of the records in a batch, b / m."""
        return self._sample_size(size) / size

    def _sample_size(self, size: int) -> int:
        return int(self.batch_sizes(torch.tensor([size]))[0])


@dataclass(frozen=True)
class FixedSize(_EveryRound, _WholeBatches):
    """Exactly `batch` records: a uniformly random subset, or `batch` independent draws with replacement."""

    replacement: bool
    """whether a record may be drawn several times"""

    @property
    def name(self) -> str:
        return "with-replacement" if self.replacement else "without-replacement"

    @property
    def exact(self) -> bool:
        return not self.replacement

    def draw(self, cohort: Cohort) -> Drawn:
        """For each client, a random subset or independent draws (a record drawn twice counts twice)."""
        wanted = self.batch_sizes(cohort.sizes).long().tolist()
        triples = zip(cohort.sizes.tolist(), wanted, cohort.generators(Purpose.SAMPLE), strict=True)
        if self.replacement:
            return _gather(cohort, [np.sort(g.integers(0, size, k)) for size, k, g in triples])
        return _gather(
            cohort, [np.sort(g.choice(size, k, replace=False, shuffle=False)) for size, k, g in triples]
        )

    def event(self, size: int, noise_multiplier: float, rounds: int, reach: Reach = ONE) -> dp_event.DpEvent:
        """The Gaussian mechanism, `rounds` times, on a sample of fixed size (or on all records)."""
        sample = self._sample_size(size)
        if sample == size and not self.replacement:
            return Full().event(size, noise_multiplier, rounds, reach)
        if reach.always:
            parts = reach.drawn, reach.always, reach.average
            one = events.fixed_size_two_level(size, sample, self.replacement, noise_multiplier, *parts)
        else:
            make = events.with_replacement if self.replacement else events.without_replacement
            one = make(size, sample, noise_multiplier / reach.drawn)
        return events.repeated(one, rounds)


def WithoutReplacement(batch: float) -> FixedSize:  # noqa: N802  # like the other schemes, which are classes
    """A uniformly random set of records, always of the same size.

    Args:
        batch: the number of records, or below 1 a fraction of them.
    """
    return FixedSize(batch, replacement=False)


def WithReplacement(batch: float) -> FixedSize:  # noqa: N802
    """Independent draws; a record drawn twice counts twice.

    Args:
        batch: the number of draws, or below 1 a fraction of the records.
    """
    return FixedSize(batch, replacement=True)


@dataclass(frozen=True)
class OnePass(_WholeBatches):
    """Disjoint batches in random order: a record is used in at most one step (ISRL-DP, Lowy & Razaviyayn 2023).

    The order is drawn once for the whole run and does not depend on the records, so a record's whole cost is one
    Gaussian release, however many rounds there are (docs/privacy.md, Fact E).
    """

    name: str = "one-pass"
    exact: ClassVar[bool] = True
    once: ClassVar[bool] = True

    def draw(self, cohort: Cohort) -> Drawn:
        """The slice of each client's random order that belongs to this step of this round."""
        wanted = self.batch_sizes(cohort.sizes).long().tolist()
        triples = zip(cohort.sizes.tolist(), wanted, cohort.generators_of_run(Purpose.SAMPLE), strict=True)
        t = cohort.round * cohort.steps + cohort.step
        return _gather(cohort, [np.sort(g.permutation(size)[t * k : (t + 1) * k]) for size, k, g in triples])

    def check_rounds(self, sizes: Tensor, rounds: int) -> None:
        """Refuse more than floor(n / K) batches."""
        most = int(torch.floor(sizes.double() / self.batch_sizes(sizes)).min())
        if rounds > most:
            raise RequestError(
                f"the rounds need {rounds} batches but sampling 'one-pass' has only {most} disjoint batches of "
                f"{self.batch:g} for the smallest client ({int(sizes.min())} records); use a smaller batch"
            )

    def event(self, size: int, noise_multiplier: float, rounds: int, reach: Reach = ONE) -> dp_event.DpEvent:
        """One Gaussian release in the whole run."""
        if reach.always:
            raise RequestError("sampling 'one-pass' has no privacy proof for estimators with memory (svrg, saga)")
        return events.one_pass(noise_multiplier / reach.drawn, rounds)


SAMPLINGS: dict[str, Callable[[float], Sampling]] = {
    "poisson": Poisson,
    "without-replacement": WithoutReplacement,
    "with-replacement": WithReplacement,
    "one-pass": OnePass,
}


def build_sampling(name: str, batch: float | None) -> Sampling:
    """Build a sampling scheme from its name."""
    if name == "full":
        return Full()
    if name not in SAMPLINGS:
        raise unknown_name("sampling", name, [*SAMPLINGS, "full"])
    if batch is None:
        raise RequestError(f"sampling {name!r} needs a batch: a number of records, or a fraction of them")
    return SAMPLINGS[name](batch)
