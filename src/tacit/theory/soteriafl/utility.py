"""The bounds of SoteriaFL (Li et al. 2022) for a run: Theorem 1 (direct) and Theorem 3 (shifted).

Both bound the mean over the rounds of E||grad f||^2, where f is the clients' mean loss, convex or not. Neither
has a term for unlike clients: the bounds hold however much they differ. The paper has no lower bound.
"""

from __future__ import annotations

from dataclasses import replace

from tacit.theory.asked import PlannedRun
from tacit.theory.known import bound_gaps, crowd_gaps, gradient_bound, known, step_of
from tacit.theory.soteriafl.cdp_sgd import cdp_terms
from tacit.theory.soteriafl.compression import shift_step
from tacit.theory.soteriafl.estimators import EstimatorConstants, sgd_constants, svrg_constants
from tacit.theory.soteriafl.problem import Problem
from tacit.theory.soteriafl.theorem_3 import longest_step, theorem_3_terms
from tacit.theory.utility import UtilityBound, with_compression

_PAPER = "SoteriaFL (Li, Zhao, Li & Chi 2022)"
_DIRECT = ("cdp-sgd", "ldp-sgd")


def utility_of(run: PlannedRun) -> UtilityBound:
    """The theorem's bound for the run's actual noise, at its step or at the longest one allowed."""
    asked, direct = run.asked, run.asked.algorithm in _DIRECT
    constants = known(run, "lipschitz", "loss_gap", "smoothness")
    gaps, assumptions = bound_gaps(run, constants.lipschitz)
    gaps = (*constants.missing("smoothness", "loss_gap"), *gaps, *crowd_gaps(run, everyone=True))
    if asked.one_pass:
        gaps += ("records are drawn only once, but the theorem assumes that batches are drawn anew",)
    given_shift = asked.value("shift_step")
    if given_shift is not None and abs(given_shift - shift_step(asked.omega)) > 1e-9:
        gaps += (f"shift_step = {given_shift:g}, but Theorem 3 assumes {shift_step(asked.omega):.4g}",)
    if direct and asked.omega and asked.model.penalty is not None:
        assumptions += ("with the penalty's gradient, no client's gradient exceeds the longest of a record",)
    if asked.value("difference_bound") is not None:
        assumptions += ("difference_bound shortens no difference of a record's gradients",)
    answer = UtilityBound(
        theorem=f"{_PAPER}, {'Theorem 1, with the noise of the run' if direct else 'Theorem 3'}",
        quantity="mean squared gradient norm over the rounds",
        assumptions=(*constants.sources, *assumptions, "clients may differ in any way: there is no term for it"),
        gaps=gaps,
    )
    if constants.smoothness is None or constants.loss_gap is None:
        return answer
    longest = gradient_bound(run, constants.lipschitz)
    problem = Problem(
        clients=asked.federation.clients,
        records=asked.smallest,
        dim=asked.model.dim,
        omega=asked.omega,
        # Without a promise there is no noise; the terms depend on nothing else.
        epsilon=asked.epsilon or 1.0,
        delta=asked.delta or 0.5,
        smoothness=constants.smoothness,
        gradient_bound=longest,
        loss_gap=constants.loss_gap,
    )
    estimator = _estimator(run, problem)
    limit = 1 / problem.smoothness
    if not direct:
        limit = longest_step(
            estimator, clients=problem.clients, omega=problem.omega, smoothness=problem.smoothness
        )
    step, other = step_of(run, limit)
    gaps += other
    if direct:
        terms = cdp_terms(
            problem, step=step, rounds=run.rounds, batch_variance=run.batch_variance, noise_std=run.noise_std
        )
    else:
        plain, compressed = (
            theorem_3_terms(
                estimator, replace(problem, omega=omega), step=step, rounds=run.rounds, noise_std=run.noise_std
            )
            for omega in (0.0, problem.omega)
        )
        terms = with_compression(plain, compressed)
    return replace(
        answer,
        terms=terms,
        gaps=gaps,
        trivial=longest**2 if asked.model.penalty is None else None,
        statistical=longest**2 / int(asked.federation.sizes.sum()),
    )


def _estimator(run: PlannedRun, problem: Problem) -> EstimatorConstants:
    """Lemma 1's constants for the run's batches, rounded down to whole records, which is conservative."""
    batch = max(1, min(int(run.batch), problem.records))
    kind, g, smoothness = run.asked.algorithm.split("-")[-1], problem.gradient_bound, problem.smoothness
    if kind == "svrg":
        p = run.asked.value("snapshot_probability")
        return svrg_constants(batch=batch, snapshot_probability=p, smoothness=smoothness, gradient_bound=g)
    if kind == "saga":
        # SAGA is SVRG with p = b/m; if clients differ, the slowest table counts.
        p = run.least_rate
        return svrg_constants(batch=batch, snapshot_probability=p, smoothness=smoothness, gradient_bound=g)
    plain = sgd_constants(records=problem.records, batch=batch, gradient_bound=g)
    return replace(plain, c_2=run.batch_variance * g**2)
