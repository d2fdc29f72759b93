"""Explains after a run what limited its result.

This compares losses, which are measured on the records without noise: like them, it is only for the researcher.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tacit.engine.given import misfit_bound, misfit_step
from tacit.engine.misfits import Limit, misfit_features, misfit_targets
from tacit.engine.outlook import assumed_target, outlook, prospect_of
from tacit.engine.ranges import noise_on_shares
from tacit.models.linear import LinearModel
from tacit.models.persons import PersonModel
from tacit.side.ranges import ENDS

if TYPE_CHECKING:
    from tacit.engine.run import Run

RARE = 0.9
"""If one class has this share of the records, accuracy says little about the others."""

BLURRED = 2 * ENDS[0]
"""With more noise on shares than this, a halving in the search for a range errs about one time in three."""


def findings(run: Run) -> list[Limit]:
    """What limited the result of a run; an empty list means nothing did."""
    found = []
    plan, history = run.plan, run.history
    settings = {} if plan.recipe is None else plan.recipe.algorithm_settings
    ahead = outlook(plan)
    first, last = history[0], history[-1]
    misfits = misfit_features(run.federation) if isinstance(plan.algorithm.work.model, LinearModel) else []
    if ahead is not None:
        misfits += misfit_targets(run.federation, assumed_target(plan))
        misfits = misfits or _misfit_settings(run)
    if not last.train_loss <= first.train_loss:
        if misfits:
            change = "See below."
        elif "step" in settings:
            change = "Leave step out: it is then derived from the noise."
        else:
            change = "Use a model with fewer parameters."
        found.append(
            Limit(f"The training loss rose, from {first.train_loss:.4f} to {last.train_loss:.4f}.", change)
        )
    constant = best_constant(run)
    if constant is not None and last.test_metric is not None and constant.reaches(last.test_metric):
        below = misfits or (ahead is not None and ahead.verdict != "clear")
        found.append(
            Limit(
                f"The model is no better than predicting {constant.name}: test "
                f"{run.algorithm.work.model.metric_name} {last.test_metric:.4g}, and {constant.metric:.4g}.",
                "See below." if below and not constant.rare else constant.change,
            )
        )
    found += misfits
    if (noise := noise_on_shares(plan.federation, plan.privacy)) is not None and noise > BLURRED:
        people = "persons" if plan.federation.by_person else "records"
        found.append(
            Limit(
                f"Beyond the ends of learned ranges lie about {ENDS[0]:.0%} of the {people}, but noise moved "
                f"such shares by about {noise:.1%}: the ranges may be far too wide.",
                "Give ranges that are public, or leave fewer open.",
            )
        )
    if ahead is not None and ahead.verdict == "fair":
        found.append(Limit("Noise may limit the result.", ahead.advice))
    elif ahead is not None and ahead.verdict != "clear":
        found.append(Limit("Noise limits the result.", ahead.advice))
    factor = plan.algorithm.uplink.noise_factor(run.algorithm.work.model.dim)
    if ahead is not None and ahead.verdict != "clear" and factor > 1.5 and "local_steps" not in settings:
        compressor = plan.algorithm.uplink.compressor.spec()
        found.append(
            Limit(
                f"Compression by {compressor} multiplies the variance of the noise by {factor:.3g}.",
                "Leave compressor out, or use a weaker one ('natural', or 'identity' for none).",
            )
        )
    if not found and len(history) > 5:
        # A fifth before the end, the slope shows what is left to gain.
        before = history[-1 - len(history) // 5]
        gained, late = first.train_loss - last.train_loss, before.train_loss - last.train_loss
        if gained > 0 and late > 0.1 * gained:
            found.append(Limit("The loss was still falling at the end.", f"Use more than {plan.rounds} rounds."))
    return found


def _misfit_settings(run: Run) -> list[Limit]:
    """A clip norm or a step that does not suit the records or the noise."""
    limits = misfit_bound(run), misfit_step(run.plan, prospect_of(run.plan))
    return [limit for limit in limits if limit is not None]


@dataclass(frozen=True)
class BestConstant:
    """What the best model that does not look at features reaches on the test records."""

    metric: float
    name: str
    change: str
    """what to do about a model that is no better"""
    larger_is_better: bool
    rare: bool = False
    """whether all but one class are so rare that the metric hardly shows them"""

    def reaches(self, metric: float) -> bool:
        """Whether it is at least as good as this."""
        return metric <= self.metric + 1e-9 if self.larger_is_better else not metric < self.metric


def best_constant(run: Run) -> BestConstant | None:
    """Always the most common class, or the mean of all targets; None if the metric is another one."""
    federation, model = run.federation, run.algorithm.work.model
    if federation.test_targets is None:
        return None
    test = federation.test_batch()
    targets = model.unbundled(test)[0].targets if isinstance(model, PersonModel) else test.targets
    if federation.classes is not None and model.metric_name == "accuracy":
        share = int(torch.bincount(targets, minlength=federation.classes).max()) / len(targets)
        rare, change = share >= RARE, "Try another model."
        if rare:
            change = (
                f"{share:.0%} of the test records are of one class, so accuracy hardly shows the others: look at "
                "the area under the curve (--evaluate 0.2)."
            )
        return BestConstant(share, "always the most common class", change, larger_is_better=True, rare=rare)
    if model.metric_name != "rmse":
        return None
    spread = federation.target_scale * float(targets.double().std(correction=0))
    return BestConstant(spread, "always the mean", "Try another model.", larger_is_better=False)
