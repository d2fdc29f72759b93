"""A gradient on a grid with coins as noise: cpSGD (Agarwal et al. 2018; Fed-SPA (Hu et al. 2021), section 5)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from dp_accounting import dp_event
from torch import Tensor

from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import Bound, ClipEachCoordinate
from tacit.client.cohort import Cohort
from tacit.client.sampling import ONE, Poisson, Sampling
from tacit.client.work import CommonWork
from tacit.compress.rotation import Rotation
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.noise.additive import Noise, check_size
from tacit.noise.binomial import Binomial, Grid
from tacit.noise.randomness import Purpose
from tacit.state import State

_EXCESS_DEVIATIONS = 4.0
"""How many standard deviations a Poisson batch may exceed its mean size before its sum is clipped."""


@dataclass(frozen=True)
class BinomialGradient(CommonWork):
    """The mean of a batch's bounded gradients, rounded at random to a grid, plus the heads of fair coins.

    Guarantee: with noise multiplier z, one message on its own, against a server that sees it, is at least as
    private as the Gaussian mechanism on a sum to which one record adds at most one bound, with noise of z bounds
    on every coordinate. `tacit.noise.binomial` proves it, for all sampling schemes. Unlike in the cpSGD paper,
    rounding costs nothing, the promise does not need a trusted party that adds up messages, and the composition
    of rounds is exact. With a `rotation` the mean is rotated before it is rounded, which keeps all distances.
    """

    model: Model
    """the loss that is trained"""
    sampling: Sampling
    """how batches are drawn; Poisson only"""
    bound: Bound
    """the bound on every record's gradient"""
    noise: Binomial
    """the grid and its coins; their number is derived from the promise"""
    rotation: Rotation | None = None

    def __post_init__(self) -> None:
        if self.model.penalty is not None:
            raise RequestError("a gradient on a grid cannot include a penalty's gradient: leave the penalty out")

    def init(self, point: Tensor, federation: Federation) -> State:
        return {}

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        """Bound the gradients, take their mean, round it to the grid and add coins."""
        sums = BoundedModel(self.model, self.bound, self.noise.precision).sums(
            point, self.sampling.draw(cohort).batch
        )
        means = sums / self.sampling.batch_sizes(cohort.sizes).to(sums)[:, None]
        if self.rotation is not None:
            means = self.rotation.forward(means)
        generators = cohort.generators(Purpose.NOISE)
        return self.noise.on_grids(means, self.grids(cohort.sizes, noise_multipliers), generators), state

    def grids(self, sizes: Tensor, noise_multipliers: Tensor) -> list[Grid]:
        """The grid on which each client encodes its numbers; it may be public."""
        ideal = self._ideal_stds(sizes, noise_multipliers).tolist()
        return [
            self.noise.grid(std, largest) if std else self.noise.silent_grid(largest)
            for std, largest in zip(ideal, self._largest_coordinates(sizes).tolist(), strict=True)
        ]

    def _largest_coordinates(self, sizes: Tensor) -> Tensor:
        """The largest coordinate of a client's mean; anything larger would be clipped and bias the mean.

        It is the bound (or the part of it that remains after a rotation), unless Poisson sampling may draw more
        records than the b by which the sum is divided.
        """
        norm = self.bound.norm(self.model.dim)
        if self.rotation is not None:
            limit = self.rotation.reach(norm)
        else:
            limit = self.bound.limit if isinstance(self.bound, ClipEachCoordinate) else norm
        batch = self.sampling.batch_sizes(sizes)
        if not isinstance(self.sampling, Poisson):
            return torch.full_like(batch, limit)
        return limit * torch.minimum(sizes / batch, 1 + _EXCESS_DEVIATIONS / batch.sqrt())

    def _ideal_stds(self, sizes: Tensor, noise_multipliers: Tensor) -> Tensor:
        """z bound / b: the Gaussian noise that the coins must be worth."""
        return noise_multipliers * self.bound.norm(self.model.dim) / self.sampling.batch_sizes(sizes)

    def noise_stds(self, sizes: Tensor, noise_multipliers: Tensor) -> Tensor:
        """The coins' deviation on each coordinate: slightly above z bound / b, or the least that the bits allow.

        Rounding adds at most half a step.
        """
        stds = [grid.noise_std for grid in self.grids(sizes, noise_multipliers)]
        return torch.tensor(stds, dtype=torch.float64)

    def event(self, size: int, noise_multiplier: float, rounds: int) -> dp_event.DpEvent:
        """The sampling scheme's event, with the cost of the coins' missing tails."""
        self.sampling.check_rounds(torch.tensor([size]), rounds)
        check_size(self.noise, size)
        ideal = self.sampling.event(size, noise_multiplier, rounds, ONE.with_slack(self.noise.slack))
        return self.noise.charged(ideal, self.model.dim, rounds)

    def with_noise(self, noise: Noise) -> Self:
        """The same work with coins from the entropy source of the given noise: seeded or secret."""
        return replace(self, noise=replace(self.noise, secret=noise.secret))
