"""Steps that nobody has to tune: how far to go follows from the messages and from their noise, which is known.

Everything here is post-processing of private messages and of public numbers, so it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from tacit.errors import RequestError, count, positive
from tacit.server.projection import Everywhere, Projection
from tacit.server.update import Descent, ServerUpdate
from tacit.state import State

_LEAST_SIGNAL = 0.01
"""The least share of the noise's energy that counts as signal: a sum of noisy squares may fall below zero."""

_MEMORY = 0.3
"""A mean of directions reaches back over about the last third of the rounds so far."""

_GREED, _LEAST_SHARE = 2.0, 0.1
"""Curvature is a guess from above: twice the step that it allows, and never less than a tenth of the plan."""

_AVERAGE_POWER = 3
"""Round t weighs (t + 1)^3 in the average: half of the weight is on the last sixth of the rounds."""


def average_in(average: Tensor, point: Tensor, round: int) -> Tensor:
    """The average of the points of rounds 0, 1, ... with the newest taken in; round t weighs about (t + 1)^3."""
    return torch.lerp(average, point.double(), (_AVERAGE_POWER + 1) / (round + 1 + _AVERAGE_POWER))


@dataclass(frozen=True)
class Prospect:
    """What is known of a run's directions before the first of them: public numbers alone.

    Parameters
    ----------
    dim : of a direction, d.
    rounds : of the whole run, T.
    length : the longest that a direction can be before noise.
    noise_std : of the noise on every coordinate of a direction.
    distance : a public guess at how far a good model is from the start, D.
    score_range : how far apart the scores of a good model lie, in units of a usual residual. The curvature of the
        loss, for directions of length 1, is about score_range / distance.
    """

    dim: int
    rounds: int
    length: float
    noise_std: float
    distance: float
    score_range: float

    def __post_init__(self) -> None:
        count("dim", self.dim)
        count("rounds", self.rounds)
        positive("length of a direction", self.length)
        positive("distance", self.distance)
        positive("score_range", self.score_range)
        if not 0 <= self.noise_std < math.inf:
            raise RequestError(f"noise_std must be a finite number of at least 0, not {self.noise_std!r}")

    @property
    def unit_noise(self) -> float:
        """The noise on a coordinate of the mean of all directions, for directions of length 1: s."""
        return self.noise_std / (self.length * math.sqrt(self.rounds))

    @property
    def curvature(self) -> float:
        """About that of the loss along the directions."""
        return self.length * self.score_range / self.distance

    def travel(self, distance: float | None = None) -> float:
        """How far to go in all: the sum of all steps, times the length of a direction.

        A travel of S leaves about D^2/(2S) of the loss's gap, and noise that costs about c (s S)^2 / 2 with
        curvature c = range/D. The best S is D / (2 s^2 range)^(1/3).
        """
        if self.unit_noise == 0:
            return math.inf
        distance = self.distance if distance is None else distance
        return distance / math.cbrt(2 * self.unit_noise**2 * self.score_range)

    def excess(self) -> float:
        """About how much loss is left after the best travel, noise included; in units of a usual residual."""
        travel, noise = self.travel(), self.unit_noise
        if math.isinf(travel):
            return 0.0
        curvature = self.score_range / self.distance
        left = self.distance**2 / (2 * travel)
        lost = left + curvature * (noise * travel) ** 2 / 2
        return lost * self.score_range / self.distance


@dataclass(frozen=True)
class SelfTuned:
    """x^{t+1} = x^t - step_t v^t with a step that follows from the directions v so far; the model is an average.

    Three lengths, of which the shortest is taken; sigma is the noise on a coordinate, d the dimension:

    - distance over gradients, r / sqrt(G) (DoG; Ivgi, Hinder & Carmon 2023), with what noise adds to both taken
      away: G is the sum of ||v||^2 - d sigma^2, and r^2 the largest ||x - x^0||^2 - d sigma^2 (sum of step^2);
    - the travel S that suits the noise (`Prospect.travel`), spread over all T rounds;
    - what the directions still have to say: a step h gains h g^2 and noise costs h^2 sigma^2 c / 2 with curvature
      c, so steps beyond g^2 / (sigma^2 c) lose. g is the length of the mean of recent directions, and no less
      than what noise would hide.

    Without a `prospect` it cannot run: `tacit.plan` fills it in, once the noise is known.
    """

    projection: Projection = field(default_factory=Everywhere)
    prospect: Prospect | None = None

    @property
    def is_open(self) -> bool:
        """Whether steps wait for what is known of the directions."""
        return self.prospect is None

    def settled(self, prospect: Prospect) -> Self:
        """The same with what is known of the directions."""
        return replace(self, prospect=prospect)

    def init(self, point: Tensor) -> State:
        """The point, where it started, averages of points and directions, and what steps follow from."""
        self.projection.check_start(point)
        known = self._known
        sums = {name: torch.zeros((), dtype=torch.float64) for name in ("signal", "wander", "mean_share")}
        nearest = torch.tensor((known.distance / known.score_range) ** 2, dtype=torch.float64)
        return {
            "point": point,
            "start": point,
            "average": point.double(),
            "mean_direction": torch.zeros_like(point, dtype=torch.float64),
            "distance_squared": nearest,
            **sums,
        }

    def broadcast(self, state: State, round: int) -> Tensor:
        """The current point."""
        return state["point"]

    def step(self, state: State, direction: Tensor, round: int) -> State:
        """A step as long as the directions so far suggest and the noise allows."""
        known = self._known
        variance = known.noise_std**2
        noise = known.dim * variance
        point, exact = state["point"], direction.double()
        gone = float((point - state["start"]).double().square().sum()) - noise * float(state["wander"])
        distance_squared = max(float(state["distance_squared"]), gone)
        signal = float(state["signal"]) + float(exact.square().sum()) - noise
        newest = 1 / (1 + _MEMORY * round)
        mean = torch.lerp(state["mean_direction"], exact, newest)
        mean_share = (1 - newest) ** 2 * float(state["mean_share"]) + newest**2
        left = max(0.0, float(mean.square().sum()) - noise * mean_share)
        hidden = 2 * math.sqrt(2 * known.dim) * variance * mean_share

        distance = math.sqrt(distance_squared)
        least = max(_LEAST_SIGNAL * math.sqrt(round + 1) * noise, 1e-12 * known.length**2)
        spread = known.travel(max(distance, known.distance)) / (known.rounds * known.length)
        step = min(distance / math.sqrt(max(signal, least)), spread)
        if variance > 0:
            step = min(step, max(_GREED * (left + hidden) / (variance * known.curvature), _LEAST_SHARE * spread))

        moved = self.projection.nearest(point - step * direction)
        numbers = {
            "distance_squared": distance_squared,
            "signal": signal,
            "wander": float(state["wander"]) + step**2,
            "mean_share": mean_share,
        }
        return {
            "point": moved,
            "start": state["start"],
            "average": average_in(state["average"], moved, round),
            "mean_direction": mean,
            **{name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()},
        }

    def output(self, state: State) -> Tensor:
        """The average of all points, the later the more."""
        return state["average"].to(state["point"].dtype)

    @property
    def _known(self) -> Prospect:
        if self.prospect is None:
            raise RequestError("steps follow from the noise, which is not known yet: make a plan (tacit.plan)")
        return self.prospect


def descent(step: float | None) -> ServerUpdate:
    """Steps of a given length, or such as follow from the messages and their noise."""
    return SelfTuned() if step is None else Descent(step)
