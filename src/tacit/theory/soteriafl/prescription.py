"""Usable parameters for a run, as supported by SoteriaFL (Li et al. 2022), in one call."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tacit.errors import positive, unknown_name
from tacit.theory.checks import ROUND_OFF
from tacit.theory.soteriafl.cdp_sgd import cdp_rounds, cdp_step
from tacit.theory.soteriafl.corollaries import balanced_beta, saga_beta_and_step, sgd_batch, svrg_beta_and_step
from tacit.theory.soteriafl.estimators import saga_constants, sgd_constants, svrg_constants
from tacit.theory.soteriafl.problem import Problem
from tacit.theory.soteriafl.published_noise import AS_PUBLISHED
from tacit.theory.soteriafl.theorem_3 import balancing_rounds, initial_potential, largest_step


@dataclass(frozen=True)
class Prescription:
    """Parameters that the theory supports."""

    step: float
    batch: int
    rounds: int


_GAINS = {"gd": 1 / 4, "sgd": 1 / 4, "svrg": 2.0, "saga": 2.0}
"""G_A^2/4 + G_B^2 of Theorem 2, in squared bounds (Lemma 1)"""


def exact_noise_constant(algorithm: str) -> float:
    """The paper's open constant c, for exactly calibrated noise (replace-one, large batches).

    T releases of a gradient need a variance of about (2 G/m)^2 T 2 ln(1/delta) / epsilon^2: 8 in its units.
    Theorem 4 (direct compression) multiplies c by 1, Theorem 2 by G_A^2/4 + G_B^2: 1/4 for minibatches, and 2 for
    SVRG and SAGA, although these need hardly more noise than minibatches (Lemma A' of docs/privacy.md).

    >>> [exact_noise_constant(name) for name in ("cdp-sgd", "soteriafl-sgd", "soteriafl-svrg")]
    [8.0, 32.0, 4.0]
    """
    family, _, kind = algorithm.partition("-")
    direct = algorithm in ("cdp-sgd", "ldp-sgd")
    if not direct and (kind not in _GAINS or family not in ("soteriafl", "ldp")):
        raise unknown_name("algorithm", algorithm, AS_PUBLISHED)
    return 8.0 if direct else 8.0 / _GAINS[kind]


def _prescribe_direct(problem: Problem, noise_constant: float) -> Prescription:
    noise_rate = noise_constant * (problem.gradient_bound * problem.privacy_cost) ** 2 / problem.dim
    rounds = math.ceil(cdp_rounds(problem, noise_rate=noise_rate))
    # Theorem 1 leaves the batch open: use the smallest that meets Theorem 4's condition with c' = 1, if any does.
    batch = min(problem.records, math.floor(problem.records * math.sqrt(problem.epsilon / rounds)) + 1)
    return Prescription(cdp_step(problem, noise_rate=noise_rate), batch, rounds)


def _prescribe_shifted(kind: str, problem: Problem, noise_constant: float) -> Prescription:
    records, smoothness, g = problem.records, problem.smoothness, problem.gradient_bound
    shared: dict[str, Any] = {"clients": problem.clients, "omega": problem.omega, "smoothness": smoothness}
    step = math.inf
    if kind in ("gd", "sgd"):
        beta = balanced_beta(problem.clients, problem.omega)
        batch = records if kind == "gd" else max(1, math.ceil(sgd_batch(problem, beta)))
        constants = sgd_constants(records=records, batch=batch, gradient_bound=g)
    elif kind == "svrg":
        batch = max(1, math.floor(records ** (2 / 3) / 4 * (1 + ROUND_OFF)))
        p = min(batch / records, 1 / (8 * math.sqrt(batch)))
        beta, step = svrg_beta_and_step(**shared, batch=batch, snapshot_probability=p)
        constants = svrg_constants(batch=batch, snapshot_probability=p, smoothness=smoothness, gradient_bound=g)
    else:
        beta, step = saga_beta_and_step(**shared)
        batch = min(records, math.ceil(3 * records ** (2 / 3) * (1 - ROUND_OFF)))
        constants = saga_constants(records=records, batch=batch, smoothness=smoothness, gradient_bound=g)
    step = min(step, largest_step(constants, beta=beta, **shared))
    rounds = balancing_rounds(
        constants,
        noise_rate=noise_constant * constants.noise_gain * problem.privacy_cost**2 / problem.dim,
        potential=initial_potential(problem.loss_gap, beta=beta, smoothness=smoothness, shift_gap_squared=g**2),
        beta=beta,
        dim=problem.dim,
        omega=problem.omega,
        smoothness=smoothness,
    )
    return Prescription(step, batch, math.ceil(rounds))


def prescribe(algorithm: str, problem: Problem, *, noise_constant: float) -> Prescription:
    """Step, batch and rounds for an algorithm of the paper, rounded to values that can be run.

    The step never exceeds what the theorem allows (`largest_step`, or 1/L for direct compression). Rounds balance
    noise and descent (eqs. 5 and 47), with shifts that start at zero, for the paper's open noise constant c.

    GD and SGD use `balanced_beta` instead of Corollary 1's; Corollary 2's step is lowered where it is too long;
    batches are rounded so that the corollaries' conditions still hold. "ldp-sgd" and "ldp-svrg" are CDP-SGD and
    SoteriaFL-SVRG without a compressor: omega counts as 0.

    >>> p = Problem(clients=1000, records=1000, dim=100, omega=4.0, epsilon=1.0, delta=1e-5)
    >>> found = prescribe("soteriafl-svrg", p, noise_constant=1.0)
    >>> found.batch, round(found.step, 6), found.rounds
    (25, 0.125, 964)
    """
    if algorithm not in AS_PUBLISHED:
        raise unknown_name("algorithm", algorithm, AS_PUBLISHED)
    positive("noise_constant", noise_constant)
    family, kind = algorithm.split("-")
    if family == "ldp":
        problem = replace(problem, omega=0.0)
    if algorithm in ("cdp-sgd", "ldp-sgd"):
        return _prescribe_direct(problem, noise_constant)
    return _prescribe_shifted(kind, problem, noise_constant)
