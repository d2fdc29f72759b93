"""The bounds of ISRL-DP (Lowy & Razaviyayn 2023) for a run: Lemma D.6 and, accelerated, Lemmas E.1 to E.3.

They bound the excess risk of convex losses on a bounded set: over the records at hand or, if each is used only
once, over the population they were drawn from. The lower bounds are those of Figure 3.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tacit.errors import RequestError
from tacit.models.linear import LinearModel
from tacit.theory.asked import PlannedRun
from tacit.theory.isrl_dp.accelerated import accelerated_terms, variance_terms
from tacit.theory.isrl_dp.choices import problem
from tacit.theory.isrl_dp.constants import model_constants
from tacit.theory.isrl_dp.figure_3 import lower_bound, unmet_conditions
from tacit.theory.isrl_dp.mb_sgd import longest_step, mb_sgd_step, mb_sgd_terms, stability
from tacit.theory.isrl_dp.problem import ConvexProblem
from tacit.theory.isrl_dp.smoothing import smoothing_loss
from tacit.theory.known import bound_gaps, crowd_gaps, known, step_of
from tacit.theory.utility import UtilityBound

_PAPER = "ISRL-DP (Lowy & Razaviyayn 2023)"


def descent_utility(run: PlannedRun) -> UtilityBound:
    """Noisy MB-SGD: Lemma D.6 at the run's step and noise."""
    answer, posed = _posed(run, "Lemma D.6")
    if posed is None:
        return answer
    best = mb_sgd_step(posed, rounds=run.rounds, noise_std=run.noise_std)
    step, other = step_of(run, longest_step(posed), best)
    random_sizes = run.asked.value("sampling") == "poisson"
    terms = mb_sgd_terms(
        posed,
        rounds=run.rounds,
        step=step,
        noise_std=run.noise_std,
        batch_variance=run.batch_variance if random_sizes else 0.0,
    )
    said = answer.assumptions
    if posed.smoothness is not None and not run.asked.one_pass:
        more = stability(posed, step=step, rounds=run.rounds)
        said += (f"on new records, if all silos are alike, the risk is at most {more:.3g} higher (Lemma D.2)",)
    return replace(_with_smoothing(answer, run, posed, terms), gaps=(*answer.gaps, *other), assumptions=said)


def accelerated_utility(run: PlannedRun) -> UtilityBound:
    """Accelerated Noisy MB-SGD: Lemma E.1 (convex) or appendix E.1 (stages), with the variance of Lemma E.3."""
    answer, posed = _posed(run, "Lemmas E.1 to E.3")
    if posed is None:
        return answer
    if posed.smoothness is None:
        gap = "the loss is not smooth, but the lemmas assume that it is: set model.smoothing = 'theory'"
        return replace(answer, gaps=(*answer.gaps, gap))
    asked = run.asked
    stages, step = asked.value("stages"), asked.value("step")
    if not isinstance(stages, list):
        if step is None:
            gap = "neither stages nor a step are given, but the lemmas assume stages of constant curvature"
            return replace(answer, gaps=(*answer.gaps, gap))
        lengths = [run.rounds // stages + (k < run.rounds % stages) for k in range(stages)]
        stages = [(length, 1 / step) for length in lengths]
    variance = variance_terms(posed, batch_variance=run.batch_variance, noise_std=run.noise_std)
    try:
        terms = accelerated_terms(
            posed,
            [(int(length), curvature) for length, curvature in stages],
            variance=variance,
            regularisation=asked.value("regularisation") or 0.0,
        )
    except RequestError as error:
        return replace(answer, gaps=(*answer.gaps, f"the lemmas do not hold for these stages: {error}"))
    found = _with_smoothing(answer, run, posed, terms)
    if not math.isfinite(sum(terms.values())):
        gap = (
            "without strong convexity or regularisation, stages of curvature = smoothness let noise grow forever"
        )
        found = replace(found, gaps=(*found.gaps, gap))
    return found


def local_utility(run: PlannedRun) -> UtilityBound:
    """Noisy Local SGD has no theorem in the paper; only the lower bound applies to it."""
    answer, _ = _posed(run, "no theorem")
    gap = "the paper proves nothing about local steps (appendix I only tests them)"
    return replace(answer, gaps=(gap,), assumptions=())


def _posed(run: PlannedRun, theorem: str) -> tuple[UtilityBound, ConvexProblem | None]:
    """The answer without its terms, and the problem that the run poses, if its constants are known."""
    asked, constants = run.asked, known(run, "loss_gap")
    population = asked.one_pass
    try:
        posed = problem(asked)
    except RequestError:
        # The gaps say what is missing.
        posed = None
    lipschitz = constants.lipschitz
    if posed is not None and asked.feature_norm is not None:
        lipschitz = model_constants(
            asked.model,
            feature_norm=asked.feature_norm,
            diameter=posed.diameter,
            target_bound=asked.target_bound,
        ).record_lipschitz
    gaps, assumptions = bound_gaps(run, lipschitz)
    gaps += crowd_gaps(run, everyone=False)
    answer = UtilityBound(
        theorem=f"{_PAPER}, {theorem}",
        quantity=f"excess {'population' if population else 'empirical'} risk",
        gaps=(*_why_not(run, constants.convex), *gaps),
        assumptions=(*constants.sources, *assumptions),
    )
    if posed is None:
        return answer, None
    posed = replace(posed, loss_gap=constants.loss_gap)
    answer = replace(
        answer,
        trivial=min(posed.trivial_risk, posed.gap),
        statistical=_statistical(posed),
        assumptions=(
            f"diameter = {posed.diameter:g}: that of the projection's ball, which contains the best model",
            f"lipschitz = {posed.lipschitz:.4g} on that ball, including the penalty",
            *(source for source in answer.assumptions if not source.startswith("lipschitz")),
        ),
    )
    shuffled = asked.algorithm.startswith("shuffled")
    if asked.epsilon is None or (shuffled and not population) or (population and posed.smoothness is None):
        return answer, posed
    setting = "non-iid" if population else "erm"
    return replace(
        answer,
        lower=lower_bound(setting, posed, shuffled=shuffled),
        lower_theorem="Bassily et al. (2019)" if shuffled else f"Theorem {'2.2' if population else '4.2'}",
        lower_unmet=unmet_conditions(posed, rounds=run.rounds),
    ), posed


def _why_not(run: PlannedRun, convex: bool | None) -> tuple[str, ...]:
    gaps = []
    if convex is None:
        gaps.append(f"{type(run.asked.model).__name__} is not convex, but the paper assumes convex losses")
    elif not convex:
        gaps.append("the model's penalty is not convex, but the paper assumes convex losses")
    if run.asked.diameter is None:
        gaps.append("the model is not restricted to a public set: give algorithm.projection = 'ball:RADIUS'")
    if run.asked.feature_norm is None:
        gaps.append("no public bound on the features: give feature_norm, or data.unit_norm = true")
    model = run.asked.model
    if run.asked.target_bound is None and isinstance(model, LinearModel) and model.loss.slope_bound is None:
        gaps.append("the loss has no slope bound: give target_bound, a public bound on the absolute target")
    return tuple(gaps)


def _statistical(posed: ConvexProblem) -> float:
    pooled = posed.records * posed.clients
    if posed.is_strongly_convex:
        return posed.phi**2 / (posed.strong_convexity * pooled)
    return posed.phi * posed.diameter / math.sqrt(pooled)


def _with_smoothing(
    answer: UtilityBound, run: PlannedRun, posed: ConvexProblem, terms: dict[str, float]
) -> UtilityBound:
    """The terms, with the cost of smoothing the loss (Lemma D.7)."""
    model = run.asked.model
    beta = model.smoothing if isinstance(model, LinearModel) else None
    if beta is not None:
        terms = {**terms, "optimisation": terms["optimisation"] + smoothing_loss(posed, beta)}
    return replace(answer, terms=terms)
