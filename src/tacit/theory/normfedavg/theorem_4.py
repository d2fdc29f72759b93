"""Theorem 4 of DP-NormFedAvg (Das et al.): its choices, and both bounds, for losses with bounded gradients.

The letters of the formulas are those of `tacit.theory.normfedavg`. No gradient is longer than G, so with C = G
E no update is longer than C: clipping clips nothing, and Theorems 6 and 7 hold without the condition on C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.errors import RequestError, count, positive
from tacit.privacy import Adjacency, largest_rounds
from tacit.privacy.events import poisson, repeated
from tacit.theory.normfedavg.recursion import LocalRuns, clipping_inequality, normalising_inequality
from tacit.theory.normfedavg.theorem_3 import exact_noise_multiplier, participation_rate, rho_of_noise
from tacit.theory.soteriafl.checks import ROUND_OFF, not_negative


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What Theorem 4 is a function of; `distance` is ||w_0 - w*|| or more, `participants` an expected number."""

    clients: int
    participants: float
    dim: int
    local_steps: int
    epsilon: float
    delta: float
    distance: float
    smoothness: float = 1.0
    gradient_bound: float = 1.0
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        participation_rate(self.clients, self.participants)
        for setting in ("dim", "local_steps"):
            count(setting, getattr(self, setting))
        for setting in ("epsilon", "distance", "smoothness", "gradient_bound"):
            positive(setting, getattr(self, setting))

    @property
    def clip_norm(self) -> float:
        """C = G E: as long as the longest update."""
        return self.gradient_bound * self.local_steps

    @property
    def best_gamma(self) -> float:
        """The gamma that makes term A smallest, L D; A is then 2 G D rho."""
        return self.smoothness * self.distance


@dataclass(frozen=True)
class Choices:
    """What Theorem 4 sets: `step` is both rates, `rounds` a real number where the formula gives one."""

    rounds: float
    step: float
    clip_norm: float
    rho: float
    alpha: float
    gamma: float


def theorem_4_choices(problem: Problem, rho: float, *, alpha: float = 1.0, gamma: float | None = None) -> Choices:
    """The choices as printed, for a given rho: step = rho/(2 alpha L), C = G E, K = 2 alpha gamma/(C rho^2).

    It needs rho < 1 (Definition 2), alpha >= 1 and E <= alpha/(2 rho). Section 4.1 prints C E for C in K, which
    Theorem 6 does not give (there, C E is the C/E of its notation times E).

    >>> p = Problem(clients=100, participants=100, dim=9, local_steps=5, epsilon=1.0, delta=1e-5, distance=1.0)
    >>> c = theorem_4_choices(p, 0.05)
    >>> round(c.step, 6), round(c.rounds, 6), c.clip_norm
    (0.025, 160.0, 5.0)
    """
    gamma = problem.best_gamma if gamma is None else positive("gamma", gamma)
    if not 0 < rho < 1:
        raise RequestError(f"rho must be above 0 and below 1, not {rho!r}: take more clients or a larger epsilon")
    if not alpha >= 1:
        raise RequestError(f"alpha must be at least 1, not {alpha!r}")
    if problem.local_steps > alpha / (2 * rho) * (1 + ROUND_OFF):
        raise RequestError(
            f"local_steps must be at most alpha/(2 rho) = {alpha / (2 * rho):.6g}, not {problem.local_steps!r}"
        )
    rounds = 2 * alpha * gamma / (problem.clip_norm * rho**2)
    return Choices(rounds, rho / (2 * alpha * problem.smoothness), problem.clip_norm, rho, alpha, gamma)


@dataclass(frozen=True)
class Prescription:
    """Theorem 4 in numbers that can be run: exact noise, whole rounds, both bounds at exactly these values.

    `clipping_bound` and `normalising_bound` are those of `clipping_gap_bound` and `normalising_gap_bound` with
    all Delta_i zero (over-parameterised); call them with `runs` for other clients.
    """

    choices: Choices
    noise_multiplier: float
    runs: LocalRuns
    clipping_bound: float
    normalising_bound: float


def prescribe(problem: Problem, *, alpha: float = 1.0, gamma: float | None = None) -> Prescription:
    """The rounds, step and noise of Theorem 4, with the noise that the accountant finds instead of an open q.

    rho depends on K through the noise z(K), but K rho^2 = d z^2/r^2 does not otherwise. So K = 2 alpha gamma/(C
    rho^2) asks for z(K) = r sqrt(2 alpha gamma/(C d)), and since z grows with K the largest K
    that this noise keeps private is the one. Step and alpha follow from the whole K: step = gamma/(C L K rho)
    (Theorem 6), alpha = K C rho^2/(2 gamma). An alpha below 2 rho E is refused, as in Theorem 4.

    >>> p = Problem(
    ...     clients=3000, participants=600, dim=7850, local_steps=20, epsilon=5.0, delta=1e-5, distance=10.0)
    >>> found = prescribe(p, alpha=2.5)
    >>> found.runs.rounds, round(found.choices.rho, 4), round(found.clipping_bound, 2)
    (902, 0.0527, 0.75)
    """
    gamma = problem.best_gamma if gamma is None else positive("gamma", gamma)
    target = problem.participants * math.sqrt(
        2 * positive("alpha", alpha) * gamma / (problem.clip_norm * problem.dim)
    )
    rate = participation_rate(problem.clients, problem.participants)
    rounds = largest_rounds(
        lambda rounds: repeated(poisson(rate, target), rounds),
        epsilon=problem.epsilon,
        delta=problem.delta,
        adjacency=problem.adjacency,
    )
    noise_multiplier = exact_noise_multiplier(
        clients=problem.clients,
        participants=problem.participants,
        rounds=rounds,
        epsilon=problem.epsilon,
        delta=problem.delta,
        adjacency=problem.adjacency,
    )
    rho = rho_of_noise(noise_multiplier, participants=problem.participants, dim=problem.dim, rounds=rounds)
    real_alpha = rounds * problem.clip_norm * rho**2 / (2 * gamma)
    if real_alpha < 2 * rho * problem.local_steps * (1 - ROUND_OFF):
        raise RequestError(
            f"alpha = {alpha!r} gives {rounds} rounds, too few for {problem.local_steps} local_steps: take one "
            f"above 2 rho local_steps = {2 * rho * problem.local_steps:.6g}"
        )
    step = gamma / (problem.clip_norm * problem.smoothness * rounds * rho)
    runs = LocalRuns(
        clients=problem.clients,
        participants=problem.participants,
        dim=problem.dim,
        rounds=rounds,
        local_steps=problem.local_steps,
        step=step,
        clip_norm=problem.clip_norm,
        noise_std=noise_multiplier * problem.clip_norm / problem.participants,
        smoothness=problem.smoothness,
        distance=problem.distance,
    )
    choices = Choices(rounds, step, problem.clip_norm, rho, real_alpha, gamma)
    return Prescription(choices, noise_multiplier, runs, clipping_gap_bound(runs), normalising_gap_bound(runs))


def clipping_gap_bound(runs: LocalRuns, *, mean_gap: float = 0.0) -> float:
    """Theorem 4 (a), eq. 2: a bound on E f(w) - f(w*) for DP-FedAvg, w a uniformly random one of w_0 .. w_{K-1}.

    `clipping_inequality` without clients whose update is longer than C. With everybody taking part and the
    theorem's choices: (A + (E/alpha) (1 + rho E/alpha) mean_gap rho) / (2 - rho E/alpha - (rho E/alpha)^2) with
    A = G (L D^2/gamma + gamma/L) rho; the paper bounds the bracket by 3/2.
    """
    found = clipping_inequality(runs, mean_gap=mean_gap)
    return found.right / found.near


def normalising_gap_bound(runs: LocalRuns, *, mean_weighted_gap: float = 0.0) -> float:
    """Theorem 4 (b), eq. 3: a bound on E mean_i (C/||u_i||) (f_i(w) - f_i(w*)) for DP-NormFedAvg.

    If every Delta_i is zero it bounds E f(w) - f(w*) as well, since C >= ||u_i||; if not, it does not
    (`normalising_inequality`). With everybody taking part and the theorem's choices:
    (A + (E/alpha) (G^2/(2L) + mean_weighted_gap rho E/alpha) rho) / (2 - (rho E/alpha)^2). The G^2/(2L), which
    the paper calls an effect of heterogeneity, stays when there is none.
    """
    found = normalising_inequality(runs, mean_weighted_gap=mean_weighted_gap)
    return found.right / found.near


def asymptotic_gap_bound(
    rho: float, *, distance: float, smoothness: float, gradient_bound: float, gamma: float | None = None
) -> float:
    """Eqs. 4 and 5, both bounds as alpha and with it K grow: (G/2) (L D^2/gamma + gamma/L) rho; at best G D rho.

    The comparison of section 4.1 is of two upper bounds: the same number on the right, and on the left f_i(w) -
    f_i(w*) weighted by 1 (clipping) or by G E/||u_i|| >= 1 (normalising), so that normalising promises at least
    as much if no f_i(w) lies below f_i(w*). For a given K the bound of (b) has c h C^2/E more on its right.

    >>> asymptotic_gap_bound(0.1, distance=2.0, smoothness=1.0, gradient_bound=1.0)
    0.2
    """
    gamma = smoothness * positive("distance", distance) if gamma is None else positive("gamma", gamma)
    spread = positive("smoothness", smoothness) * distance**2 / gamma + gamma / smoothness
    return positive("gradient_bound", gradient_bound) / 2 * spread * not_negative("rho", rho)
