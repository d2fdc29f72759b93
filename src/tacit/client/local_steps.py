"""Several noisy local steps before anything is sent, on all coordinates or on some of them.

Local SGD (ISRL-DP, Lowy & Razaviyayn 2023, appendix I), DP-Fed and Fed-SPA (Hu et al. 2021, Algorithm 1). If a
client works on some coordinates only, these are drawn without looking at the data and may be public. What is
private is the gradient *there*: it is bounded record by record and gets noise, k numbers instead of d.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from dp_accounting import dp_event
from torch import Tensor

from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import Bound
from tacit.client.cohort import Cohort
from tacit.client.local_batches import local_batches
from tacit.client.noising import noise_memory, with_noise
from tacit.client.sampling import ONE, Sampling
from tacit.client.work import CommonWork
from tacit.errors import count, known_step, positive
from tacit.federation import Federation
from tacit.models.model import Model, penalty_gradient
from tacit.noise.additive import Noise, SeededGaussian, check_size
from tacit.noise.randomness import Purpose
from tacit.privacy import events
from tacit.privacy.accountant.dominate import leaves
from tacit.privacy.promises.terms import RECORD_COUNTS
from tacit.schedules import Constant, Schedule
from tacit.side.release import SideRelease
from tacit.state import State


class Support(Protocol):
    """Which coordinates a client works on in a round."""

    def kept(self, dim: int) -> int:
        """How many of `dim` coordinates are kept: k."""
        ...

    def indices(self, generators: Sequence[np.random.Generator], dim: int) -> Tensor:
        """Each client's coordinates, drawn only from its generator for messages: (clients, k), ascending."""
        ...


@dataclass(frozen=True)
class Everything:
    """All coordinates."""

    def kept(self, dim: int) -> int:
        return dim

    def indices(self, generators: Sequence[np.random.Generator], dim: int) -> Tensor:
        return torch.arange(dim).expand(len(generators), dim)


@dataclass(frozen=True)
class NoisyLocalSteps(CommonWork):
    """x^{s+1} = x^s - step S(g^s + noise + penalty), s < steps, with S = (d/k) x (all but k coordinates zero).

    g^s is the mean over a batch of the records' gradients on the k coordinates of `support`, each bounded there
    by `bound`. The message is the sum of the steps without the factor d/k. An uplink that keeps the same k
    coordinates (rand-k) adds this factor: S is linear, and the same in all steps. With all coordinates, S is the
    identity and the message is x - x^K, a pseudo-gradient: a server that subtracts the mean of all messages
    averages the clients' models.

    Guarantee, also against someone who knows the coordinates: every step counts as a release, although only the
    sum leaves the client, so R rounds of K steps are R K releases. Each is the Gaussian mechanism on a sum
    to which one record adds a vector of k numbers and of norm at most `bound.norm(k)`, with noise of z
    `bound.norm(k)` on each of them. Between two data sets that differ in one record, the sum moves by at most
    twice that bound: c sqrt(k) each for coordinates clipped to c. The coordinates not kept are never read.

    Args:
        model: the loss that is trained.
        sampling: how each step draws its batch.
        bound: the bound on one record's gradient on the kept coordinates.
        steps: local steps in a round, at least 1.
        step_size: length of a local step, multiplied by `schedule.factor(round)`.
        support: which coordinates a client works on in a round; all of them by default.
        schedule: how the step changes from round to round.
        noise: the kind of noise; its amount is derived from the promise.
        before: what the same records released before the first round, such as the statistic behind the bound.
    """

    model: Model
    sampling: Sampling
    bound: Bound
    steps: int
    step_size: float | None
    """None if it is derived from the noise; `tacit.plan` then fills it in"""
    support: Support = field(default_factory=Everything)
    schedule: Schedule = field(default_factory=Constant)
    noise: Noise = field(default_factory=SeededGaussian)
    before: SideRelease[float] | None = None

    def __post_init__(self) -> None:
        count("local_steps", self.steps)
        if self.step_size is not None:
            positive("local_step", self.step_size)

    @property
    def public(self) -> tuple[str, ...]:
        """The number of records, and what the earlier release treats as public."""
        assumed = () if self.before is None else self.before.public
        return tuple(dict.fromkeys([RECORD_COUNTS, *assumed]))

    @property
    def batches_per_round(self) -> int:
        return self.steps

    @property
    def pace(self) -> tuple[float, float]:
        """The factors on gradients and on their noise in a message, which is a sum of noisy steps."""
        step = known_step(self.step_size)
        return step * self.steps, step * math.sqrt(self.steps)

    @property
    def bounded(self) -> int:
        """The number of coordinates that each client works on, k."""
        return self.support.kept(self.model.dim)

    def init(self, point: Tensor, federation: Federation) -> State:
        """Create the noise's memory."""
        return noise_memory(self.noise, federation.clients, self.bounded)

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        """All clients make their steps together, each at its own point and on its own coordinates."""
        model = BoundedModel(self.model, self.bound, self.noise.precision)
        dim, indices = self.model.dim, self._indices(cohort, point)
        step = known_step(self.step_size) * self.schedule.factor(cohort.round)
        batch_sizes = self.sampling.batch_sizes(cohort.sizes).to(point.device, self.noise.precision)[:, None]
        stds = self.noise_stds(cohort.sizes, noise_multipliers)
        correction = self.correction(cohort)
        way = point.new_zeros(len(cohort.clients), self.bounded)
        for s, batch in enumerate(local_batches(self.sampling, cohort, self.steps)):
            now = replace(cohort, step=s, steps=self.steps)
            points = point - _spread(way, indices, dim, dim / self.bounded)
            sums = model.sums(points, batch, at=indices)
            gradient = sums / batch_sizes
            gradient, state = with_noise(self.noise, gradient, stds, noise_multipliers, now, state)
            gradient, penalty = gradient.to(point.dtype), penalty_gradient(self.model, points)
            if isinstance(penalty, Tensor):
                gradient = gradient + (penalty if indices is None else penalty.gather(1, indices))
            way = way + step * (gradient if correction is None else gradient + correction)
        return _spread(way, indices, dim), state

    def correction(self, cohort: Cohort) -> Tensor | None:
        """What each client adds to its local gradients, (clients, k); None for nothing."""
        return None

    def _indices(self, cohort: Cohort, point: Tensor) -> Tensor | None:
        """Each client's coordinates, (clients, k), or None for all coordinates."""
        if self.bounded == self.model.dim:
            return None
        return self.support.indices(cohort.generators(Purpose.COMPRESS), self.model.dim).to(point.device)

    def noise_stds(self, sizes: Tensor, noise_multipliers: Tensor) -> Tensor:
        """z bound(k) / b on each of the k coordinates of every local gradient; no noise on the others."""
        return noise_multipliers * self.bound.norm(self.bounded) / self.sampling.batch_sizes(sizes)

    def event(self, size: int, noise_multiplier: float, rounds: int) -> dp_event.DpEvent:
        """The sampling scheme's event for every local step, composed with what was released before."""
        releases = rounds * self.steps
        self.sampling.check_rounds(torch.tensor([size]), releases)
        check_size(self.noise, size)
        ideal = self.sampling.event(size, noise_multiplier, releases, ONE.with_slack(self.noise.slack))
        training = self.noise.charged(ideal, self.bounded, releases)
        return training if self.before is None else after(self.before.event, training, rounds)


def _spread(rows: Tensor, indices: Tensor | None, dim: int, factor: float = 1.0) -> Tensor:
    """Rows of k numbers, times a factor, as rows of `dim` with zeros elsewhere; unchanged without indices."""
    return rows if indices is None else rows.new_zeros(len(rows), dim).scatter_(1, indices, factor * rows)


def as_one_pass(event: dp_event.DpEvent, rounds: int) -> dp_event.DpEvent:
    """Gaussian releases that happen once in a run of `rounds` rounds, as a one-pass event.

    Gaussian releases of multipliers z_i equal one of multiplier (sum of z_i^-2)^(-1/2). A record that counts in
    one release of the whole run costs the same as in one pass over the data, however many rounds there are.
    """
    parts = list(leaves(event))
    gaussian = [(leaf, times) for leaf, times in parts if isinstance(leaf, dp_event.GaussianDpEvent)]
    others = [
        events.repeated(leaf, times) for leaf, times in parts if not isinstance(leaf, dp_event.GaussianDpEvent)
    ]
    precision = sum(times / leaf.noise_multiplier**2 for leaf, times in gaussian)
    return events.composed([events.one_pass(precision**-0.5, rounds), *others])


def after(before: dp_event.DpEvent, training: dp_event.DpEvent, rounds: int) -> dp_event.DpEvent:
    """The event of `rounds` rounds of training, composed once with what was released before them."""
    return events.composed([as_one_pass(before, rounds), training])
