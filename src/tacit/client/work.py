"""The client's work in a round, from the model's point to a private vector."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from dp_accounting import dp_event
from torch import Tensor

from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import Bound
from tacit.client.cohort import Cohort
from tacit.client.estimators import Estimator
from tacit.client.noising import noise_memory, with_noise
from tacit.client.sampling import Sampling
from tacit.federation import Federation
from tacit.models.model import Model, penalty_gradient
from tacit.noise.additive import Noise, SeededGaussian, check_size
from tacit.privacy.promises.terms import RECORD_COUNTS, Unit
from tacit.state import State


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

    def with_noise(self, noise: Noise) -> Self:
        """The same work with another kind of noise."""
        ...

    def init(self, point: Tensor, federation: Federation) -> State:
        """The clients' memory before the first round."""
        ...

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        """One round of each client of the cohort: private vectors, (clients, dim)."""
        ...

    def noise_stds(self, sizes: Tensor, noise_multipliers: Tensor) -> Tensor:
        """The standard deviation of the noise on every coordinate of what a client releases."""
        ...

    def event(self, size: int, noise_multiplier: float, rounds: int) -> dp_event.DpEvent:
        """The privacy event of everything that a client of this size releases over all rounds."""
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


@dataclass(frozen=True)
class PrivateGradient:
    """A bounded gradient estimate plus Gaussian noise, plus the penalty's gradient, which is public.

    Guarantee: with noise multiplier z, one release is the Gaussian mechanism on a sum to which one record adds
    at most `reach` bounds, with noise of z bounds on every coordinate, divided by the constant b. What follows
    (penalty, shift, compression, server) is post-processing. SoteriaFL (Li et al. 2022), Algorithm 3, lines 3-12.
    """

    model: Model
    estimator: Estimator
    bound: Bound
    noise: Noise = field(default_factory=SeededGaussian)
    unit: Unit = field(default=Unit.RECORD, init=False)
    public: tuple[str, ...] = field(default=(RECORD_COUNTS,), init=False)
    batches_per_round: int = field(default=1, init=False)

    @property
    def sampling(self) -> Sampling:
        """The estimator's sampling scheme."""
        return self.estimator.sampling

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

    def run(
        self,
        point: Tensor,
        cohort: Cohort,
        state: State,
        noise_multipliers: Tensor,
        at: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Estimate, bound, add noise; then the penalty.

        With `at`, (clients, k) coordinates that were drawn without looking at the data, only these are completed
        and returned. They have the same law as in the whole vector, whose noise is independent between
        coordinates; noise that nobody would see is not drawn.
        """
        model = BoundedModel(self.model, self.bound, self.noise.precision)
        estimate, state = self.estimator.estimate(model, point, cohort, state)
        penalty = penalty_gradient(self.model, point)
        if at is not None:
            at = at.to(point.device)
            estimate = estimate.gather(1, at)
            penalty = penalty[at] if isinstance(penalty, Tensor) else penalty
        stds = self.noise_stds(cohort.sizes, noise_multipliers)
        estimate, state = with_noise(self.noise, estimate, stds, noise_multipliers, cohort, state)
        return estimate + penalty, state

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

    def with_noise(self, noise: Noise) -> Self:
        """The same work with another kind of noise."""
        return replace(self, noise=noise)

    def evaluations(self, cohort: Cohort) -> float:
        """The estimator's evaluations."""
        return self.estimator.evaluations(cohort)

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """The records that the estimator holds at a time."""
        return self.estimator.records_in_memory(sizes)
