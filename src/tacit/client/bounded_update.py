"""Several local steps, then one bound on their sum: FedAvg with whole clients as the unit of privacy.

DP-NormFedAvg (Das et al. 2022), Algorithm 1, lines 5 to 12. The single steps need no bound and no noise, because
only their sum is seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from dp_accounting import dp_event
from torch import Tensor

from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import Bound, Unbounded
from tacit.client.cohort import Cohort
from tacit.client.local_batches import local_batches
from tacit.client.noising import noise_memory, with_noise
from tacit.client.sampling import Full, Sampling
from tacit.client.span import RecordBlocks, SpanUpdates, span_updates
from tacit.client.work import CommonWork
from tacit.errors import count, known_step, positive
from tacit.federation import Federation
from tacit.models.model import Model, penalty_gradient
from tacit.models.shares import LayeredGradients
from tacit.noise.additive import Noise, SeededGaussian
from tacit.privacy import events
from tacit.privacy.promises.terms import RECORD_COUNTS, Unit
from tacit.schedules import Constant, Schedule
from tacit.state import State


@dataclass(frozen=True)
class BoundedUpdate(CommonWork):
    """u_i = (x - x_i^E) / step after E local steps from x, bounded as one vector, plus noise.

    Guarantee: a whole client, whatever its data are, adds a vector of norm at most the bound. With noise
    multiplier z, one message on its own is the Gaussian mechanism with z bounds of noise.
    `tacit.algorithms.trust` describes the privacy of a sum of messages. An update that is zero or not finite is
    sent as pure noise.
    """

    model: Model
    """the loss that is trained"""
    sampling: Sampling
    """how a local step draws its batch"""
    bound: Bound
    """the bound on the whole update"""
    steps: int
    """the number of local steps, E"""
    step_size: float | None
    """None if it is derived from the noise; `tacit.plan` then fills it in"""
    schedule: Schedule = field(default_factory=Constant)
    """how the step changes from round to round"""
    noise: Noise = field(default_factory=SeededGaussian)
    """the kind of noise; its amount is derived from the promise"""
    public_sizes: bool = False
    """whether the promise treats every client's number of records as public; otherwise it is protected, too"""

    def __post_init__(self) -> None:
        count("local_steps", self.steps)
        if self.step_size is not None:
            positive("local_step", self.step_size)

    @property
    def unit(self) -> Unit:
        return Unit.CLIENT

    @property
    def public(self) -> tuple[str, ...]:
        """The number of clients, and their numbers of records only if the promise treats them as public."""
        return ("the number of clients", *([RECORD_COUNTS] if self.public_sizes else []))

    @property
    def batches_per_round(self) -> int:
        return self.steps

    @property
    def adds_up(self) -> bool:
        """Yes, unless the noise of one release depends on that of another."""
        return not self.noise.init(1, 1)

    def init(self, point: Tensor, federation: Federation) -> State:
        """Create the noise's memory."""
        return noise_memory(self.noise, federation.clients, sum(self.parts.values()))

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        """Make the local steps, bound the update, add noise."""
        message = self.message(point, cohort)
        each = torch.ones(len(message), dtype=torch.int64)
        bounded = self.bound.sums(LayeredGradients.written(message.to(self.noise.precision), each))
        stds = self.noise_stds(cohort.sizes, noise_multipliers)
        bounded, state = with_noise(self.noise, bounded, stds, noise_multipliers, cohort, state)
        return bounded, state

    def message(self, point: Tensor, cohort: Cohort) -> Tensor:
        """What is bounded and sent: all parts of a client's message, one after the other."""
        return self.updates(point, cohort)

    def updates(self, point: Tensor, cohort: Cohort) -> Tensor:
        """Each client's update, in units of the local step: (clients, dim), neither bounded nor private."""
        step = self._step(cohort)
        fast = self._in_span(point, cohort, step)
        return self._walk(point, cohort, step) if fast is None else fast.rows(0, len(cohort.clients))

    def _in_span(self, point: Tensor, cohort: Cohort, step: float) -> SpanUpdates | None:
        if not isinstance(self.sampling, Full):
            return None
        grams = None if cohort.grams is None else partial(cohort.grams.of, cohort.clients)
        records = RecordBlocks(cohort.federation, cohort.clients)
        return span_updates(self.model, point, records, self.steps, step, grams)

    def summed(self, point: Tensor, cohort: Cohort) -> Tensor | None:
        """The sum of all clients' bounded updates, if it costs less than the updates."""
        if type(self).message is not BoundedUpdate.message or cohort.weights is not None:
            return None
        fast = self._in_span(point, cohort, self._step(cohort))
        return None if fast is None else self.bound.sums(fast)[0]

    def _step(self, cohort: Cohort) -> float:
        return known_step(self.step_size) * self.schedule.factor(cohort.round)

    def _walk(self, point: Tensor, cohort: Cohort, step: float) -> Tensor:
        model = BoundedModel(self.model, Unbounded())
        batch_sizes = self.sampling.batch_sizes(cohort.sizes).to(point.device, point.dtype)[:, None]
        points = point.expand(len(cohort.clients), -1).clone()
        for batch in local_batches(self.sampling, cohort, self.steps):
            gradient = model.sums(points, batch) / batch_sizes
            points -= step * (gradient + penalty_gradient(self.model, points))
        return (point - points) / step

    def noise_stds(self, sizes: Tensor, noise_multipliers: Tensor) -> Tensor:
        """The noise on each coordinate, z times the bound."""
        return noise_multipliers * self.bound.norm(self.model.dim)

    def event(self, size: int, noise_multiplier: float, rounds: int) -> dp_event.DpEvent:
        """The Gaussian mechanism on the client's whole message."""
        ideal = events.repeated(events.gaussian(noise_multiplier / (1 + self.noise.slack)), rounds)
        return self.noise.charged(ideal, sum(self.parts.values()), rounds)
