"""Corollaries 1 to 3 of SoteriaFL (Li et al. 2022): what Theorem 3 becomes for each estimator.

The letters of the formulas are those of `tacit.theory.soteriafl`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.errors import RequestError, positive, probability
from tacit.theory.soteriafl.checks import ROUND_OFF
from tacit.theory.soteriafl.compression import compression_load
from tacit.theory.soteriafl.problem import Problem


@dataclass(frozen=True)
class Corollary:
    """What a corollary prescribes, in real numbers as printed; `batch` may fall outside [1, records].

    `rounds` and `utility` stand under an O() in the paper, which hides the loss gap too: its constant is 1.
    """

    beta: float
    step: float
    batch: float
    snapshot_probability: float
    rounds: float
    utility: float


def corollary_1(problem: Problem) -> Corollary:
    """Corollary 1, SoteriaFL-SGD (SoteriaFL-GD is the same with batch = records).

    beta = tau / (2 (1+w)), step = 1 / ((1 + 2 tau) L), b = min{m epsilon G sqrt(beta / ((1+w) L d ln1d)), m},
    T = K (1 + sqrt(tau)), utility = (L/K) (1 + sqrt(tau)).

    The utility does not follow from this beta when tau is small: put into Theorem 3 it gives the order
    (L/K) (1 + 2 tau) / sqrt(2 tau), which grows without limit as tau falls. `balanced_beta` proves the claim.

    >>> from tacit.theory.soteriafl import rand_k_omega
    >>> a9a = Problem(clients=10, records=3256, dim=124, omega=rand_k_omega(124, 6), epsilon=1.0, delta=1e-3,
    ...               gradient_bound=0.5)
    >>> int(corollary_1(a9a).batch)  # the batch of the paper's experiment
    10
    """
    tau, scale = problem.tau, problem.rounds_scale
    beta = tau / (2 * (1 + problem.omega))
    growth = 1 + math.sqrt(tau)
    return Corollary(
        beta=beta,
        step=1 / ((1 + 2 * tau) * problem.smoothness),
        batch=sgd_batch(problem, beta),
        snapshot_probability=1.0,
        rounds=scale * growth,
        utility=problem.smoothness / scale * growth,
    )


def sgd_batch(problem: Problem, beta: float) -> float:
    """The batch of Corollary 1 for any beta: min{m epsilon G sqrt(beta / ((1+w) L d ln1d)), m}."""
    scale = problem.privacy_cost * math.sqrt((1 + problem.omega) * problem.smoothness)
    return min(problem.gradient_bound * math.sqrt(beta) / scale, float(problem.records))


def balanced_beta(clients: int, omega: float) -> float:
    """The beta with which Corollary 1 holds for every tau: (sqrt(1 + 16 tau^2) - 1) / (8 (1+w)).

    tacit's own; Theorem 3 allows any beta. For an estimator without memory both limits of `largest_step` meet
    there. Up to constants, rounds and utility are K and L/K times
    sqrt((1 + sqrt(1 + 16 tau^2)) / 2) <= 1 + sqrt(2 tau).

    >>> round(balanced_beta(10_000, 0.0), 6), corollary_1(
    ...     Problem(clients=10_000, records=9, dim=9, omega=0, epsilon=1, delta=0.1)).beta
    (0.0001, 0.005)
    """
    square = 16 * compression_load(clients, omega) ** 2
    # (sqrt(1 + x) - 1) = x / (sqrt(1 + x) + 1), without the cancellation for small x
    return square / (math.sqrt(1 + square) + 1) / (8 * (1 + omega))


def svrg_beta_and_step(
    *, clients: int, omega: float, smoothness: float, batch: float, snapshot_probability: float
) -> tuple[float, float]:
    """The beta and step of Corollary 2 for a batch b and snapshot probability p.

    With u = p^(2/3) b^(1/3), which like p must be at most 1/4:
    beta = u^2 (1+w)^2 min{1, 1/tau^2} / n and step = u min{1, 1/tau} / (2L).

    The step is longer than Theorem 3 allows when 1 + omega < 2.65 and clients <= 18, by a factor of up to 6.2
    (one client, no compression): take the smaller of it and `largest_step`.

    >>> svrg_beta_and_step(clients=100, omega=0.0, smoothness=1.0, batch=1, snapshot_probability=0.125)
    (0.000625, 0.125)
    """
    p = probability("snapshot_probability", snapshot_probability)
    u = p ** (2 / 3) * positive("batch", batch) ** (1 / 3)
    if p > 0.25 or u > 0.25 * (1 + ROUND_OFF):
        raise RequestError(
            f"snapshot_probability must be at most {min(0.25, 1 / (8 * math.sqrt(batch))):.6g} for a batch of"
            f" {batch!r} (Corollary 2), not {snapshot_probability!r}"
        )
    relief = min(1.0, 1 / compression_load(clients, omega))
    return (u * relief * (1 + omega)) ** 2 / clients, u * relief / (2 * positive("smoothness", smoothness))


def corollary_2(problem: Problem) -> Corollary:
    """Corollary 2, SoteriaFL-SVRG: b = m^(2/3)/4, p = b/m, T = K max{1, tau}, utility = L/K.

    Beta and step, and where the step is too long, are those of `svrg_beta_and_step`.

    >>> c = corollary_2(Problem(clients=100, records=1000, dim=10, omega=0.0, epsilon=1.0, delta=1e-5))
    >>> round(c.batch, 6), round(c.snapshot_probability, 6), round(c.step, 6)
    (25.0, 0.025, 0.125)
    """
    batch = problem.records ** (2 / 3) / 4
    p = batch / problem.records
    beta, step = svrg_beta_and_step(
        clients=problem.clients,
        omega=problem.omega,
        smoothness=problem.smoothness,
        batch=batch,
        snapshot_probability=p,
    )
    scale = problem.rounds_scale
    return Corollary(beta, step, batch, p, scale * max(1.0, problem.tau), problem.smoothness / scale)


def corollary_3(problem: Problem) -> Corollary:
    """Corollary 3, SoteriaFL-SAGA: b = 3 m^(2/3), T = K max{1, tau}, utility = L/K.

    beta = (1+w)^2 min{1, 1/tau^2} / (3n), step = min{1, 1/tau} / (3L). Theorem 3 allows it wherever the batch
    fits, from 27 records on.

    >>> round(corollary_3(Problem(clients=9, records=27, dim=9, omega=0.0, epsilon=1.0, delta=0.1)).batch, 6)
    27.0
    """
    relief, scale = min(1.0, 1 / problem.tau), problem.rounds_scale
    return Corollary(
        beta=((1 + problem.omega) * relief) ** 2 / (3 * problem.clients),
        step=relief / (3 * problem.smoothness),
        batch=3 * problem.records ** (2 / 3),
        snapshot_probability=1.0,
        rounds=scale * max(1.0, problem.tau),
        utility=problem.smoothness / scale,
    )
