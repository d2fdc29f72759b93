"""The interface of a client's work in a round, from the model's point to a private vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, Self

from dp_accounting import dp_event
from torch import Tensor

from tacit.client.bounds import Bound
from tacit.client.cohort import Cohort
from tacit.client.sampling import Sampling
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.noise.additive import Noise
from tacit.privacy.promises.terms import PERSON_NAMES, RECORD_COUNTS, Unit
from tacit.side.release import SideRelease
from tacit.state import State

DIRECTION = "direction"
"""The name of what moves the point: a gradient or an update, (dim,)."""


class Work(Protocol):
    """What a client computes in a round; its output is already private.

    The amount of noise is not a setting of the work. It is derived from a guarantee and passed in as one noise
    multiplier per client; `event` describes the privacy that this noise gives.
    """

    @property
    def model(self) -> Model:
        """The loss that is trained."""
        ...

    @property
    def bound(self) -> Bound:
        """The bound on one record's influence."""
        ...

    @property
    def sampling(self) -> Sampling:
        """How records are drawn."""
        ...

    @property
    def noise(self) -> Noise:
        """The kind of noise that is added."""
        ...

    @property
    def unit(self) -> Unit:
        """Whose influence is bounded: a record's or a whole client's."""
        ...

    @property
    def public(self) -> tuple[str, ...]:
        """What the guarantee treats as public."""
        ...

    @property
    def batches_per_round(self) -> int:
        """How many batches a client draws in a round."""
        ...

    @property
    def adds_up(self) -> bool:
        """Whether a sum of several clients' vectors, each with a share of the noise, has the noise of all shares.

        So it is if the noise is Gaussian, independent between releases, and added last.
        """
        ...

    @property
    def parts(self) -> Mapping[str, int]:
        """What a client sends, by name, each with its length: the columns of the rows that `run` returns."""
        ...

    @property
    def bounded(self) -> int:
        """How many numbers of a gradient are bounded together, and get noise."""
        ...

    @property
    def pace(self) -> tuple[float, float]:
        """The factors on gradients and on their noise in a message."""
        ...

    @property
    def by_coordinate(self) -> bool:
        """Whether `run` can compute the coordinates `cohort.at` without the others."""
        ...

    @property
    def counted(self) -> bool:
        """Whether messages are bits that a shuffler mixes one by one, so that only their sums are seen."""
        ...

    @property
    def before(self) -> SideRelease[float] | None:
        """What the same records released before the first round, if anything."""
        ...

    def summed(self, point: Tensor, cohort: Cohort) -> Tensor | None:
        """The sum of what the clients' `run` returns without noise, if it is cheaper than that: (length,)."""
        ...

    def with_noise(self, noise: Noise) -> Self:
        """The same work with another kind of noise."""
        ...

    def with_sampling(self, sampling: Sampling) -> Self:
        """The same work with other batches."""
        ...

    def init(self, point: Tensor, federation: Federation) -> State:
        """The clients' memory before the first round."""
        ...

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        """One round of each client of the cohort: private vectors, (clients, length of all parts)."""
        ...

    def public_part(self, point: Tensor) -> Tensor:
        """The part of what a client sends, (length,), that no record influences."""
        ...

    def noise_stds(self, sizes: Tensor, noise_multipliers: Tensor) -> Tensor:
        """The standard deviation of the noise on every coordinate of what a client releases."""
        ...

    def event(self, size: int, noise_multiplier: float, rounds: int) -> dp_event.DpEvent:
        """The privacy event of everything that a client of this size releases over all rounds."""
        ...

    def check_shuffled(self, cohort: int, batch: int) -> None:
        """Refuse messages, each of a batch of this size, that have no proof behind a shuffler of `cohort`."""
        ...

    def shuffled_event(self, cohort: int, size: int, noise_multiplier: float, rounds: int) -> dp_event.DpEvent:
        """`event` as seen by someone who gets `cohort` messages a round in random order."""
        ...

    def evaluations(self, cohort: Cohort) -> float:
        """The number of record gradients the cohort computes in this round, in expectation over its batches."""
        ...

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """About how many records are held in memory at a time, for clients of these sizes."""
        ...


def sizes_are_public(work: Work) -> bool:
    """Whether this work's promise treats the clients' numbers of records as public, so that they may be shown.

    If not, nothing that leaves a client or is published may depend on them, except through its noisy messages.
    """
    return RECORD_COUNTS in work.public


def looked_at(work: Work, federation: Federation) -> tuple[str, ...]:
    """What this work's promise takes as public because preparation has looked at it."""
    protected = PERSON_NAMES if work.unit is Unit.CLIENT else None
    return tuple(peek for peek in federation.peeks if peek != protected)


class CommonWork:
    """What most works have in common; a work overrides what is different."""

    @property
    def unit(self) -> Unit:
        return Unit.RECORD

    @property
    def public(self) -> tuple[str, ...]:
        return (RECORD_COUNTS,)

    @property
    def batches_per_round(self) -> int:
        return 1

    @property
    def adds_up(self) -> bool:
        return False

    @property
    def parts(self: Work) -> Mapping[str, int]:
        return {DIRECTION: self.model.dim}

    @property
    def bounded(self: Work) -> int:
        return self.model.dim

    @property
    def pace(self) -> tuple[float, float]:
        return 1.0, 1.0

    @property
    def by_coordinate(self) -> bool:
        return False

    @property
    def counted(self) -> bool:
        return False

    @property
    def before(self) -> SideRelease[float] | None:
        return None

    def summed(self, point: Tensor, cohort: Cohort) -> Tensor | None:
        return None

    def with_noise(self, noise: Noise) -> Self:
        return replace(self, noise=noise)  # type: ignore[type-var]  # works are dataclasses

    def public_part(self: Work, point: Tensor) -> Tensor:
        return point.new_zeros(sum(self.parts.values()))

    def with_sampling(self, sampling: Sampling) -> Self:
        return replace(self, sampling=sampling)  # type: ignore[type-var]  # works are dataclasses

    def check_shuffled(self, cohort: int, batch: int) -> None:
        raise RequestError(
            "only minibatch gradients have a proof behind a shuffler: others have memory or take local steps"
        )

    def shuffled_event(
        self: Work, cohort: int, size: int, noise_multiplier: float, rounds: int
    ) -> dp_event.DpEvent:
        self.check_shuffled(cohort, 1)
        raise NotImplementedError

    def evaluations(self: Work, cohort: Cohort) -> float:
        return self.batches_per_round * float(self.sampling.batch_sizes(cohort.sizes).sum())

    def records_in_memory(self: Work, sizes: Tensor) -> Tensor:
        return self.sampling.batch_sizes(sizes)
