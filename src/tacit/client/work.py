"""The client's work in a round, from the model's point to a private vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from dp_accounting import dp_event
from torch import Tensor

from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import Bound
from tacit.client.cohort import Cohort
from tacit.client.estimators import Estimator, Minibatch
from tacit.client.noising import noise_memory, with_noise
from tacit.client.sampling import Sampling
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models.model import Model, penalty_gradient
from tacit.noise.additive import Noise, SeededGaussian, check_size
from tacit.privacy import events
from tacit.privacy.promises.terms import RECORD_COUNTS, Unit
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


@dataclass(frozen=True)
class PrivateGradient(CommonWork):
    """A bounded gradient estimate plus Gaussian noise, plus the penalty's gradient, which is public.

    Guarantee: with noise multiplier z, one release is the Gaussian mechanism on a sum to which one record adds
    at most `reach` bounds, with noise of z bounds on every coordinate, divided by the constant b. What follows
    (penalty, shift, compression, server) is post-processing. SoteriaFL (Li et al. 2022), Algorithm 3, lines 3-12.
    """

    model: Model
    estimator: Estimator
    bound: Bound
    noise: Noise = field(default_factory=SeededGaussian)

    @property
    def sampling(self) -> Sampling:
        return self.estimator.sampling

    def with_sampling(self, sampling: Sampling) -> Self:
        return replace(self, estimator=replace(self.estimator, sampling=sampling))  # type: ignore[type-var]

    def init(self, point: Tensor, federation: Federation) -> State:
        """Create the memory of the estimator and of the noise."""
        own = self.estimator.init(BoundedModel(self.model, self.bound, self.noise.precision), point, federation)
        return {**own, **noise_memory(self.noise, federation.clients, self.model.dim)}

    @property
    def adds_up(self) -> bool:
        """Yes, unless the noise of one release depends on that of another."""
        return self.by_coordinate

    @property
    def by_coordinate(self) -> bool:
        """Whether single coordinates may be computed without the others; noise with memory needs all of them."""
        return not self.noise.init(1, 1)

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        """Estimate, bound, add noise; then the penalty.

        With `cohort.at`, only these coordinates are completed and returned. They have the same law as in the
        whole vector, whose noise is independent between coordinates; noise that nobody would see is not drawn.
        """
        model = BoundedModel(self.model, self.bound, self.noise.precision)
        estimate, state = self.estimator.estimate(model, point, cohort, state)
        penalty = penalty_gradient(self.model, point)
        if cohort.at is not None:
            at = cohort.at.to(point.device)
            estimate = estimate.gather(1, at)
            penalty = penalty[at] if isinstance(penalty, Tensor) else penalty
        stds = self.noise_stds(cohort.sizes, noise_multipliers)
        estimate, state = with_noise(self.noise, estimate, stds, noise_multipliers, cohort, state)
        return estimate + penalty, state

    def public_part(self, point: Tensor) -> Tensor:
        """The gradient of the penalty."""
        return torch.zeros_like(point) + penalty_gradient(self.model, point)

    def noise_stds(self, sizes: Tensor, noise_multipliers: Tensor) -> Tensor:
        """The noise on each coordinate, z bound / b."""
        return noise_multipliers * self.bound.norm(self.model.dim) / self.sampling.batch_sizes(sizes)

    def event(self, size: int, noise_multiplier: float, rounds: int) -> dp_event.DpEvent:
        """The sampling scheme's event at the estimator's reach."""
        self.sampling.check_rounds(torch.tensor([size]), rounds)
        check_size(self.noise, size)
        reach = self.estimator.reach(self.sampling.rate(size)).with_slack(self.noise.slack)
        ideal = self.sampling.event(size, noise_multiplier, rounds, reach)
        return self.noise.charged(ideal, self.model.dim, rounds)

    def check_shuffled(self, cohort: int, batch: int) -> None:
        if not isinstance(self.estimator, Minibatch):
            super().check_shuffled(cohort, batch)

    def shuffled_event(self, cohort: int, size: int, noise_multiplier: float, rounds: int) -> dp_event.DpEvent:
        """Gaussian messages are amplified by shuffling (`tacit.privacy.accountant.mixed`)."""
        self.sampling.check_rounds(torch.tensor([size]), rounds)
        batch, once = int(self.sampling.batch_sizes(torch.tensor([size]))[0]), self.sampling.once
        self.check_shuffled(cohort, batch)
        release = events.shuffled(
            cohort, batch if once else size, batch, noise_multiplier / (1 + self.noise.slack)
        )
        ideal = events.once(release, rounds) if once else events.repeated(release, rounds)
        # The noise of the other clients is what hides a message, so everyone's noise has to be right.
        return self.noise.charged(ideal, self.model.dim, rounds * cohort)

    def evaluations(self, cohort: Cohort) -> float:
        return self.estimator.evaluations(cohort)

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """The records that the estimator holds at a time."""
        return self.estimator.records_in_memory(sizes)
