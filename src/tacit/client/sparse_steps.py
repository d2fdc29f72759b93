"""Noisy steps at home that touch only some coordinates, the same ones for a whole round: papers/002.

The coordinates are drawn without a look at the data and everybody may know them. What is private is the gradient
*there*, so that is what is bounded, record by record, and what gets noise: k numbers instead of d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import numpy as np
import torch
from dp_accounting import dp_event
from torch import Tensor

from tacit.client.active_gradients import active_gradients
from tacit.client.bounds import Bound
from tacit.client.cohort import Cohort
from tacit.client.estimators import State
from tacit.client.sampling import ONE, Sampling
from tacit.client.work import Work
from tacit.errors import count, known_step, positive
from tacit.federation import Batch, Federation
from tacit.models.model import Model, penalty_gradient
from tacit.noise.additive import Noise, SeededGaussian, check_size
from tacit.noise.randomness import Purpose
from tacit.privacy import events
from tacit.privacy.dominate import leaves
from tacit.privacy.side.release import SideRelease
from tacit.privacy.terms import RECORD_COUNTS, Unit
from tacit.schedules import Constant, Schedule


def once(event: dp_event.DpEvent, rounds: int) -> dp_event.DpEvent:
    """Gaussian releases that happen once in a run of so many rounds, as an event that says so.

    Gaussian releases of multipliers z_i are as one of multiplier (sum of z_i^-2)^(-1/2), and a record that counts
    in one release of the whole run is what one pass over the data is, however many rounds there are.
    """
    parts = list(leaves(event))
    gaussian = [(leaf, times) for leaf, times in parts if isinstance(leaf, dp_event.GaussianDpEvent)]
    others = [
        events.repeated(leaf, times) for leaf, times in parts if not isinstance(leaf, dp_event.GaussianDpEvent)
    ]
    precision = sum(times / leaf.noise_multiplier**2 for leaf, times in gaussian)
    return events.composed([events.one_pass(precision**-0.5, rounds), *others])


def after(before: dp_event.DpEvent, training: dp_event.DpEvent, rounds: int) -> dp_event.DpEvent:
    """So many rounds of training, and once what was released before them."""
    return events.composed([once(before, rounds), training])


class Support(Protocol):
    """Which coordinates a client works on in a round."""

    def kept(self, dim: int) -> int:
        """How many of `dim`: k."""
        ...

    def indices(self, generators: Sequence[np.random.Generator], dim: int) -> Tensor:
        """Each client's own, from its generator for messages and nothing else: (clients, k), ascending."""
        ...


@dataclass(frozen=True)
class Everything:
    """All coordinates."""

    def kept(self, dim: int) -> int:
        """All."""
        return dim

    def indices(self, generators: Sequence[np.random.Generator], dim: int) -> Tensor:
        """The same for everyone."""
        return torch.arange(dim).expand(len(generators), dim)


@dataclass(frozen=True)
class SparseLocalSteps:
    """x^{s+1} = x^s - step S(g^s + noise + penalty), s < steps, with S = (d/k) x (all but k coordinates zero).

    papers/002, Algorithm 1, lines 5 to 11. g^s is the mean over a batch of the records' gradients on the k
    coordinates, each bounded there by `bound`. Sent is the way without the factor d/k, which an uplink that keeps
    the same k coordinates (rand-k) puts in: S is linear, and the same in all steps.

    Guarantee, for those who know the coordinates too: every step is a release of its own, the Gaussian mechanism
    on a sum to which one record adds a vector of k numbers and of norm at most `bound.norm(k)`, with noise of
    z `bound.norm(k)` on each of them. Between two data sets that differ in one record, the sum moves by at most
    twice that bound: c sqrt(k) each for coordinates clipped to c. The coordinates not kept are never read.
    """

    model: Model
    sampling: Sampling
    bound: Bound
    support: Support
    steps: int
    step_size: float | None
    """None where it follows from the noise: `tacit.plan` fills it in"""
    schedule: Schedule = field(default_factory=Constant)
    noise: Noise = field(default_factory=SeededGaussian)
    before: SideRelease[float] | None = None
    """what the same records released before the first round, such as the statistic behind the bound"""
    unit: Unit = field(default=Unit.RECORD, init=False)

    def __post_init__(self) -> None:
        count("local_steps", self.steps)
        if self.step_size is not None:
            positive("local_step", self.step_size)

    @property
    def public(self) -> tuple[str, ...]:
        """The number of records, and what the release before assumed."""
        assumed = () if self.before is None else self.before.public
        return tuple(dict.fromkeys([RECORD_COUNTS, *assumed]))

    @property
    def batches_per_round(self) -> int:
        """One for every step."""
        return self.steps

    @property
    def kept(self) -> int:
        """k."""
        return self.support.kept(self.model.dim)

    def init(self, point: Tensor, federation: Federation) -> State:
        """No memory."""
        return {}

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        """All clients of the cohort walk together, each at its own point and on its own coordinates."""
        dim = self.model.dim
        indices = self.support.indices(cohort.generators(Purpose.COMPRESS), dim).to(point.device)
        step = known_step(self.step_size) * self.schedule.factor(cohort.round)
        batch_sizes = self.sampling.batch_sizes(cohort.sizes).to(point.device)[:, None]
        stds = self.noise_stds(cohort.sizes, noise_multipliers)
        noisy = bool((noise_multipliers > 0).any())
        points = point.expand(len(cohort.clients), -1).clone()
        way = torch.zeros(indices.shape, dtype=point.dtype, device=point.device)
        for s in range(self.steps):
            now = replace(cohort, step=s, steps=self.steps)
            sums = self._sums(points, self.sampling.draw(now).batch, indices)
            gradient = sums / batch_sizes.to(sums.dtype)
            if noisy:
                generators = now.generators(Purpose.NOISE)
                gradient = self.noise.add(gradient, stds, noise_multipliers, generators)
            gradient = gradient.to(point.dtype)
            if self.model.penalty is not None:
                gradient = gradient + torch.as_tensor(penalty_gradient(self.model, points)).gather(1, indices)
            way += step * gradient
            points.scatter_add_(1, indices, gradient * (-step * dim / self.kept))
        return torch.zeros_like(points).scatter_(1, indices, way), state

    def _sums(self, points: Tensor, batch: Batch, indices: Tensor) -> Tensor:
        """For every client the sum of its records' bounded gradients on its coordinates: (clients, k)."""
        precision = self.noise.precision
        if batch.features.dtype != precision:
            batch = Batch(batch.features.to(precision), batch.targets, batch.counts)
        gradients = self.model.gradients(points.to(precision), batch)
        everything = self.kept == self.model.dim
        return self.bound.sums(gradients if everything else active_gradients(gradients, indices))

    def noise_stds(self, sizes: Tensor, noise_multipliers: Tensor) -> Tensor:
        """z bound(k) / b, on each of the k coordinates of every local gradient; none on the others."""
        return noise_multipliers * self.bound.norm(self.kept) / self.sampling.batch_sizes(sizes)

    def event(self, size: int, noise_multiplier: float, rounds: int) -> dp_event.DpEvent:
        """The sampling scheme's event, once for every local step; and once what was released before."""
        releases = rounds * self.steps
        self.sampling.check_rounds(torch.tensor([size]), releases)
        check_size(self.noise, size)
        ideal = self.sampling.event(size, noise_multiplier, releases, ONE.with_slack(self.noise.slack))
        training = self.noise.charged(ideal, self.kept, releases)
        return training if self.before is None else after(self.before.event, training, rounds)

    def with_noise(self, noise: Noise) -> Self:
        """The same work with another kind of noise."""
        return replace(self, noise=noise)

    def evaluations(self, cohort: Cohort) -> float:
        """A batch for every step."""
        return self.steps * float(self.sampling.batch_sizes(cohort.sizes).sum())

    def records_in_memory(self, sizes: Tensor) -> Tensor:
        """A batch."""
        return self.sampling.batch_sizes(sizes)


def released_before(work: Work) -> dp_event.DpEvent | None:
    """What every client has released before the first round, whether or not it ever takes part in one."""
    return work.before.event if isinstance(work, SparseLocalSteps) and work.before is not None else None


def without_before(work: Work) -> Work:
    """The rounds alone."""
    return replace(work, before=None) if isinstance(work, SparseLocalSteps) else work
