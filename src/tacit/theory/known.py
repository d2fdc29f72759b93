"""The constants that theorems take: of a model and public bounds on its data, or assumed; never of records."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tacit.errors import RequestError, positive, unknown_name
from tacit.models.linear import LinearModel
from tacit.models.penalty import Ridge
from tacit.theory.asked import PlannedRun

ASSUMABLE = {
    "distance": "of the start from the best model",
    "heterogeneity": "how much worse the best model is for a client than its own, on average",
    "lipschitz": "the longest gradient of any record",
    "loss_gap": "the loss at the start above the least one",
    "smoothness": "the largest curvature of any record's loss",
}
"""Constants that may be stated where the model does not tell them."""


@dataclass(frozen=True)
class Known:
    """What is known of the loss; None where nobody has said it."""

    smoothness: float | None
    lipschitz: float | None
    """the longest gradient of a record, without the penalty"""
    loss_gap: float | None
    distance: float | None
    convex: bool | None
    sources: tuple[str, ...]
    """where each constant is from"""

    def missing(self, *names: str) -> tuple[str, ...]:
        """Why the theorem cannot be evaluated: for each of these constants that is not known, what to do."""
        return tuple(
            f"{name} is not known ({ASSUMABLE[name]}): use a linear model with a public bound on its features "
            f"(feature_norm, or data.unit_norm), or state it (--assume {name}=...)"
            for name in names
            if getattr(self, name) is None
        )


def check_assumed(assumed: dict[str, float]) -> dict[str, float]:
    """The constants, if they may be assumed and are positive numbers."""
    for name, value in assumed.items():
        if name not in ASSUMABLE:
            raise unknown_name("constant to assume", name, ASSUMABLE)
        if not (math.isfinite(value) and value >= 0) or (value == 0 and name != "heterogeneity"):
            raise RequestError(f"--assume {name} must be a positive number, not {value!r}")
    return assumed


def known(run: PlannedRun, *assumable: str) -> Known:
    """The constants of a run: what is assumed, and else what follows from the model and public bounds.

    A constant that is assumed and not among those that the theorem takes, `assumable`, is refused.
    """
    for name in run.assumed:
        if name not in assumable:
            raise RequestError(
                f"--assume {name}: the theorem of {run.asked.algorithm} does not take it; it takes "
                f"{', '.join(assumable)}"
            )
    asked, model = run.asked, run.asked.model
    found: dict[str, tuple[float, str]] = {}
    convex = None
    if isinstance(model, LinearModel):
        convex = model.penalty is None or isinstance(model.penalty, Ridge)
        if asked.feature_norm is not None:
            norm = f"the model's, for features of norm at most {asked.feature_norm:g}"
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
                found["distance"] = reach, "sqrt(2 loss_gap / ridge): a longer model would cost more than zero"
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
    """The largest loss where training starts, at zero; None for a regression without a bound on its targets."""
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
    """What the bound on records' gradients does that theorems do not know: gaps, and assumptions.

    `share` is that of the coordinates that a client works on: a norm is bounded in proportion to its root.
    """
    asked = run.asked
    size, name = asked.value("clip_norm"), asked.value("bound")
    if size is None:
        return (), ()
    if name == "normalise":
        return ("every gradient is made equally long, and the theorem is for gradients as they are",), ()
    limit = size * math.sqrt(share) if name == "clip-norm" else size
    if lipschitz is None:
        return (), (f"no gradient of a record reaches its bound, {limit:.4g}: this loss has no such limit",)
    if limit < lipschitz * (1 - 1e-9):
        return (
            f"clip_norm = {size:g} shortens gradients to {limit:.4g}, which can be as long as {lipschitz:.4g}; "
            "the theorem does not know this bias",
        ), ()
    return (), ()


def gradient_bound(run: PlannedRun, lipschitz: float | None) -> float:
    """G: the longest that a record's gradient can be after its bound."""
    bound = math.inf if run.asked.value("clip_norm") is None else run.asked.gradient_bound
    return min(bound, math.inf if lipschitz is None else lipschitz)


def crowd_gaps(run: PlannedRun, *, everyone: bool) -> tuple[str, ...]:
    """What a run does with its clients that theorems do not know."""
    gaps = []
    if run.asked.federation.weights is not None:
        gaps.append("clients have weights, and the theorem counts them alike")
    if everyone and run.participants < run.asked.federation.clients:
        gaps.append(
            f"{run.participants:g} of {run.asked.federation.clients} clients take part in a round; theorem and "
            "terms are for all of them"
        )
    return tuple(gaps)


def step_of(run: PlannedRun, limit: float, otherwise: float | None = None) -> tuple[float, tuple[str, ...]]:
    """The step to evaluate a theorem at, and why it is not the run's own, if it is not.

    `limit` is the longest step that the theorem allows; `otherwise` is for runs without a constant step.
    """
    step = run.asked.value("step")
    if step is None:
        usual = limit if otherwise is None else otherwise
        return usual, (
            "no step is given, so that steps follow from the messages, and the theorem is for a constant one; "
            f"the terms are for a step of {usual:.4g}",
        )
    if step > limit * (1 + 1e-9):
        return limit, (
            f"step = {step:g} is longer than the theorem allows; the terms are for {limit:.4g}, the longest",
        )
    return step, ()
