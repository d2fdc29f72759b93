"""Constants that theorems need: from a model and public bounds on its data, or assumed; never from records."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tacit.errors import RequestError, positive, unknown_name
from tacit.models.linear import LinearModel
from tacit.models.penalty import Ridge
from tacit.theory.asked import PlannedRun

ASSUMABLE = {
    "distance": "distance of the start from the best model",
    "heterogeneity": "how much worse the best model is for a client than its own, on average",
    "lipschitz": "the longest gradient of any record",
    "loss_gap": "the loss at the start minus the least loss",
    "smoothness": "the largest curvature of any record's loss",
}
"""Constants that may be stated if the model does not determine them."""


@dataclass(frozen=True)
class Known:
    """What is known about the loss; None for unknown constants."""

    smoothness: float | None
    lipschitz: float | None
    """the largest norm of a record's gradient, without the penalty"""
    loss_gap: float | None
    distance: float | None
    convex: bool | None
    sources: tuple[str, ...]
    """the source of each constant"""

    def missing(self, *names: str) -> tuple[str, ...]:
        """What to do about each of these constants that is unknown, so that the theorem cannot be evaluated."""
        return tuple(
            f"{name} is not known ({ASSUMABLE[name]}): use a linear model with a public bound on its features "
            f"(feature_norm, or data.unit_norm), or state it (--assume {name}=...)"
            for name in names
            if getattr(self, name) is None
        )


def check_assumed(assumed: dict[str, float]) -> dict[str, float]:
    """Checks that the constants may be assumed and are positive numbers."""
    for name, value in assumed.items():
        if name not in ASSUMABLE:
            raise unknown_name("constant to assume", name, ASSUMABLE)
        if not (math.isfinite(value) and value >= 0) or (value == 0 and name != "heterogeneity"):
            raise RequestError(f"--assume {name} must be a positive number, not {value!r}")
    return assumed


def known(run: PlannedRun, *assumable: str) -> Known:
    """The constants of a run: as assumed, or else derived from the model and public bounds.

    Refuses an assumed constant that the theorem does not use, that is, one not in `assumable`.
    """
    for name in run.assumed:
        if name not in assumable:
            raise RequestError(
                f"--assume {name}: the theorem of {run.asked.algorithm} does not use it; it uses "
                f"{', '.join(assumable)}"
            )
    asked, model = run.asked, run.asked.model
    found: dict[str, tuple[float, str]] = {}
    convex = None
    if isinstance(model, LinearModel):
        convex = model.penalty is None or isinstance(model.penalty, Ridge)
        if asked.feature_norm is not None:
            norm = f"from the model, for features of norm at most {asked.feature_norm:g}"
            smoothness, lipschitz = model.smoothness(asked.feature_norm), model.lipschitz(asked.feature_norm)
            if smoothness is not None:
                found["smoothness"] = smoothness, norm
            if lipschitz is not None:
                found["lipschitz"] = lipschitz, norm
        gap = start_loss(model, asked.federation.classes, asked.target_bound)
        if gap is not None:
            found["loss_gap"] = gap, "the loss at the start, since no loss is negative"
            if isinstance(model.penalty, Ridge):
                reach = math.sqrt(2 * gap / model.penalty.strength)
                found["distance"] = reach, "sqrt(2 loss_gap / ridge): longer models lose to zero"
    for name, value in run.assumed.items():
        found[name] = value, "assumed"
    values = {name: value for name, (value, _) in found.items()}
    return Known(
        smoothness=values.get("smoothness"),
        lipschitz=values.get("lipschitz"),
        loss_gap=values.get("loss_gap"),
        distance=values.get("distance"),
        convex=convex,
        sources=tuple(f"{name} = {value:.4g}: {source}" for name, (value, source) in sorted(found.items())),
    )


def start_loss(model: LinearModel, classes: int | None, target_bound: float | None) -> float | None:
    """The largest loss at zero, where training starts; None for a regression without a bound on its targets."""
    if classes is not None:
        targets = torch.tensor([0])
    elif target_bound is not None:
        targets = torch.tensor([-1.0, 1.0], dtype=torch.float64) * positive("target_bound", target_bound)
    else:
        return None
    scores = torch.zeros(len(targets), model.outputs, dtype=torch.float64)
    return float(model.loss.values(scores, targets).max())


def bound_gaps(
    run: PlannedRun, lipschitz: float | None, share: float = 1.0
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How the bound on records' gradients departs from the theorems: gaps, and assumptions.

    `share` is the share of coordinates that a client works on: a norm is bounded in proportion to its root.
    """
    asked = run.asked
    size, name = asked.value("clip_norm"), asked.value("bound")
    if size is None:
        return (), ()
    if name == "normalise":
        return ("all gradients are rescaled to the same norm, but the theorem assumes unscaled gradients",), ()
    limit = size * math.sqrt(share) if name == "clip-norm" else size
    if lipschitz is None:
        return (), (f"no record's gradient exceeds its bound, {limit:.4g}: this loss alone does not ensure that",)
    if limit < lipschitz * (1 - 1e-9):
        return (
            f"clip_norm = {size:g} shortens gradients to {limit:.4g}, which can be as long as {lipschitz:.4g}; "
            "the theorem does not cover this bias",
        ), ()
    return (), ()


def gradient_bound(run: PlannedRun, lipschitz: float | None) -> float:
    """G: the largest norm of a record's gradient after it is bounded."""
    bound = math.inf if run.asked.value("clip_norm") is None else run.asked.gradient_bound
    return min(bound, math.inf if lipschitz is None else lipschitz)


def crowd_gaps(run: PlannedRun, *, everyone: bool) -> tuple[str, ...]:
    """How a run's use of its clients departs from the theorems."""
    gaps = []
    if run.asked.federation.weights is not None:
        gaps.append("clients have weights, but the theorem assumes equal ones")
    if everyone and run.participants < run.asked.federation.clients:
        gaps.append(
            f"{run.participants:g} of {run.asked.federation.clients} clients take part in a round, but the "
            "theorem and the terms assume all of them"
        )
    return tuple(gaps)


def step_of(run: PlannedRun, limit: float, otherwise: float | None = None) -> tuple[float, tuple[str, ...]]:
    """The step to evaluate a theorem at, and the reason if it is not the run's own.

    `limit` is the longest step that the theorem allows; `otherwise` is for runs without a constant step.
    """
    step = run.asked.value("step")
    if step is None:
        usual = limit if otherwise is None else otherwise
        return usual, (
            "no step is given, so steps are derived from the messages, but the theorem assumes a constant one; "
            f"the terms are for a step of {usual:.4g}",
        )
    if step > limit * (1 + 1e-9):
        return limit, (
            f"step = {step:g} is longer than the theorem allows; the terms are for {limit:.4g}, the longest",
        )
    return step, ()
