"""One call for a run: the parameters that ISRL-DP (Lowy & Razaviyayn 2023) backs, as numbers that can be used."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tacit.errors import unknown_name
from tacit.theory.isrl_dp.accelerated import best_regularisation, regularised_bound
from tacit.theory.isrl_dp.mb_sgd import mb_sgd_bound, mb_sgd_step, weight_growth
from tacit.theory.isrl_dp.multi_stage import Stage, fit_stages, halving_rounds, multi_stage_bound
from tacit.theory.isrl_dp.problem import Problem, check_setting
from tacit.theory.isrl_dp.published_noise import one_pass_noise_std, resampled_noise_std, smallest_batch
from tacit.theory.isrl_dp.rounds_and_batches import (
    disjoint_batches,
    theorem_2_1_rounds,
    theorem_3_1_batch,
    theorem_3_1_target,
    theorem_4_1_rounds,
    theorem_4_1_target,
)
from tacit.theory.isrl_dp.smoothing import smoothed, smoothing, smoothing_loss
from tacit.theory.isrl_dp.variance import gradient_variance

HOME_SETTINGS = {"noisy-mb-sgd": "iid", "accelerated-mb-sgd": "non-iid"}
"""The algorithms, each with the setting that the paper made it for."""

NoiseStd = Callable[[int, int], float]
"""The noise's standard deviation on a coordinate of a message, from rounds and batch."""


@dataclass(frozen=True, kw_only=True)
class Prescription:
    """Parameters that the theory backs, and the expected excess risk that it promises for them.

    `step` and `growth` (of the averaging weights, `weight_growth`) are those of Noisy MB-SGD; `stages` and
    `regularisation`, the strength of a ridge around the start, those of the accelerated algorithm, whose mu is
    then that of the loss plus the ridge's. What an algorithm does not have is 0 or empty. `smoothing` is the beta
    of the Moreau envelope that takes the place of a loss that is not smooth, else 0. `sampling` says how batches
    are drawn.
    """

    sampling: str
    rounds: int
    batch: int
    noise_std: float
    excess_risk_bound: float
    step: float = 0.0
    growth: float = 0.0
    stages: tuple[Stage, ...] = ()
    regularisation: float = 0.0
    smoothing: float = 0.0


def prescribe(
    algorithm: str, problem: Problem, setting: str | None = None, *, noise_std_at: NoiseStd | None = None
) -> Prescription:
    """Rounds, batch, steps and noise for an algorithm of the paper, in numbers that can be run.

    Settings: "iid" is population risk with like silos, "non-iid" population risk with any silos, "erm" empirical
    risk; by default Noisy MB-SGD's is "iid" (Theorem 2.1), the accelerated algorithm's "non-iid" (Theorem 3.1).
    The accelerated algorithm passes once over the records unless the risk is empirical (Theorem 4.1). Noisy
    MB-SGD draws them again, except in setting "non-iid", which the paper does not treat: there one pass and
    Lemma D.6, with the batch sqrt(32 d ln(1.25/delta)/M)/epsilon that makes its bound smallest.

    The bound is a proved inequality at exactly these values, constants included (`mb_sgd_bound`,
    `regularised_bound`, `multi_stage_bound`); above `problem.trivial_risk` it says nothing. The noise is the
    published one, unless `noise_std_at` gives that of a run calibrated exactly. Rounds and batch are the
    theorems'. Steps, weights and regularisation are those that make the bound smallest where a theorem leaves
    them open or drops constants; the strongly convex accelerated algorithm gets rounds enough for its stages,
    which the paper's K and R, meant up to a constant, are not.

    >>> p = Problem(clients=50, records=10_000, dim=20, epsilon=2.0, delta=1e-6, smoothness=1.0)
    >>> noisy, fast = prescribe("noisy-mb-sgd", p, "erm"), prescribe("accelerated-mb-sgd", p, "erm")
    >>> noisy.rounds, fast.rounds
    (1000031623, 93)
    >>> round(noisy.excess_risk_bound, 3), round(fast.excess_risk_bound, 3)
    (0.011, 0.017)
    """
    if algorithm not in HOME_SETTINGS:
        raise unknown_name("algorithm", algorithm, HOME_SETTINGS)
    setting = HOME_SETTINGS[algorithm] if setting is None else check_setting(setting)
    beta = 0.0
    needs_smoothness = algorithm == "accelerated-mb-sgd" or setting == "iid"
    posed = problem
    if problem.smoothness is None and needs_smoothness and setting != "non-iid":
        beta = smoothing(problem, setting)
        posed = smoothed(problem, beta)
    make = _noisy if algorithm == "noisy-mb-sgd" else _accelerated
    found = make(posed, setting, noise_std_at)
    if not beta:
        return found
    risk = found.excess_risk_bound + smoothing_loss(problem, beta)
    return replace(found, smoothing=beta, excess_risk_bound=risk)


def _noisy(problem: Problem, setting: str, noise_std_at: NoiseStd | None) -> Prescription:
    if setting == "non-iid":
        root = math.sqrt(32 * problem.dim * math.log(1.25 / problem.delta) / problem.reporting)
        batch, rounds = disjoint_batches(problem.records, root / problem.epsilon)
        noise_std = _one_pass_noise(problem, rounds, batch, noise_std_at)
        sampling = "one-pass"
    else:
        rounds = _enough_rounds(problem, theorem_2_1_rounds(problem, setting))
        batch = _private_batch(problem, rounds)
        noise_std = _resampled_noise(problem, rounds, batch, noise_std_at)
        sampling = "with-replacement"
    step = mb_sgd_step(problem, rounds=rounds, noise_std=noise_std, setting=setting)
    return Prescription(
        sampling=sampling,
        rounds=rounds,
        batch=batch,
        noise_std=noise_std,
        excess_risk_bound=mb_sgd_bound(problem, rounds=rounds, step=step, noise_std=noise_std, setting=setting),
        step=step,
        growth=weight_growth(problem, step),
    )


def _accelerated(problem: Problem, setting: str, noise_std_at: NoiseStd | None) -> Prescription:
    if setting == "iid":
        # Like silos are unlike silos that do not differ: Theorem 3.1 with v = 0.
        problem = replace(problem, heterogeneity=0.0)
    if setting == "erm":
        return _accelerated_run(problem, *_erm_size(problem), "erm", noise_std_at)
    batches = [theorem_3_1_batch(problem)]
    if problem.is_strongly_convex:
        batches.append(problem.records / _halvings(problem, theorem_3_1_target(problem)))
    sizes = dict.fromkeys(disjoint_batches(problem.records, batch) for batch in batches)
    runs = [_accelerated_run(problem, rounds, batch, "one-pass", noise_std_at) for batch, rounds in sizes]
    return min(runs, key=lambda run: run.excess_risk_bound)


def _accelerated_run(
    problem: Problem, rounds: int, batch: int, regime: str, noise_std_at: NoiseStd | None
) -> Prescription:
    empirical = regime == "erm"
    noise = _resampled_noise if empirical else _one_pass_noise
    noise_std = noise(problem, rounds, batch, noise_std_at)
    variance = gradient_variance(problem, batch=batch, noise_std=noise_std, empirical=empirical)
    if problem.is_strongly_convex:
        strength = 0.0
        choices = (fit_stages(problem, rounds=rounds, variance=variance), (Stage(rounds, problem.smooth),))
        stages = min(choices, key=lambda stages: multi_stage_bound(problem, stages, variance=variance))
        bound = multi_stage_bound(problem, stages, variance=variance)
    else:
        strength = best_regularisation(problem, rounds=rounds, variance=variance)
        stages = (Stage(rounds, problem.smooth + strength),)
        bound = regularised_bound(problem, rounds=rounds, variance=variance, regularisation=strength)
    whole = empirical and batch == problem.records
    return Prescription(
        sampling="full" if whole else "with-replacement" if empirical else "one-pass",
        rounds=rounds,
        batch=batch,
        noise_std=noise_std,
        excess_risk_bound=bound,
        stages=stages,
        regularisation=strength,
    )


def _erm_size(problem: Problem) -> tuple[int, int]:
    """The fewest rounds that Theorem 4.1 allows, and the smallest batch that then keeps its conditions."""
    n = problem.records
    rounds = theorem_4_1_rounds(problem, batch=n)
    if problem.is_strongly_convex:
        rounds = max(rounds, _halvings(problem, theorem_4_1_target(problem)))
    whole = _enough_rounds(problem, rounds)
    sampling = 1 / (whole * problem.privacy_cost**2)
    return whole, min(n, max(_private_batch(problem, whole), math.ceil(sampling)))


def _halvings(problem: Problem, target: float) -> int:
    return halving_rounds(problem) * max(1, math.ceil(math.log2(problem.gap / target)))


def _enough_rounds(problem: Problem, rounds: float) -> int:
    """At least as many rounds as let a batch of all records keep Theorem D.1's condition."""
    needed = problem.epsilon**2 / (32 * math.log(2 / problem.delta))
    return max(1, math.ceil(max(rounds, needed)))


def _private_batch(problem: Problem, rounds: int) -> int:
    batch = smallest_batch(records=problem.records, rounds=rounds, epsilon=problem.epsilon, delta=problem.delta)
    return max(1, min(problem.records, math.ceil(batch)))


def _resampled_noise(problem: Problem, rounds: int, batch: int, noise_std_at: NoiseStd | None) -> float:
    if noise_std_at is not None:
        return noise_std_at(rounds, batch)
    return resampled_noise_std(
        lipschitz=problem.lipschitz,
        records=problem.records,
        rounds=rounds,
        epsilon=problem.epsilon,
        delta=problem.delta,
    )


def _one_pass_noise(problem: Problem, rounds: int, batch: int, noise_std_at: NoiseStd | None) -> float:
    if noise_std_at is not None:
        return noise_std_at(rounds, batch)
    return one_pass_noise_std(
        lipschitz=problem.lipschitz, batch=batch, epsilon=problem.epsilon, delta=problem.delta
    )
