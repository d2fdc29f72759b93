"""The runs of `isrl-rates`: the theorems of ISRL-DP (Lowy & Razaviyayn 2023) on problems where they bind.

All problems are of one family, on the ball of radius 1 (D = 2):

    F(w) = 1 - s w_1 + (c/2) ||w||^2,    silo i:  F_i(w) = F(w) +- h w_2    (half of the silos each sign)

s is the `signal`, c the `curvature` and h the `heterogeneity`. It is the hinge loss below its kink with a ridge
penalty. Records have gradients of norm at most 1, so clipping changes nothing and the noise is that of L = 1. All
records of a silo are equal: there is no sampling error, and what is measured is the cost of privacy and of having
few rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.isrl_dp import mb_sgd, noisy_mb_sgd
from tacit.algorithms.settings import Settings
from tacit.algorithms.shuffled import shuffled_mb_sgd
from tacit.algorithms.shuffler import Shuffler
from tacit.client.bounds import ClipNorm
from tacit.client.sampling import Full, OnePass, Sampling
from tacit.engine.plan import Plan, plan
from tacit.engine.workers import Result
from tacit.experiments.simulated import SimulatedRun, simulated
from tacit.federation import Federation
from tacit.models.linear import support_vector_machine
from tacit.privacy import Target
from tacit.server.accelerated import Accelerated, Stage
from tacit.server.participation import FixedNumber
from tacit.server.projection import Ball
from tacit.server.update import Averaged, Descent, ServerUpdate
from tacit.theory.isrl_dp import (
    ConvexProblem,
    best_regularisation,
    fit_stages,
    gradient_variance,
    mb_sgd_bound,
    mb_sgd_step,
    multi_stage_bound,
    regularised_bound,
)

DELTA, RADIUS, MOST_ROUNDS, SMOOTHNESS = 1e-6, 1.0, 4000, 1.0
BALL = Ball(RADIUS)


@dataclass(frozen=True)
class RateProblem:
    """A problem of the family, and who holds it."""

    clients: int
    records: int
    epsilon: float
    dim: int
    signal: float
    curvature: float = 0.0
    heterogeneity: float = 0.0
    cohort: int | None = None
    imbalance: float = 1.0
    """how many times as many records the larger half of the silos has; `records` is then the mean"""

    @property
    def least(self) -> float:
        """The least loss on the ball."""
        along = RADIUS if self.signal >= self.curvature * RADIUS else self.signal / self.curvature
        return 1 - self.signal * along + self.curvature * along**2 / 2

    def posed(self, strongly_convex: bool) -> ConvexProblem:
        """The same in the paper's terms; the curvature is only used if the theorem is about it."""
        mu = self.curvature if strongly_convex else 0.0
        return ConvexProblem(
            clients=self.clients,
            records=self.records,
            dim=self.dim,
            epsilon=self.epsilon,
            delta=DELTA,
            lipschitz=1.0 + self.curvature * RADIUS,
            diameter=2 * RADIUS,
            smoothness=max(SMOOTHNESS, self.curvature),
            strong_convexity=mu,
            cohort=self.cohort,
            gradient_spread=0.0,
            heterogeneity=self.heterogeneity,
            loss_gap=self.signal * RADIUS + self.curvature * RADIUS**2 / 2,
        )


@lru_cache(maxsize=4)
def federation_of(
    clients: int, records: int, dim: int, signal: float, heterogeneity: float, imbalance: float
) -> Federation:
    """Silos of equal records; the odd ones pull the other way in the second coordinate."""
    share = 2 / (1 + imbalance)
    sizes = [max(1, round(records * share * (imbalance if i % 2 else 1.0))) for i in range(clients)]
    owners = np.repeat(np.arange(clients), sizes)
    features = np.zeros((len(owners), dim))
    features[:, 0] = signal
    features[:, 1] = np.where(owners % 2 == 0, heterogeneity, -heterogeneity)
    return Federation.from_arrays(features, np.ones(len(features), int), owners, classes=2, name="linear")


MakeServer = Callable[[ConvexProblem, int, float], tuple[ServerUpdate, float]]
"""From the problem, the rounds and the noise's standard deviation: the server's update and the proved bound."""


def _descent(problem: ConvexProblem, rounds: int, noise_std: float) -> tuple[ServerUpdate, float]:
    """Noisy MB-SGD with the step of Lemma D.6."""
    step = mb_sgd_step(problem, rounds=rounds, noise_std=noise_std)
    bound = mb_sgd_bound(problem, rounds=rounds, step=step, noise_std=noise_std)
    return Averaged(Descent(step, BALL), 1 / (1 - problem.strong_convexity * step)), bound


def _regularised(problem: ConvexProblem, rounds: int, noise_std: float) -> tuple[ServerUpdate, float]:
    """Algorithm 1 for convex losses, with the ridge of Lemma E.1."""
    variance = gradient_variance(problem, batch=problem.records, noise_std=noise_std, empirical=True)
    ridge = best_regularisation(problem, rounds=rounds, variance=variance)
    bound = regularised_bound(problem, rounds=rounds, variance=variance, regularisation=ridge)
    return Accelerated((Stage(rounds, problem.smooth + ridge),), 0.0, BALL, ridge), bound


def _staged(problem: ConvexProblem, rounds: int, noise_std: float) -> tuple[ServerUpdate, float]:
    """Algorithm 1 in the stages of appendix E.1, for strongly convex losses."""
    variance = gradient_variance(problem, batch=problem.records, noise_std=noise_std, empirical=True)
    stages = fit_stages(problem, rounds=rounds, variance=variance)
    server = Accelerated(tuple(Stage(*stage) for stage in stages), problem.strong_convexity, BALL)
    return server, multi_stage_bound(problem, stages, variance=variance)


def _quiet_descent(problem: ConvexProblem, rounds: int, noise_std: float) -> tuple[ServerUpdate, float]:
    """Steps of 1/beta and the mean of the points: the excess risk is at most beta D^2/(2 R)."""
    return Averaged(Descent(1 / problem.smooth, BALL)), problem.smooth * problem.diameter**2 / (2 * rounds)


def _quiet_acceleration(problem: ConvexProblem, rounds: int, noise_std: float) -> tuple[ServerUpdate, float]:
    """Algorithm 1 with v = 2 beta: the excess risk is at most 4 beta D^2/(R (R+1))."""
    bound = 4 * problem.smooth * problem.diameter**2 / (rounds * (rounds + 1))
    return Accelerated((Stage(rounds, 2 * problem.smooth),), 0.0, BALL), bound


SERVERS: dict[str, MakeServer] = {
    "MB-SGD": _descent,
    "accelerated": _regularised,
    "multi-stage": _staged,
    "one-pass": _regularised,
    "one-pass multi-stage": _staged,
    "shuffled": _descent,
    "plain, no noise": _quiet_descent,
    "accelerated, no noise": _quiet_acceleration,
}


def run(settings: Settings, data_dir: Path | None) -> Result:
    """One run of one algorithm, with the steps that the paper's lemmas prescribe for the noise of the run."""
    names = {one.name for one in fields(RateProblem)}
    problem = RateProblem(**{name: value for name, value in settings.items() if name in names})
    name, posed = settings["algorithm"], problem.posed(settings["strongly_convex"])
    federation = federation_of(
        problem.clients,
        problem.records,
        problem.dim,
        problem.signal,
        problem.heterogeneity,
        problem.imbalance,
    )

    def drafted(sampling: Sampling, rounds: int) -> Plan:
        algorithm = _draft(name, problem, sampling)
        quiet = name.endswith("no noise")
        target = Target(problem.epsilon, DELTA)
        return plan(
            algorithm, federation, rounds=rounds, privacy="none" if quiet else target, seed=settings["seed"]
        )

    rounds = settings["rounds"]
    if name.startswith("one-pass"):
        batch = max(1, int(problem.records * _share(posed)))
        rounds = problem.records // batch
        planned = drafted(OnePass(batch), rounds)
    elif rounds is None:
        # The bound is about D sqrt(L^2/R + d s^2/(R M)), and s^2/R hardly depends on R: with this many rounds, a
        # quarter of the square is left to the first term, so that the cost of privacy is what is measured.
        once = float(drafted(Full(), 1).calibration.noise_stds.square().mean())
        rounds = min(MOST_ROUNDS, max(4, math.ceil(3 * posed.reporting / (problem.dim * once))))
        planned = drafted(Full(), rounds)
    else:
        planned = drafted(Full(), rounds)
    # The noise of the mean is what counts; it does not depend on the server, whose step depends on it.
    noise_std = float(planned.calibration.noise_stds.double().square().mean().sqrt())
    server, bound = SERVERS[name](posed, rounds, noise_std)
    facts = {"least": problem.least, "upper": bound, "privacy_term": posed.privacy_cost}
    return simulated(SimulatedRun(planned.with_server(server), rounds, facts))


def _draft(name: str, problem: RateProblem, sampling: Sampling) -> Algorithm:
    model = support_vector_machine(features=problem.dim, intercept=False, ridge=problem.curvature)
    if name.endswith("no noise"):
        return mb_sgd(model, sampling=sampling, step=0.1, projection=BALL)
    bound = ClipNorm(1.0)
    if name == "shuffled":
        mixed = Shuffler(problem.clients, problem.records)
        return shuffled_mb_sgd(model, shuffler=mixed, bound=bound, sampling=sampling, step=0.1, projection=BALL)
    algorithm = noisy_mb_sgd(model, bound=bound, sampling=sampling, step=0.1, projection=BALL)
    if problem.cohort is None or problem.cohort == problem.clients:
        return algorithm
    return replace(algorithm, participation=FixedNumber(problem.cohort))


def _share(problem: ConvexProblem) -> float:
    """K/n of Theorem 3.1: a round's share of the records, where both terms of its bound are equal."""
    if problem.is_strongly_convex:
        return 1 / 48
    private = problem.lipschitz * problem.privacy_cost / math.sqrt(problem.reporting)
    balanced = float((private / (problem.smooth * problem.diameter)) ** 0.4)
    return min(1.0, max(1 / problem.records, balanced))
