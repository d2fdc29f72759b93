"""Correcting the mean and the slope of a regression: one private release after training.

Clipped gradients make least squares pull predictions towards the median, and too far apart or together. Both
errors are lines: y is about p + shift + slope (p - mean of p) for predictions p. Five or seven means over the
training records tell shift and slope, which are then part of the model's weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

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

LITTLE = 0.002
"""Noise on means at which two more of them do no harm: a slope in the window is told within about 0.05."""

CLEAR = 0.05
"""The noise at which a slope over the whole range is preferred: it costs a 400th of R2."""


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
    """The numbers of a record that tell how predictions have to be corrected.

    The public range of the target is mapped to [-1, 1]. A record has the error e (its target, clipped to the
    range, minus the prediction), the prediction p, and w = (p - usual value) / WINDOW. All three are clipped to
    [-1, 1], and (e, p, w, e w, p w) is sent. If noise is small, e p and p p follow.

    Guarantee: the norm is at most sqrt(5), or sqrt(7), whatever the record, the target and the model are. A
    person has the mean of their rows' vectors, which is no longer.

    With means m, shift = m_e and slope = cov(e, w) / cov(p, w), or with p in the place of w. Where the mean of e
    is a line in p, that is its slope for any function w of p. A steep one tells it through less noise than p
    itself, which hardly varies over the range. Where that mean is no line, p gives the best line, and w the slope
    of the usual values alone, which may be wrong for the few that are far away.
    """

    low: float
    """the lower end of the target's range in the unit of the model: half of the range is 1, a usual value is 0"""
    whole: bool = False
    """whether the slope over the whole range is asked for as well"""

    @property
    def dim(self) -> int:
        """How many numbers there are."""
        return 7 if self.whole else 5

    @property
    def bound(self) -> float:
        """The largest norm of a record's numbers."""
        return math.sqrt(self.dim)

    def sums(self, model: Model, point: Tensor, batch: Batch) -> Tensor:
        """The sum of the vectors of every client: (clients, dim) double."""
        return sums_by_client(self.vectors(model, point, batch), batch.counts)

    def vectors(self, model: Model, point: Tensor, batch: Batch) -> Tensor:
        """The vector of every record: (records, dim) double."""
        if isinstance(model, PersonModel):
            rows, _ = model.unbundled(batch)
            return sums_by_client(self.vectors(model.rows, point, rows), rows.counts) / rows.counts[:, None]
        predicted = model.predict(point.to(batch.features.dtype), batch.features)
        return self.of(batch.targets.double().cpu(), predicted.double().cpu())

    def of(self, targets: Tensor, predicted: Tensor) -> Tensor:
        """The vectors of records with these targets and predictions."""
        centred = predicted - (self.low + 1)
        p, w = _within(centred), _within(predicted / WINDOW)
        e = _within(_within(targets - (self.low + 1)) - centred)
        further = [e * p, p * p] if self.whole else []
        return torch.stack([e, p, w, e * w, p * w, *further], dim=1)

    def read(self, means: Tensor, noise_std: float) -> Correction:
        """The correction that means over all records call for: post-processing.

        Each of the two numbers is moved towards 0 by CERTAIN^2 of its noise's variances, over itself: what noise
        could have caused is left as it is.

        Args:
            means: (dim,): the noisy means.
            noise_std: the standard deviation of the noise on each of them.
        """
        shift, p, w, ew, pw, *further = map(float, means)
        slope, slope_noise = _slope(shift, p, w, ew, pw, noise_std)
        if self.whole:
            best, best_noise = _slope(shift, p, p, further[0], further[1], noise_std, same=True)
            if best_noise <= CLEAR:
                # Chance can do no harm here, so less is taken off.
                slope, slope_noise = best, best_noise / CERTAIN
        # Where records are few, a line may look steep by chance: no slope is more than halved or doubled.
        slope = min(max(_certain(slope, slope_noise), -0.5), 1.0)
        return Correction(_certain(shift, noise_std), slope, self.low + 1 + p)


def _slope(
    shift: float, p: float, w: float, ew: float, pw: float, noise_std: float, same: bool = False
) -> tuple[float, float]:
    """cov(e, w) / cov(p, w) from means, and its noise: infinite if predictions hardly vary.

    `same` says that w is p, so that both have the same noise.
    """
    apart, spread = ew - shift * w, pw - p * w
    spread_noise = noise_std * math.sqrt(1 + w**2 + p**2 + 2 * same * w * p)
    if spread <= 2 * CERTAIN * spread_noise:
        return 0.0, math.inf
    slope = apart / spread
    apart_noise = noise_std * math.sqrt(1 + w**2 + shift**2)
    return slope, math.hypot(apart_noise, slope * spread_noise) / spread


def worthwhile(noise_std: float) -> bool:
    """Whether a shift that costs a point of R2 stands out from this noise on means: it depends on no record."""
    return CERTAIN * noise_std <= LEAST_SHIFT


def _within(values: Tensor) -> Tensor:
    """Clipped to [-1, 1]; what is no number counts as 0."""
    return values.nan_to_num(nan=0.0).clamp(-1, 1)


def _certain(value: float, noise_std: float) -> float:
    """What is left of a value if noise is taken off."""
    beyond = abs(value) > CERTAIN * noise_std
    return value * (1 - (CERTAIN * noise_std / value) ** 2) if beyond else 0.0
