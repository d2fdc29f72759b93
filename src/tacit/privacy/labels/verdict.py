"""What a configuration of another tool gives: epsilons, each against somebody, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dp_accounting import DpEvent

from tacit.privacy.accountant.accounting import epsilon
from tacit.privacy.events import gaussian, non_private, repeated
from tacit.privacy.promises.terms import Adjacency, Unit

SERVER = "the server, and anyone who sees the messages"
MODELS = "anyone who sees the released models and may know who took part"
MODELS_ALONE = "anyone who sees the released models but not who took part"
STEPS = "anyone who sees the model after every step; in a federation, the server"


@dataclass(frozen=True)
class View:
    """The epsilon that holds against somebody; infinite if nothing is promised."""

    against: str
    unit: Unit
    """what is protected: one record, or everything that a client holds"""
    adjacency: Adjacency
    epsilon: float
    delta: float
    because: str
    """how it was computed"""


@dataclass(frozen=True)
class Flaw:
    """Something that the configuration gets wrong, and what to change."""

    what: str
    change: str


@dataclass(frozen=True)
class LabelVerdict:
    """What a configuration gives. The first view is the one that its label is about."""

    mechanism: str
    claimed: float | None
    """the label: the epsilon that the configuration states or its user believes; None if there is none"""
    views: tuple[View, ...]
    findings: tuple[Flaw, ...] = ()

    @property
    def private(self) -> bool:
        """Whether it protects anything against anybody."""
        return any(math.isfinite(view.epsilon) for view in self.views)

    @property
    def holds(self) -> bool | None:
        """Whether the label is true for the first view; None without a label."""
        return None if self.claimed is None else self.views[0].epsilon <= 1.001 * self.claimed

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; an epsilon of None means that there is no guarantee."""
        return {
            "mechanism": self.mechanism,
            "claimed_epsilon": self.claimed,
            "label_holds": self.holds,
            "private": self.private,
            "views": [
                {
                    "against": view.against,
                    "unit": str(view.unit),
                    "adjacency": str(view.adjacency),
                    "epsilon": view.epsilon if math.isfinite(view.epsilon) else None,
                    "delta": view.delta,
                    "because": view.because,
                }
                for view in self.views
            ],
            "findings": [{"what": finding.what, "change": finding.change} for finding in self.findings],
        }


def release(make: Callable[[float], DpEvent], multiplier: float) -> DpEvent:
    """One release with this noise multiplier; without noise there is no guarantee."""
    return make(multiplier) if multiplier > 0 else non_private()


def view(
    against: str, unit: Unit, adjacency: str, event: DpEvent, rounds: int, delta: float, because: str
) -> View:
    """What `rounds` releases of this kind cost against somebody."""
    if rounds > 1 and not isinstance(event, type(non_private())):
        event = repeated(event, rounds)
    kind = Adjacency(adjacency)
    return View(against, unit, kind, epsilon(event, delta, kind), delta, because)


def nothing(against: str, unit: Unit, because: str) -> View:
    """No promise at all."""
    return View(against, unit, Adjacency.REPLACE_ONE, math.inf, 0.0, because)


def every_round(multiplier: float) -> DpEvent:
    """A release to which everybody contributes."""
    return release(gaussian, multiplier)
