"""What a client does in a round, from the point to a private vector."""

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
    """What a client does; its output is already private.

    The noise is not a setting of the work: it is handed in by whoever derived it from a guarantee, as one
    noise multiplier a client, and `event` says what that noise is worth.
    """

    @property
    def model(self) -> Model:
        """The loss that is trained."""
        ...

    @property
    def bound(self) -> Bound:
        """What makes one record's influence finite."""
        ...

    @property
    def sampling(self) -> Sampling:
        """How records are drawn."""
        ...

    @property
    def noise(self) -> Noise:
        """What kind of noise is added."""
        ...

    @property
    def unit(self) -> Unit:
        """Whose influence the bound makes finite: a record's, or that of a whole client."""
        ...

    @property
    def public(self) -> tuple[str, ...]:
        """What the guarantee takes as known to everybody."""
        ...

    @property
    def batches_per_round(self) -> int:
        """How many batches a client draws in a round."""
        ...

    def with_noise(self, noise: Noise) -> Self:
        """The same work with another kind of noise."""
        ...

    def init(self, point: Tensor, federation: Federation) -> State:
        """The clients' memory before the first round."""
        ...

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        """One round of every client of the cohort: (clients, dim), private."""
        ...

    def noise_stds(self, sizes: Tensor, noise_multipliers: Tensor) -> Tensor:
        """The standard deviation of the noise on every coordinate of what a client releases."""
        ...

    def event(self, size: int, noise_multiplier: float, rounds: int) -> dp_event.DpEvent:
        """What a client of this size releases over all rounds, as an accountant sees it."""
        ...

    def evaluations(self, cohort: Cohort) -> float:
        """How many record gradients the cohort computes in this round, in expectation over its batches."""
        ...

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """About how many records of clients of these sizes are gathered at a time."""
        ...


def sizes_are_public(work: Work) -> bool:
    """Whether a promise of this work takes the clients' numbers of records as known, so that they may be shown.

    If not, nothing that leaves a client or is published may depend on them, except through its noisy messages.
    """
    return RECORD_COUNTS in work.public


@dataclass(frozen=True)
class PrivateGradient:
    """A bounded gradient estimate plus Gaussian noise, plus the penalty's gradient, which is public.

    Guarantee: with noise multiplier z, one release is the Gaussian mechanism on a sum to which one record adds
    at most `reach` bounds, with noise of z bounds on every coordinate, divided by the constant b. What follows
    (penalty, shift, compression, server) is post-processing. SoteriaFL, Algorithm 3, lines 3 to 12.
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
        """The estimator's."""
        return self.estimator.sampling

    def init(self, point: Tensor, federation: Federation) -> State:
        """The estimator's memory, and the noise's."""
        own = self.estimator.init(BoundedModel(self.model, self.bound, self.noise.precision), point, federation)
        return {**own, **noise_memory(self.noise, federation.clients, self.model.dim)}

    @property
    def by_coordinate(self) -> bool:
        """Whether coordinates may be computed without the others: noise that remembers needs all of them."""
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

        With `at`, (clients, k) coordinates that were drawn without a look at the data, only these are computed to
        the end and returned. They have the law that they have in the whole vector, whose noise is independent
        from coordinate to coordinate, and noise that nobody will ever see is not drawn.
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
        return estimate.to(point.dtype) + penalty, state

    def noise_stds(self, sizes: Tensor, noise_multipliers: Tensor) -> Tensor:
        """z bound / b."""
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
        """The estimator's."""
        return self.estimator.evaluations(cohort)

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """The estimator's."""
        return self.estimator.records_in_memory(sizes)
