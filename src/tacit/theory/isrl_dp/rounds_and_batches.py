"""R and K of Theorems 2.1, 3.1, 4.1, 5.1 and 5.2 of ISRL-DP (Lowy & Razaviyayn 2023), as real numbers.

As printed, up to the corrections that the docstrings name; constants that the paper leaves out are 1. The
letters of the formulas are those of `tacit.theory.isrl_dp`.
"""

from __future__ import annotations

import math

from tacit.errors import count, unknown_name
from tacit.theory.isrl_dp.problem import Problem
from tacit.theory.soteriafl.checks import batch_size


def theorem_2_1_rounds(problem: Problem, setting: str = "iid") -> float:
    """R of Theorem 2.1 (Theorem D.1), Noisy MB-SGD.

    Convex: (beta D sqrt(M)/L) min{sqrt(n), epsilon n/sqrt(d)} + min{nM, (epsilon n)^2 M/d}. Strongly convex:
    max{ 2 kappa ln(beta D^2 mu M (epsilon n)^2/(d L^2)), min{nM, (epsilon n)^2 M/d} }. In setting "erm" nothing
    has to generalise, and both minima are their second entries (Lemma D.6; its logarithm has D for D^2).

    >>> theorem_2_1_rounds(Problem(clients=4, records=100, dim=25, epsilon=1.0, delta=0.1, smoothness=1.0))
    420.0
    """
    if setting not in ("iid", "erm"):
        raise unknown_name("setting with batches that are drawn again", setting, ("iid", "erm"))
    n, m = problem.records, problem.reporting
    private = problem.epsilon * n / math.sqrt(problem.dim)
    useful = private if setting == "erm" else min(math.sqrt(n), private)
    if setting == "erm" and problem.smoothness is None:
        return useful**2 * m
    if problem.is_strongly_convex:
        risk = (problem.lipschitz / private) ** 2 / (problem.strong_convexity * m)
        descent = 2 * problem.condition_number * math.log(problem.smooth * problem.diameter**2 / risk)
        return max(descent, useful**2 * m)
    descent = problem.smooth * problem.diameter * math.sqrt(m) / problem.lipschitz * useful
    return descent + useful**2 * m


def theorem_3_1_batch(problem: Problem) -> float:
    """K of Theorem 3.1 (Theorem E.1), One-Pass Accelerated Noisy MB-SGD; R is n/K.

    Convex: (L/(beta D))^(2/5) n^(3/5) (d ln1d)^(1/5) / (epsilon^(2/5) M^(1/5)). Strongly convex:
    n / (sqrt(kappa) ln(Delta/risk)), with the risk of `theorem_3_1_target` and the logarithm kept above 1.
    Both can fall outside [1, n].

    >>> p = Problem(clients=1, records=32, dim=1, epsilon=1.0, delta=1 / math.e, smoothness=1.0)
    >>> round(theorem_3_1_batch(p), 6)
    8.0
    """
    if problem.is_strongly_convex:
        return _one_pass_batch(problem, math.log(problem.gap / theorem_3_1_target(problem)))
    return _balanced_batch(problem, problem.privacy_cost / math.sqrt(problem.reporting))


def theorem_3_1_target(problem: Problem) -> float:
    """The risk at which Theorem 3.1's strongly convex run stops descending, without the factor sqrt(kappa).

    max{ L^2 d ln1d/(mu (epsilon n)^2 M), phi^2/(mu n M) }: what stands in the logarithm of its batch.

    >>> p = Problem(clients=4, records=5, dim=1, epsilon=1.0, delta=0.1, strong_convexity=0.5, smoothness=1.0)
    >>> theorem_3_1_target(p)
    0.1
    """
    private = (problem.lipschitz * problem.privacy_cost) ** 2
    return max(private, problem.phi**2 / problem.records) / (problem.strong_convexity * problem.reporting)


def theorem_4_1_rounds(problem: Problem, *, batch: int) -> float:
    """R of Theorem 4.1 (Theorem F.1), Accelerated Noisy MB-SGD on empirical risk, for a smooth loss.

    Convex: sqrt((beta D/L) epsilon n sqrt(M)/sqrt(d ln1d)). Strongly convex:
    sqrt(kappa) ln(Delta mu M (epsilon n)^2/(L^2 d)). In both cases at least (epsilon n)^2/(K d ln1d), unless
    every round sees every record (M = N and K = n).

    The convex R is printed with sqrt(beta D/L) under the root. That neither balances the proof's terms
    beta D^2/R^2 and L D sqrt(d ln1d)/(epsilon n sqrt(M)), nor gives the R of Theorem F.2 from this one.

    >>> p = Problem(clients=1, records=100, dim=1, epsilon=1.0, delta=1 / math.e, smoothness=0.25)
    >>> theorem_4_1_rounds(p, batch=100)
    5.0
    """
    k = batch_size(batch, problem.records)
    n, m, cost = problem.records, problem.reporting, problem.privacy_cost
    sampled = m * k < problem.clients * n
    sampling = 1 / (k * cost**2) if sampled else 0.0
    if problem.is_strongly_convex:
        descent = math.sqrt(problem.condition_number) * math.log(problem.gap / theorem_4_1_target(problem))
    else:
        reach = problem.smooth * problem.diameter / problem.lipschitz
        descent = math.sqrt(reach * math.sqrt(m) / cost)
    return max(descent, sampling)


def theorem_4_1_target(problem: Problem) -> float:
    """The risk in the logarithm of Theorem 4.1's strongly convex rounds: L^2 d/(mu M (epsilon n)^2).

    >>> p = Problem(clients=4, records=5, dim=10, epsilon=1.0, delta=0.1, strong_convexity=0.5, smoothness=1.0)
    >>> round(theorem_4_1_target(p), 6)
    0.2
    """
    private = (problem.lipschitz / (problem.epsilon * problem.records)) ** 2 * problem.dim
    return private / (problem.strong_convexity * problem.reporting)


def theorem_5_1_rounds(problem: Problem) -> float:
    """R of Theorem 5.1 (Theorem G.1), shuffled Noisy MB-SGD with K = 1; epsilon is the shuffled one.

    max{ (n N epsilon)^2/M, N/M, min{nM, (epsilon n N)^2/d}, descent }, where the descent of a convex loss is
    (beta D/L) min{sqrt(nM), epsilon n N/sqrt(d)}, of a strongly convex one
    8 kappa ln(beta D^2 mu (epsilon n N)^2/(d L^2)).

    The third entry is printed as min{n, (epsilon n N)^2/(dM)}, M times less, which rests on the second moment
    L^2/M that `second_moment` corrects: with n rounds the term L D/sqrt(R) would be L D/sqrt(n).

    >>> theorem_5_1_rounds(Problem(clients=4, records=25, dim=4, epsilon=0.1, delta=0.1, smoothness=1.0))
    25.0
    """
    n, m, clients = problem.records, problem.reporting, problem.clients
    pooled = problem.epsilon * n * clients
    private = pooled / math.sqrt(problem.dim)
    useful = min(math.sqrt(n * m), private)
    if problem.is_strongly_convex:
        risk = (problem.lipschitz / private) ** 2 / problem.strong_convexity
        descent = 8 * problem.condition_number * math.log(problem.smooth * problem.diameter**2 / risk)
    else:
        descent = problem.smooth * problem.diameter / problem.lipschitz * useful
    return max(pooled**2 / m, clients / m, useful**2, descent)


def theorem_5_2_batch(problem: Problem) -> float:
    """K of Theorem 5.2 (Theorem G.2), the shuffled one-pass algorithm; R is n/K, epsilon the shuffled one.

    Convex: (L/(beta D))^(2/5) n^(3/5) d^(1/5) ln(d/delta)^(2/5) / (epsilon M)^(2/5). Strongly convex:
    n / (sqrt(kappa) ln(Delta/risk)), risk max{ L^2 d ln(d/delta)^2/(mu (epsilon n M)^2), phi^2/(mu n M) }.

    Printed with ln(1/delta_0) in both, while the variance that it balances, of Lemma G.1, has ln(d/delta)^2.

    >>> p = Problem(clients=1, records=32, dim=1, epsilon=1.0, delta=1 / math.e, smoothness=1.0)
    >>> round(theorem_5_2_batch(p), 6)
    8.0
    """
    private = shuffled_privacy_cost(problem)
    if not problem.is_strongly_convex:
        return _balanced_batch(problem, private)
    statistical = problem.phi**2 / (problem.records * problem.reporting)
    risk = max((problem.lipschitz * private) ** 2, statistical) / problem.strong_convexity
    return _one_pass_batch(problem, math.log(problem.gap / risk))


def shuffled_privacy_cost(problem: Problem) -> float:
    """sqrt(d) ln(d/delta)/(epsilon n M): what `Problem.privacy_cost` is to the shuffled one-pass algorithm.

    >>> shuffled_privacy_cost(Problem(clients=5, records=2, dim=1, epsilon=1.0, delta=1 / math.e))
    0.1
    """
    logs = math.log(problem.dim / problem.delta)
    return math.sqrt(problem.dim) * logs / (problem.epsilon * problem.records * problem.reporting)


def disjoint_batches(records: int, batch: float) -> tuple[int, int]:
    """A batch that can be run once over the records, and its rounds: K rounded up into [1, n], R = floor(n/K).

    >>> disjoint_batches(100, 29.5), disjoint_batches(100, 1e9), disjoint_batches(100, 0.01)
    ((30, 3), (100, 1), (1, 100))
    """
    k = max(1, math.ceil(min(count("records", records), batch)))
    return k, records // k


def _balanced_batch(problem: Problem, private: float) -> float:
    """The K at which beta D^2 K^2/n^2 equals L D private sqrt(n/K)."""
    ratio = problem.lipschitz * private / (problem.smooth * problem.diameter)
    return float(problem.records * ratio**0.4)


def _one_pass_batch(problem: Problem, log_of_gain: float) -> float:
    return problem.records / (math.sqrt(problem.condition_number) * max(1.0, log_of_gain))
