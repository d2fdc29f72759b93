"""Losses that are not smooth, by their Moreau envelope: Lemma D.7 and what Theorems D.2 and F.2 do with it.

f_beta(w) = min_v f(v) + (beta/2) ||w - v||^2, in ISRL-DP (Lowy & Razaviyayn 2023). The letters of the formulas
are those of `tacit.theory.isrl_dp`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tacit.errors import positive, unknown_name
from tacit.theory.isrl_dp.problem import Problem


def smoothing(problem: Problem, setting: str) -> float:
    """The beta of the envelope: in setting "iid" that of Theorem D.2, in setting "erm" that of Theorem F.2.

    D.2: L sqrt(M) / (D (1/sqrt(n) + p)) convex, mu M / (1/n + p^2) strongly, with p = sqrt(d ln1d)/(epsilon n).
    F.2: L sqrt(M) epsilon n/(D sqrt(d)) convex, mu M (epsilon n)^2/d strongly. Section 3 has no such result.

    >>> p = Problem(clients=4, records=10, dim=25, epsilon=1.0, delta=0.1)
    >>> smoothing(p, "erm")
    4.0
    """
    if setting not in ("iid", "erm"):
        raise unknown_name("setting with a result for losses that are not smooth", setting, ("iid", "erm"))
    n, m = problem.records, problem.reporting
    if setting == "erm":
        private, statistical = math.sqrt(problem.dim) / (problem.epsilon * n), 0.0
    else:
        private, statistical = problem.privacy_cost, 1 / math.sqrt(n)
    if problem.is_strongly_convex:
        return problem.strong_convexity * m / (statistical**2 + private**2)
    return problem.lipschitz * math.sqrt(m) / (problem.diameter * (statistical + private))


def smoothed(problem: Problem, beta: float) -> Problem:
    """The problem of the envelope: beta-smooth, as Lipschitz as before, strongly convex with mu beta/(mu+beta).

    Lemma D.7 has 2L for the Lipschitz constant, for which the noise of Theorems D.2 and F.2 would be half of
    what their own proof asks. L holds: the envelope's slope beta (w - v) at w is at most L long, because moving
    v towards w cannot pay. The theorems keep mu for the envelope, which is less curved than that.

    >>> p = Problem(clients=4, records=10, dim=25, epsilon=1.0, delta=0.1, strong_convexity=0.5)
    >>> smoothed(p, 0.5).strong_convexity
    0.25
    """
    mu = problem.strong_convexity
    return replace(problem, smoothness=positive("beta", beta), strong_convexity=mu * beta / (mu + beta))


def smoothing_loss(problem: Problem, beta: float) -> float:
    """What the envelope costs, at most (Lemma D.7): L^2/(2 beta).

    >>> smoothing_loss(Problem(clients=4, records=10, dim=25, epsilon=1.0, delta=0.1), 4.0)
    0.125
    """
    return problem.lipschitz**2 / (2 * positive("beta", beta))
