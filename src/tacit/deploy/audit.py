"""Auditing what deployed silos release in addition to their messages: reports of their mean loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.client.cohort import Cohort
from tacit.deploy.report import Report
from tacit.engine.audit.promises import alone
from tacit.engine.audit.recipe import promised_to
from tacit.engine.audit.repeated_runs import audit_promise
from tacit.engine.audit.side import SideStage
from tacit.engine.audit.stage import Tactic
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.noise.additive import Noise, SeededGaussian, build_noise
from tacit.noise.randomness import Randomness
from tacit.privacy import Target, Unit
from tacit.privacy.accountant.pairs import Array
from tacit.privacy.audit import AuditResult

TRIALS = 1000

_BEYOND = 1e3
"""How many loss bounds a canary's loss is away, so that only the clip limits it."""


class _FeatureIsLoss:
    """A model of which only the losses are used: a record's feature is its loss."""

    def losses(self, point: Tensor, batch: Batch) -> Tensor:
        """The losses, read from the features."""
        return batch.features[:, 0]


@dataclass(frozen=True)
class ReportStage(SideStage):
    """Silos that report their loss. A canary's loss is huge, or hugely negative; all others are in the middle."""

    report: Report
    kind: Noise

    name = "loss report"

    @property
    def direction(self) -> Array:
        """The direction of the attack: a report is one number."""
        return np.ones(1)

    def views(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        """What the silos report, computed by the function that they call: (trials, reports, 1)."""
        model: Any = _FeatureIsLoss()
        half = self.report.loss_bound / 2
        seen = np.empty((len(pulls), self.rounds, 1))
        for n, pull in enumerate(pulls):
            losses = torch.full((self.records, 1), half, dtype=torch.float32)
            losses[0] = half + float(pull) * _BEYOND * tactic.size * half
            silo = Federation(
                losses, torch.zeros(self.records), torch.tensor([self.records]), torch.tensor([first + n])
            )
            for t in range(self.rounds):
                cohort = Cohort(silo, torch.zeros(1, dtype=torch.int64), t, self.randomness)
                seen[n, t, 0] = self.report.measure(model, torch.zeros(1), cohort, self.noise, self.kind)
        return seen

    def signals(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        """The same reports without noise. They depend only on the canary."""
        different, which = np.unique(pulls, return_inverse=True)
        return replace(self, noise=0.0, kind=SeededGaussian()).views(different, first, tactic)[which]


def audit_report(
    report: Report,
    *,
    records: int,
    messages: int,
    privacy: Target,
    noise: Noise,
    trials: int = TRIALS,
    confidence: float = 0.95,
    seed: int = 0,
) -> AuditResult:
    """A lower bound on what all reports of a silo cost together, and checks of their noise.

    Args:
        report: the settings of the reports.
        records: the silo's number of records.
        messages: how many messages the silo sends in the run; some come with a report.
        privacy: the promise of the whole run.
        noise: the kind of noise that reports have.
        trials: the number of independent silos.
        confidence: the confidence level of the lower bound.
        seed: the seed of all randomness.
    """
    multiplier = report.noise_multiplier(messages, privacy, noise)
    make_event = partial(report.event, releases=messages, noise=noise)
    stage = ReportStage(
        make_event,
        multiplier,
        report.loss_bound / 2,
        privacy.adjacency,
        records,
        report.reports(messages),
        Randomness(seed),
        report,
        noise,
    )
    return audit_promise(alone(stage, privacy.delta), trials=trials, confidence=confidence)


def audit_report_of(
    recipe: Recipe,
    report: Report,
    *,
    trials: int | None = None,
    confidence: float = 0.95,
    data_dir: Path | None = None,
) -> AuditResult:
    """Audit the reports that a deployment of a recipe would make, at its smallest silo."""
    plan = make_plan(recipe, data_dir=data_dir, look=False)
    if plan.algorithm.work.unit is not Unit.RECORD or recipe.client_epsilon is not None:
        raise RequestError("reports are accounted per record, not per client: leave report out")
    smallest = int(plan.federation.sizes.argmin())
    return audit_report(
        report,
        records=int(plan.federation.sizes[smallest]),
        messages=plan.releases,
        privacy=promised_to(plan, smallest),
        noise=build_noise(recipe.noise),
        trials=trials or TRIALS,
        confidence=confidence,
        seed=plan.seed,
    )
