"""Step sizes that need no tuning: they are derived from the messages and from the known noise on them.

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
"""The least signal energy assumed, as a share of the noise's: a debiased sum of squares may be negative."""

_MEMORY = 0.3
"""The mean of recent directions covers about the last third of the rounds so far."""

_GREED, _LEAST_SHARE = 10.0, 0.1
"""The curvature is an upper estimate: steps may be ten times what it allows, and at least a tenth of the plan."""

_START = 0.3
"""The first steps of distance over gradients, as a share of the distance of a good model."""

_FAR = 5.0
"""The longest step for a direction of full length, in distances of a good model. Most directions are shorter."""

_REACH, _POWER = 0.7, 1.2
"""How far to travel with noise s: reach / s^power, in units in which scores change by about 1."""

_MOMENTUM, _LONG = 0.8, 0.15
"""Along stiff coordinates, steps beyond this share of the distance jump to and fro; momentum cancels that."""

_AVERAGE_POWER = 3
"""Round t has weight (t + 1)^3 in the average: half of the weight is on the last sixth of the rounds."""


def average_in(average: Tensor, point: Tensor, round: int) -> Tensor:
    """The average of all points so far, including the newest; round t has weight about (t + 1)^3."""
    return torch.lerp(average, point.double(), (_AVERAGE_POWER + 1) / (round + 1 + _AVERAGE_POWER))


@dataclass(frozen=True)
class Prospect:
    """What is known about a run's directions before the first round; public numbers only.

    Parameters
    ----------
    dim : the dimension of a direction, d.
    rounds : the number of rounds of the whole run, T.
    length : the largest length of a direction before noise.
    noise_std : the standard deviation of the noise on every coordinate of a direction.
    distance : a public guess at the distance of a good model from the start, D.
    score_range : the range of the scores of a good model, in units of a typical residual. The curvature of the
        loss, for directions of length 1, is about score_range / distance.
    open_ended : whether a good model may be much farther away, because the size of targets is not known.
    lagging : whether directions are means over recent rounds as they come, which long steps would overshoot.
    """

    dim: int
    rounds: int
    length: float
    noise_std: float
    distance: float
    score_range: float
    open_ended: bool = False
    lagging: bool = False

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
        """s: the noise on a coordinate of the mean of all directions, for directions of length 1."""
        return self.noise_std / (self.length * math.sqrt(self.rounds))

    @property
    def signal_to_noise(self) -> float:
        """How many times its noise the mean of all directions can be."""
        return 1 / (self.unit_noise * math.sqrt(self.dim)) if self.unit_noise else math.inf

    @property
    def curvature(self) -> float:
        """The approximate curvature of the loss along the directions."""
        return self.length * self.score_range / self.distance

    def travel(self) -> float:
        """How far to travel in total: the sum of all steps, times the length of a direction.

        A travel of S moves the scores of a record by noise of about s S range/D. Further travel refines a model,
        but ever more slowly. The best compromise, found by simulation, is S = 0.7 (D/range) / s^1.2. Single
        steps stay below 5 D, and below the length that needs momentum if directions come with their own.
        """
        farthest = (_LONG if self.lagging else _FAR) * self.rounds * self.distance
        if self.unit_noise == 0:
            return farthest
        return min(farthest, _REACH * self.distance / (self.score_range * math.pow(self.unit_noise, _POWER)))

    @property
    def momentum(self) -> float:
        """The share of the last movement in the next one: none where steps are short, since it delays them."""
        return _MOMENTUM if self.travel() > _LONG * self.rounds * self.distance else 0.0

    def excess(self) -> float:
        """The approximate excess loss that noise causes, in units of a typical residual.

        A travel of S leaves a gap of about D^2/(2S), and noise costs about c (s S)^2 / 2 with curvature
        c = range/D. Their least sum, times range/D, is 3/4 range (2 s^2 range)^(1/3).
        """
        return 0.75 * self.score_range * math.cbrt(2 * self.unit_noise**2 * self.score_range)


@dataclass(frozen=True)
class SelfTuned:
    """x^{t+1} = x^t - step_t m^t with a step derived from the directions v so far; the model is an average.

    m^t = a m^{t-1} + (1-a) v^t is the movement, with a = 0.8 if steps are long and a = 0 otherwise. The step is
    the shortest of three lengths; sigma is the noise on a coordinate, d the dimension:

    - distance over gradients, r / sqrt(G) (DoG; Ivgi, Hinder & Carmon 2023), with the noise's contribution to
      both subtracted: G is the sum of ||m||^2 less the energy of its noise, and r^2 the largest
      ||x - x^0||^2 - d sigma^2 (sum of step^2);
    - the travel S that suits the noise (`Prospect.travel`), spread over all T rounds;
    - the signal left in the directions: a step h gains h g^2 and noise costs h^2 sigma^2 c / 2 with curvature c,
      so steps beyond a few g^2 / (sigma^2 c) lose. g is the length of the mean of recent directions, but at least
      what noise would hide.

    It cannot run without a `prospect`, which `tacit.plan` fills in once the noise is known.
    """

    projection: Projection = field(default_factory=Everywhere)
    """the set that points are projected onto"""
    prospect: Prospect | None = None

    @property
    def is_open(self) -> bool:
        """Whether the prospect is still missing."""
        return self.prospect is None

    def settled(self, prospect: Prospect) -> Self:
        """The same update with this prospect."""
        return replace(self, prospect=prospect)

    def init(self, point: Tensor) -> State:
        """The point, its start, averages of points and directions, and the quantities that determine steps."""
        self.projection.check_start(point)
        known = self._known
        sums = {name: torch.zeros((), dtype=torch.float64) for name in ("signal", "wander", "mean_share")}
        nearest = torch.tensor((_START * known.distance) ** 2, dtype=torch.float64)
        return {
            "point": point,
            "start": point,
            "average": point.double(),
            "mean_direction": torch.zeros_like(point, dtype=torch.float64),
            "movement": torch.zeros_like(point),
            "distance_squared": nearest,
            **sums,
        }

    def broadcast(self, state: State, round: int) -> State:
        return {"point": state["point"]}

    def step(self, state: State, direction: Tensor, round: int) -> State:
        """A step as long as the directions so far suggest and the noise allows."""
        known = self._known
        variance = known.noise_std**2
        noise = known.dim * variance
        point, exact = state["point"], direction.double()
        keep = known.momentum
        movement = torch.lerp(direction, state["movement"], keep)
        # The share of a direction's noise variance that is left in the movement.
        share = (1 - keep) / (1 + keep) * (1 - keep ** (2 * (round + 1)))
        gone = float((point - state["start"]).double().square().sum()) - noise * float(state["wander"])
        distance_squared = max(float(state["distance_squared"]), gone)
        signal = float(state["signal"]) + float(movement.double().square().sum()) - noise * share
        newest = 1 / (1 + _MEMORY * round)
        mean = torch.lerp(state["mean_direction"], exact, newest)
        mean_share = (1 - newest) ** 2 * float(state["mean_share"]) + newest**2
        left = max(0.0, float(mean.square().sum()) - noise * mean_share)
        hidden = 2 * math.sqrt(2 * known.dim) * variance * mean_share

        distance = math.sqrt(distance_squared)
        # Directions that lead beyond the expected distance say that everything is larger: the travel, and the
        # range over which the loss bends.
        larger = max(1.0, distance / known.distance) if known.open_ended else 1.0
        least = max(_LEAST_SIGNAL * math.sqrt(round + 1) * noise * share, 1e-12 * known.length**2)
        spread = larger * known.travel() / (known.rounds * known.length)
        step = min(distance / math.sqrt(max(signal, least)), spread)
        if variance > 0:
            greedy = _GREED * (left + hidden) * larger / (variance * known.curvature)
            step = min(step, max(greedy, _LEAST_SHARE * spread))

        moved = self.projection.nearest(point - step * movement)
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
            "movement": movement,
        }

    def output(self, state: State) -> Tensor:
        """The average of all points, with more weight on later ones."""
        return state["average"].to(state["point"].dtype)

    @property
    def _known(self) -> Prospect:
        if self.prospect is None:
            raise RequestError("steps follow from the noise, which is not known yet: make a plan (tacit.plan)")
        return self.prospect


def descent(step: float | None) -> ServerUpdate:
    """Descent with a given step, or, for None, with steps derived from the messages and their noise."""
    return SelfTuned() if step is None else Descent(step)
