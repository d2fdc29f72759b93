"""Correcting the mean and the slope of a regression: one private release after training.

Clipped gradients make least squares pull predictions towards the median, and too far apart or together. Both
errors are lines: y is about p + shift + slope (p - mean of p) for predictions p. Five means over the training
records tell shift and slope, which are then part of the model's weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tacit.federation import Batch
from tacit.models.gradients import sums_by_client
from tacit.models.linear import LinearModel
from tacit.models.losses import Squared
from tacit.models.model import Model
from tacit.models.persons import PersonModel, model_of_rows

WINDOW = 0.25
"""Where a prediction is told from its neighbours, in halves of the target's range: about its usual deviation."""

LEAST_SHIFT = 0.05
"""A shift that costs a point of R2, in halves of the range, if the target's deviation is half of that."""

CERTAIN = 2.0
"""Only what exceeds so many standard deviations of its noise is corrected."""


@dataclass(frozen=True)
class Correction:
    """p becomes p + shift + slope (p - at), in the unit of the model."""

    shift: float
    slope: float
    at: float
    """the mean prediction"""

    def folded(self, model: Model, point: Tensor) -> Tensor:
        """The parameters of the linear model that predicts what this makes of the predictions at `point`."""
        rows = model_of_rows(model)
        assert isinstance(rows, LinearModel), "only linear models are corrected"
        corrected = point.double() * (1 + self.slope)
        corrected[rows.features :] += self.shift - self.slope * self.at
        return corrected.to(point.dtype)

    def to_dict(self, scale: float) -> dict[str, Any]:
        """As plain data for JSON, with the shift in the target's own unit."""
        return {"shift": self.shift * scale, "slope": self.slope}


NOTHING = Correction(0.0, 0.0, 0.0)
"""Leaves the model as it is."""


def correctable(model: Model) -> bool:
    """Whether a model is a line that is fitted to means: least squares with an intercept, and no penalty."""
    rows = model_of_rows(model)
    return (
        isinstance(rows, LinearModel)
        and isinstance(rows.loss, Squared)
        and rows.intercept
        and rows.penalty is None
        and rows.smoothing is None
    )


@dataclass(frozen=True)
class Moments:
    """The five numbers of a record that tell how predictions have to be corrected.

    With target y and prediction p, both clipped to the public range and mapped to [-1, 1], and
    w = clip((p - usual value) / WINDOW) to [-1, 1] as well: (y, p, w, y w, p w), each between -1 and 1.

    Guarantee: the norm is at most sqrt(5), whatever the record, the target and the model are. A person has the
    mean of their rows' vectors, which is no longer.

    With means m, shift = m_y - m_p and slope = cov(y - p, w) / cov(p, w). Where the mean of y is a line in p,
    that is its slope for any function w of p. A steep one tells it through less noise than p itself, which hardly
    varies over the range.
    """

    low: float
    """the lower end of the target's range in the unit of the model: half of the range is 1, a usual value is 0"""

    dim: ClassVar[int] = 5
    bound: ClassVar[float] = math.sqrt(5)

    def sums(self, model: Model, point: Tensor, batch: Batch) -> Tensor:
        """The sum of the vectors of every client: (clients, 5) double."""
        return sums_by_client(self.vectors(model, point, batch), batch.counts)

    def vectors(self, model: Model, point: Tensor, batch: Batch) -> Tensor:
        """The vector of every record: (records, 5) double."""
        if isinstance(model, PersonModel):
            rows, _ = model.unbundled(batch)
            return sums_by_client(self.vectors(model.rows, point, rows), rows.counts) / rows.counts[:, None]
        predicted = model.predict(point.to(batch.features.dtype), batch.features)
        return self.of(batch.targets.double().cpu(), predicted.double().cpu())

    def of(self, targets: Tensor, predicted: Tensor) -> Tensor:
        """The vectors of records with these targets and predictions."""
        middle = self.low + 1
        y, p = (_within(values - middle) for values in (targets, predicted))
        w = _within(predicted / WINDOW)
        return torch.stack([y, p, w, y * w, p * w], dim=1)

    def read(self, means: Tensor, noise_std: float) -> Correction:
        """The correction that means over all records call for: post-processing.

        Each of the two numbers is moved towards 0 by CERTAIN^2 of its noise's variances, over itself: what noise
        could have caused is left as it is.

        Args:
            means: (5,): the noisy means.
            noise_std: the standard deviation of the noise on each of them.
        """
        y, p, w, yw, pw = map(float, means)
        shift, centre = y - p, self.low + 1 + p
        apart, spread = yw - pw - shift * w, pw - p * w
        spread_noise = noise_std * math.sqrt(1 + w**2 + p**2)
        certain = _certain(shift, math.sqrt(2) * noise_std)
        if spread <= 2 * CERTAIN * spread_noise:
            return Correction(certain, 0.0, centre)
        slope = apart / spread
        apart_noise = noise_std * math.sqrt(2 + 2 * w**2 + shift**2)
        slope_noise = math.hypot(apart_noise, slope * spread_noise) / spread
        # Where records are few, a line may look steep by chance: no slope is more than halved or doubled.
        slope = min(max(_certain(slope, slope_noise), -0.5), 1.0)
        return Correction(certain, slope, centre)


def worthwhile(noise_std: float) -> bool:
    """Whether a shift that costs a point of R2 stands out from this noise on means: it depends on no record."""
    return CERTAIN * math.sqrt(2) * noise_std <= LEAST_SHIFT


def _within(values: Tensor) -> Tensor:
    """Clipped to [-1, 1]; what is no number counts as 0."""
    return values.nan_to_num(nan=0.0).clamp(-1, 1)


def _certain(value: float, noise_std: float) -> float:
    """What is left of a value if noise is taken off."""
    beyond = abs(value) > CERTAIN * noise_std
    return value * (1 - (CERTAIN * noise_std / value) ** 2) if beyond else 0.0
