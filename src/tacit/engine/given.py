"""Finds where a step or a clip norm that was given, or a theorem's, does not suit the noise or the records."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from tacit.algorithms.prospect import feature_scale
from tacit.client.bounds import ClipNorm
from tacit.engine.misfits import ENOUGH, Limit
from tacit.engine.plan import Plan
from tacit.federation import Batch
from tacit.models.linear import LinearModel
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Unit
from tacit.server.self_tuned import Prospect
from tacit.server.update import Averaged, Descent

if TYPE_CHECKING:
    from tacit.engine.run import Run

SHORT, LONG = 0.1, 5.0
"""Steps are too short or too long if, together, they are so many times the distance that suits the noise. The
best steps of grids were between a tenth and 4.4 times in 33 cases (docs/results/default-rules.md)."""

LOOSE = 1.5
"""A clip norm is too large if it is so many times as long as nearly all gradients, before and after training."""

UNFINISHED, ALIGNED = 0.1, 0.2
"""Clipping limits a model whose gradient still has this share of its first length, while the mean of clipped
gradients points elsewhere: the cosine of their angle is below this."""

STEEPEST = math.sqrt(2)
"""The largest slope of a classifier's loss: probabilities less the true class."""


def misfit_step(plan: Plan, known: Prospect) -> Limit | None:
    """A step that covers far less, or far more, than the distance that suits the noise. From public numbers."""
    server = plan.algorithm.server
    server = server.update if isinstance(server, Averaged) else server
    if not isinstance(server, Descent) or hasattr(plan.algorithm.work, "step_size"):
        return None  # steps follow from the noise, or clients make steps of their own
    step = server.step_size
    factors = sum(server.schedule.factor(round) for round in range(plan.rounds)) / (1 - server.momentum)
    share = step * factors * known.length / known.travel()
    change = "Leave step out: it is then derived from the noise."
    if plan.recipe is not None and plan.recipe.settings_from == "theory":
        change = 'Leave settings_from = "theory" out: the step is then derived from the noise.'
    if share < SHORT:
        return Limit(f"Step {step:.3g} is short: this noise permits {_times(1 / share)} as long ones.", change)
    if share > LONG:
        return Limit(f"Step {step:.3g} is {_times(share)} as long as suits this noise.", change)
    return None


def reach(plan: Plan) -> float:
    """The length of the longest possible gradient of a record, as a share of the bound; at most 1.

    Only for a linear classifier whose features are of known size: more than that of a wider bound is noise.
    """
    work = plan.algorithm.work
    if not isinstance(work.model, LinearModel) or plan.federation.classes is None or not _clips(plan):
        return 1.0
    longest = STEEPEST * feature_scale(work.model, plan.federation.feature_norm)
    return min(1.0, longest / work.bound.norm(work.bounded))


def misfit_bound(run: Run) -> Limit | None:
    """A clip norm that is far longer than all gradients, or so short that they lead elsewhere.

    This looks at records without protection, for the researcher alone.
    """
    work, federation = run.algorithm.work, run.federation
    model, bound = work.model, work.bound.norm(work.bounded)
    if not isinstance(model, LinearModel) or not _clips(run.plan):
        return None
    some = slice(None, None, max(1, federation.records // ENOUGH))
    features, targets = federation.features[some], federation.targets[some]
    batch = Batch(features, targets, torch.tensor([len(targets)]))
    start = model.init(Randomness(run.plan.seed).generator(Purpose.INIT)).to(features.device)
    gradients = model.gradients(run.parameters, batch)
    norms = gradients.norms()
    longest = max(float(one.quantile(0.99)) for one in (norms, model.gradients(start, batch).norms()))
    if bound > LOOSE * longest:
        return Limit(
            f"The clip norm {bound:.3g} is {_times(bound / longest)} as long as nearly all gradients of records, "
            "and noise is drawn for the whole of it.",
            "Make clip_norm smaller, or leave it out if you gave it.",
        )
    if run.correction is not None:
        # What clipping has bent was straightened, and clipped gradients lead back.
        return None
    mean, clipped = (
        gradients.weighted_sums(weights.to(features.dtype))[0].double()
        for weights in (torch.ones_like(norms), (bound / norms).clamp(max=1.0))
    )
    unfinished = float(mean.norm()) / len(targets) > UNFINISHED * math.sqrt(run.history[0].grad_norm_sq)
    bare = federation.classes is None and federation.schema is None and federation.target_bound is None
    if unfinished and float(mean @ clipped) < ALIGNED * float(mean.norm() * clipped.norm()):
        return Limit(
            f"Clipping limits the result: the loss could fall, but gradients of norm {bound:.3g} lead elsewhere.",
            "Leave clip_norm out if you gave it. A larger one may help, but brings more noise."
            + (" So may target_bound, a public bound on the absolute target." if bare else ""),
        )
    return None


def _clips(plan: Plan) -> bool:
    return plan.algorithm.work.unit is Unit.RECORD and isinstance(plan.algorithm.work.bound, ClipNorm)


def _times(number: float) -> str:
    return f"{float(f'{number:.2g}'):,g} times"
