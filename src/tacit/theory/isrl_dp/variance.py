"""How noisy the averaged gradient of a round is: Lemma E.3 of ISRL-DP (Lowy & Razaviyayn 2023).

The letters of the formulas are those of `tacit.theory.isrl_dp`.
"""

from __future__ import annotations

from tacit.theory.isrl_dp.problem import Problem
from tacit.theory.soteriafl.checks import batch_size, not_negative


def gradient_variance(problem: Problem, *, batch: int, noise_std: float, empirical: bool = False) -> float:
    """V^2 of Lemma E.3: E||g_r - grad F||^2 <= phi^2/(MK) + (N-M)/(N-1) v^2/M + d s^2/M.

    For empirical risk phi and v are those of the records at hand, and a batch of all records has no sampling
    variance. Theorem F.1 has 4 L^2/(MK) for the first two terms together, by a lemma on subsets of the pooled
    records. That is not how batches are drawn: with M < N the silos that stay away cost v^2/M however large
    the batch is, so the lemma above stands here instead. It takes batches of fixed size; Poisson batches need
    phi = L.

    >>> p = Problem(clients=4, records=10, dim=5, epsilon=1.0, delta=0.1, lipschitz=2.0)
    >>> [gradient_variance(p, batch=10, noise_std=2.0, empirical=erm) for erm in (False, True)]
    [5.1, 5.0]
    """
    k = batch_size(batch, problem.records)
    whole = empirical and k == problem.records
    sampling = 0.0 if whole else problem.phi**2 / k
    noise = problem.dim * not_negative("noise_std", noise_std) ** 2
    return (sampling + problem.absence * problem.upsilon**2 + noise) / problem.reporting
