"""Loss reports: a silo may report a noisy mean loss of its records, charged to its budget.

    report = B/2 + (1/n) (sum over its n records of (min(max(loss, 0), B) - B/2) + N(0, (z B/2)^2))

Reports are off unless the consortium agrees on them and the silo's policy allows them. Guarantee: one record
moves the sum by at most its bound of B/2, so every report is the Gaussian mechanism with noise multiplier z. z is
derived from what all reports of a run may cost together (`epsilon`). That part is set aside before the first
round, because the noise of the training is derived from the events of both. Rounding and the sampler of lattice
noise are charged as for gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.client.cohort import Cohort
from tacit.errors import RequestError, count, positive
from tacit.federation import Batch
from tacit.models.model import Model
from tacit.noise.additive import Noise, check_size
from tacit.noise.randomness import Purpose
from tacit.privacy import Target, calibrate_noise, events


@dataclass(frozen=True)
class Report:
    """A silo's mean loss, sent with every `every`-th of its messages."""

    every: int
    loss_bound: float
    """B: each record's loss is clipped to [0, B]"""
    epsilon: float
    """what all reports of a run may cost together, at the delta of the promise"""

    def __post_init__(self) -> None:
        count("report.every", self.every)
        positive("report.loss_bound", self.loss_bound)
        positive("report.epsilon", self.epsilon)

    @classmethod
    def from_values(cls, values: object) -> Report:
        """Read the settings from a TOML table."""
        if not isinstance(values, Mapping) or set(values) != {"every", "loss_bound", "epsilon"}:
            raise RequestError(f"report must be a table of every, loss_bound and epsilon, not {values!r}")
        return cls(**values)

    @classmethod
    def parse(cls, text: str) -> Report:
        """Read the settings from the command-line option --report.

        >>> Report.parse("10,4.0,0.5")
        Report(every=10, loss_bound=4.0, epsilon=0.5)
        """
        try:
            every, loss_bound, epsilon = text.split(",")
            return cls(int(every), float(loss_bound), float(epsilon))
        except ValueError as error:
            raise RequestError(
                f"--report {text!r} must be EVERY,LOSS_BOUND,EPSILON, such as 10,4.0,0.5"
            ) from error

    def reports(self, releases: int) -> int:
        """How many of a silo's first `releases` messages come with a report."""
        return releases // self.every

    def due(self, releases: int) -> bool:
        """Whether the `releases`-th message of a silo comes with a report."""
        return releases % self.every == 0

    def check(self, releases: int, target: Target) -> None:
        """Refuse reports that never come, or that would cost all of a promise."""
        if not self.reports(releases):
            raise RequestError(f"report.every = {self.every} is more than the {releases} messages of a silo")
        if self.epsilon >= target.epsilon:
            raise RequestError(
                f"report.epsilon = {self.epsilon:g} must be less than the promised epsilon = {target.epsilon:g}"
            )

    def noise_multiplier(self, releases: int, target: Target, noise: Noise) -> float:
        """z: the least noise multiplier with which all reports of the messages keep (epsilon, target.delta)."""
        self.check(releases, target)
        return calibrate_noise(
            lambda z: self.event(z, releases, noise),
            epsilon=self.epsilon,
            delta=target.delta,
            adjacency=target.adjacency,
        )

    def event(self, noise_multiplier: float, releases: int, noise: Noise) -> DpEvent:
        """The accountant's event for the reports among a silo's first `releases` messages."""
        reports = self.reports(releases)
        if not reports:
            return events.nothing()
        ideal = events.repeated(events.gaussian(noise_multiplier / (1 + noise.slack)), reports)
        return noise.charged(ideal, 1, reports)

    def measure(
        self,
        model: Model,
        point: Tensor,
        cohort: Cohort,
        noise_multiplier: float,
        noise: Noise,
    ) -> float:
        """The noisy mean loss of a silo's records at a point. A loss that is not finite counts as B."""
        records = cohort.federation
        check_size(noise, records.records)
        half = self.loss_bound / 2
        losses = model.losses(point, Batch(records.features, records.targets, records.sizes)).double().cpu()
        centred = losses.nan_to_num(nan=self.loss_bound, posinf=self.loss_bound).clamp(0, self.loss_bound) - half
        multiplier = torch.tensor([noise_multiplier], dtype=torch.float64)
        generators = cohort.generators(Purpose.REPORT)
        total, _ = noise.add(centred.sum().reshape(1, 1), half * multiplier, multiplier, generators, {})
        return half + float(total[0, 0]) / records.records


def report_values(report: Report | None) -> dict[str, Any]:
    """The settings as a TOML table; empty if there is no report."""
    return {} if report is None else {"report": dict(vars(report))}
