"""Figure 3 of ISRL-DP (Lowy & Razaviyayn 2023) in numbers: the risks that are reached, and the lower bounds.

These are orders, with constant 1 and the logarithms that the theorems keep. The letters of the formulas are those
of `tacit.theory.isrl_dp`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tacit.errors import RequestError, count
from tacit.theory.isrl_dp.problem import ConvexProblem, check_setting


@dataclass(frozen=True)
class Figure3Row:
    """One line of Figure 3: the excess risk that the paper's algorithm reaches, and the lower bound."""

    privacy: str
    setting: str
    loss: str
    upper: float
    lower: float


def figure_3(problem: ConvexProblem) -> list[Figure3Row]:
    """Figure 3 in numbers: `upper_bound` and `lower_bound` in every setting that applies to the problem.

    Strongly convex rows need mu > 0, and rows for unlike silos a smooth loss. For the shuffled rows, (epsilon,
    delta) is the shuffled guarantee.

    >>> p = ConvexProblem(clients=100, records=1000, dim=10, epsilon=1.0, delta=1e-6, smoothness=1.0)
    >>> [(row.setting, round(row.upper / row.lower, 1)) for row in figure_3(p) if row.privacy == "isrl"]
    [('iid', 1.2), ('non-iid', 2.4), ('erm', 3.7)]
    """
    convex = replace(problem, strong_convexity=0.0)
    return [
        Figure3Row(
            "shuffle" if shuffled else "isrl",
            setting,
            "strongly convex" if posed.is_strongly_convex else "convex",
            upper_bound(setting, posed, shuffled=shuffled),
            lower_bound(setting, posed, shuffled=shuffled),
        )
        for shuffled in (False, True)
        for setting in ("iid", "non-iid", "erm")
        if not (shuffled and setting == "erm") and not (setting == "non-iid" and problem.smoothness is None)
        for posed in dict.fromkeys((convex, problem))
    ]


def upper_bound(setting: str, problem: ConvexProblem, *, shuffled: bool = False) -> float:
    """The order of the excess risk that the paper's algorithm reaches.

    "iid", Theorem 2.1: L D/sqrt(M) (1/sqrt(n) + p), strongly convex (L^2/(mu M)) (1/n + p^2), where p is
    sqrt(d ln1d)/(epsilon n). "erm", Theorem 4.1: the same without 1/n. "non-iid", Theorem 3.1 (E.1 for M < N):
    phi D/sqrt(nM) + (beta^(1/4) L D^(3/2) p/sqrt(M))^(4/5) + (absent silos), strongly convex phi^2/(mu nM) +
    sqrt(kappa) L^2 p^2/(mu M) + (absent silos); eq. 31 lacks the mu of its first term. Shuffled, Theorems 5.1 and
    5.2 (G.2): p is sqrt(d ln1d)/(epsilon n N) and sqrt(d) ln(d/delta)/(epsilon n M) in the place of p/sqrt(M);
    eq. 11 lacks a mu, eqs. 10 and 11 some logarithm.

    >>> p = ConvexProblem(clients=4, records=100, dim=25, epsilon=1.0, delta=1 / math.e)
    >>> upper_bound("erm", p), upper_bound("iid", p, shuffled=True)
    (0.025, 0.0625)
    """
    check_setting(setting)
    if setting == "non-iid":
        return _unlike_silos(problem, shuffled)
    if shuffled and setting == "erm":
        raise RequestError("setting 'erm' has no shuffled result in the paper; use 'iid' or 'non-iid'")
    private = problem.privacy_cost / (problem.clients if shuffled else math.sqrt(problem.reporting))
    statistical = 0.0 if setting == "erm" else 1 / math.sqrt(problem.records * problem.reporting)
    if problem.is_strongly_convex:
        return problem.lipschitz**2 / problem.strong_convexity * (statistical**2 + private**2)
    return problem.trivial_risk * (statistical + private)


def _unlike_silos(problem: ConvexProblem, shuffled: bool) -> float:
    n, m, d = problem.records, problem.reporting, problem.diameter
    logs = math.log(problem.dim / problem.delta)
    private = math.sqrt(problem.dim) * logs / (problem.epsilon * n * m)
    if not shuffled:
        private = problem.privacy_cost / math.sqrt(m)
    absent = math.sqrt(problem.absence / m) * problem.upsilon
    if problem.is_strongly_convex:
        mu, root = problem.strong_convexity, math.sqrt(problem.condition_number)
        return (problem.phi**2 / (n * m) + root * (problem.lipschitz * private) ** 2 + absent**2 / root) / mu
    # K/n of Theorems 3.1 and 5.2, where beta D^2 K^2/n^2 equals L D private sqrt(n/K). The printed rate is both
    # of these terms where such a batch exists; otherwise it is the larger one.
    balanced = float((problem.lipschitz * private / (problem.smooth * d)) ** 0.4)
    share = min(1.0, max(1 / n, balanced))
    descent = problem.smooth * (d * share) ** 2
    noise = problem.trivial_risk * private / math.sqrt(share)
    return problem.phi * d / math.sqrt(n * m) + max(descent, noise) + absent * d * math.sqrt(share)


def lower_bound(setting: str, problem: ConvexProblem, *, shuffled: bool = False) -> float:
    """The order of the excess risk that no private algorithm beats on every problem of this kind, for M = N.

    "iid", Theorem 2.2: phi D/sqrt(nN) + L D min{1, x/C^2}, strongly convex phi^2/(mu nN) + L D min{1, x^2/C^4},
    where x = sqrt(d)/(epsilon n sqrt(N)) and C = 1. "erm", Theorem 4.2 (F.3): the second terms. "non-iid": the
    same as "iid" with the C^2 = R of the one-pass algorithm, (beta D/(L x))^(2/5), strongly convex sqrt(kappa)
    (appendix D.3.3). Shuffled: Bassily et al. (2019), x = sqrt(d)/(epsilon n N) and C = 1.

    It is a worst case over losses and data, and hides logarithms; `unmet_conditions` lists what it requires of
    the problem.

    >>> p = ConvexProblem(clients=4, records=100, dim=25, epsilon=1.0, delta=1 / math.e)
    >>> lower_bound("erm", p), lower_bound("iid", p, shuffled=True)
    (0.025, 0.0625)
    """
    check_setting(setting)
    if shuffled and setting == "erm":
        raise RequestError("setting 'erm' has no shuffled result in the paper; use 'iid' or 'non-iid'")
    crowd = problem.clients if shuffled else math.sqrt(problem.clients)
    x = math.sqrt(problem.dim) / (problem.epsilon * problem.records * crowd)
    if setting == "non-iid" and not shuffled:
        x /= _compositionality(problem, x)
    pooled = problem.records * problem.clients
    if problem.is_strongly_convex:
        statistical = problem.phi**2 / (problem.strong_convexity * pooled)
        private = min(1.0, x**2)
    else:
        statistical = problem.phi * problem.diameter / math.sqrt(pooled)
        private = min(1.0, x)
    return (0.0 if setting == "erm" else statistical) + problem.trivial_risk * private


def _compositionality(problem: ConvexProblem, x: float) -> float:
    if problem.is_strongly_convex:
        return math.sqrt(problem.condition_number)
    return max(1.0, float((problem.smooth * problem.diameter / (problem.lipschitz * x)) ** 0.4))


def unmet_conditions(problem: ConvexProblem, *, rounds: int | None = None) -> tuple[str, ...]:
    """The conditions of Theorems 2.2 and 4.2 that this problem does not meet; if empty, the lower bound applies.

    With `rounds`, also checks the condition on a single round, epsilon_r <= 1/n, for noise that advanced
    composition splits evenly, as in Theorem D.1: epsilon_r = epsilon/(2 sqrt(2 R ln(2/delta))).

    >>> unmet_conditions(ConvexProblem(clients=4, records=100, dim=25, epsilon=3.0, delta=1e-6))
    ('epsilon <= sqrt(clients)', 'clients >= 16 ln(2 / (delta records))')
    """
    n, clients, delta = problem.records, problem.clients, problem.delta
    conditions = {
        "epsilon <= sqrt(clients)": problem.epsilon <= math.sqrt(clients),
        "delta < 1 / (clients records)": delta * n * clients < 1,
        "clients >= 16 ln(2 / (delta records))": clients >= 16 * math.log(2 / (delta * n)),
        "cohort = clients": problem.reporting == clients,
        "strong_convexity diameter <= lipschitz": problem.strong_convexity * problem.diameter
        <= problem.lipschitz,
    }
    if rounds is not None:
        one_round = problem.epsilon / math.sqrt(8 * count("rounds", rounds) * math.log(2 / delta))
        conditions["epsilon of a round <= 1 / records"] = one_round * n <= 1
    return tuple(name for name, met in conditions.items() if not met)
