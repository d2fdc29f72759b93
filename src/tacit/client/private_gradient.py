"""The usual work: one bounded gradient estimate in a round, with noise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from dp_accounting import dp_event
from torch import Tensor

from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import Bound
from tacit.client.cohort import Cohort
from tacit.client.estimators import Estimator, Minibatch
from tacit.client.noising import noise_memory, with_noise
from tacit.client.sampling import Sampling
from tacit.client.work import CommonWork
from tacit.federation import Federation
from tacit.models.model import Model, penalty_gradient
from tacit.noise.additive import Noise, SeededGaussian, check_size
from tacit.privacy import events
from tacit.state import State


@dataclass(frozen=True)
class PrivateGradient(CommonWork):
    """A bounded gradient estimate plus Gaussian noise, plus the penalty's gradient, which is public.

    Guarantee: with noise multiplier z, one release is the Gaussian mechanism on a sum to which one record adds
    at most `reach` bounds, with noise of z bounds on every coordinate, divided by the constant b. What follows
    (penalty, shift, compression, server) is post-processing. SoteriaFL (Li et al. 2022), Algorithm 3, lines 3-12.
    """

    model: Model
    """the loss that is trained"""
    estimator: Estimator
    """how the gradient is estimated from bounded gradients"""
    bound: Bound
    """the bound on every record's gradient"""
    noise: Noise = field(default_factory=SeededGaussian)
    """the kind of noise; its amount is derived from the promise"""

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
