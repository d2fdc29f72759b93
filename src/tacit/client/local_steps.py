"""Several noisy steps at home before anything is sent: Local SGD (papers/001, appendix I)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from dp_accounting import dp_event
from torch import Tensor

from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import Bound
from tacit.client.cohort import Cohort
from tacit.client.estimators import State
from tacit.client.sampling import ONE, Sampling
from tacit.errors import count, known_step, positive
from tacit.federation import Federation
from tacit.models.model import Model, penalty_gradient
from tacit.noise.additive import Noise, SeededGaussian, check_size
from tacit.noise.randomness import Purpose
from tacit.privacy.terms import RECORD_COUNTS, Unit


@dataclass(frozen=True)
class NoisyLocalSteps:
    """x_i^{k+1} = x_i^k - step (bounded minibatch gradient + noise + penalty), then send x - x_i^K.

    Guarantee: every local step is a release of its own, although only their sum leaves the client, so R rounds
    of K steps are R K releases. What is sent is a pseudo-gradient: a server that subtracts the mean of all
    messages averages the clients' models.
    """

    model: Model
    sampling: Sampling
    bound: Bound
    steps: int
    step_size: float | None
    """None where it follows from the noise: `tacit.plan` fills it in"""
    noise: Noise = field(default_factory=SeededGaussian)
    unit: Unit = field(default=Unit.RECORD, init=False)
    public: tuple[str, ...] = field(default=(RECORD_COUNTS,), init=False)

    def __post_init__(self) -> None:
        count("local_steps", self.steps)
        if self.step_size is not None:
            positive("local_step", self.step_size)

    @property
    def batches_per_round(self) -> int:
        """One for every step."""
        return self.steps

    def init(self, point: Tensor, federation: Federation) -> State:
        """No memory."""
        return {}

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        """All clients of the cohort walk together, each at its own point."""
        model = BoundedModel(self.model, self.bound, self.noise.precision)
        batch_sizes = self.sampling.batch_sizes(cohort.sizes).to(point.device)[:, None]
        stds = self.noise_stds(cohort.sizes, noise_multipliers)
        noisy = bool((noise_multipliers > 0).any())
        points = point.expand(len(cohort.clients), -1).clone()
        step = known_step(self.step_size)
        for k in range(self.steps):
            now = replace(cohort, step=k, steps=self.steps)
            sums = model.sums(points, self.sampling.draw(now).batch)
            gradient = sums / batch_sizes.to(sums.dtype)
            if noisy:
                generators = now.generators(Purpose.NOISE)
                gradient = self.noise.add(gradient, stds, noise_multipliers, generators)
            points = points - step * (gradient.to(point.dtype) + penalty_gradient(self.model, points))
        return point - points, state

    def noise_stds(self, sizes: Tensor, noise_multipliers: Tensor) -> Tensor:
        """z bound / b, on every coordinate of every local gradient."""
        return noise_multipliers * self.bound.norm(self.model.dim) / self.sampling.batch_sizes(sizes)

    def event(self, size: int, noise_multiplier: float, rounds: int) -> dp_event.DpEvent:
        """The sampling scheme's event, once for every local step."""
        self.sampling.check_rounds(torch.tensor([size]), rounds * self.steps)
        check_size(self.noise, size)
        releases = rounds * self.steps
        ideal = self.sampling.event(size, noise_multiplier, releases, ONE.with_slack(self.noise.slack))
        return self.noise.charged(ideal, self.model.dim, releases)

    def with_noise(self, noise: Noise) -> Self:
        """The same work with another kind of noise."""
        return replace(self, noise=noise)

    def evaluations(self, cohort: Cohort) -> float:
        """A batch for every step."""
        return self.steps * float(self.sampling.batch_sizes(cohort.sizes).sum())

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """A batch."""
        return self.sampling.batch_sizes(sizes)
