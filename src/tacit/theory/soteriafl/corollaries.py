"""Corollaries 1 to 3 of SoteriaFL (Li et al. 2022): Theorem 3 for each estimator.

The letters of the formulas are those of `tacit.theory.soteriafl`.
"""

from __future__ import annotations

import math

from tacit.errors import RequestError, positive, probability
from tacit.theory.checks import ROUND_OFF
from tacit.theory.soteriafl.compression import compression_load
from tacit.theory.soteriafl.problem import Problem


def sgd_batch(problem: Problem, beta: float) -> float:
    """The batch of Corollary 1, SoteriaFL-SGD, for any beta: min{m epsilon G sqrt(beta / ((1+w) L d ln1d)), m}.

    The corollary has beta = tau / (2 (1+w)). Its utility does not follow from this beta when tau is small:
    inserted into Theorem 3 it gives the order (L/K) (1 + 2 tau) / sqrt(2 tau), which is unbounded as tau falls.
    With `balanced_beta` the claim holds.

    >>> a9a = Problem(clients=10, records=3256, dim=124, omega=124 / 6 - 1, epsilon=1.0, delta=1e-3,
    ...               gradient_bound=0.5)
    >>> int(sgd_batch(a9a, a9a.tau / (2 * (1 + a9a.omega))))  # the batch of the paper's experiment
    10
    """
    scale = problem.privacy_cost * math.sqrt((1 + problem.omega) * problem.smoothness)
    return min(problem.gradient_bound * math.sqrt(beta) / scale, float(problem.records))


def balanced_beta(clients: int, omega: float) -> float:
    """The beta with which Corollary 1 holds for every tau: (sqrt(1 + 16 tau^2) - 1) / (8 (1+w)).

    This is tacit's own choice; Theorem 3 allows any beta. For an estimator without memory, both limits of
    `largest_step` are equal at this beta. Up to constants, rounds and utility are K and L/K times sqrt((1 +
    sqrt(1 + 16 tau^2)) / 2) <= 1 + sqrt(2 tau).

    >>> round(balanced_beta(10_000, 0.0), 6)
    0.0001
    """
    square = 16 * compression_load(clients, omega) ** 2
    # (sqrt(1 + x) - 1) = x / (sqrt(1 + x) + 1), without the cancellation for small x
    return square / (math.sqrt(1 + square) + 1) / (8 * (1 + omega))


def svrg_beta_and_step(
    *, clients: int, omega: float, smoothness: float, batch: float, snapshot_probability: float
) -> tuple[float, float]:
    """The beta and step of Corollary 2 for a batch b and snapshot probability p.

    With u = p^(2/3) b^(1/3), which must be at most 1/4, and so must p:
    beta = u^2 (1+w)^2 min{1, 1/tau^2} / n and step = u min{1, 1/tau} / (2L).

    The step is longer than Theorem 3 allows when 1 + omega < 2.65 and clients <= 18, by a factor of up to 6.2
    (one client, no compression): use the smaller of it and `largest_step`.

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


def saga_beta_and_step(*, clients: int, omega: float, smoothness: float) -> tuple[float, float]:
    """The beta and step of Corollary 3, SoteriaFL-SAGA, for a batch of 3 m^(2/3).

    beta = (1+w)^2 min{1, 1/tau^2} / (3n), step = min{1, 1/tau} / (3L). Theorem 3 allows it wherever the batch
    fits, with 27 records or more.

    >>> saga_beta_and_step(clients=3, omega=0.0, smoothness=2.0)
    (0.1111111111111111, 0.16666666666666666)
    """
    relief = min(1.0, 1 / compression_load(clients, omega))
    return ((1 + omega) * relief) ** 2 / (3 * clients), relief / (3 * positive("smoothness", smoothness))
