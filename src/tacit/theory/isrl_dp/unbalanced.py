"""Silos of different sizes and different privacy needs: appendix H of ISRL-DP (Lowy & Razaviyayn 2023).

The letters of the formulas are those of `tacit.theory.isrl_dp`; n is the size of the smallest silo.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tacit.errors import RequestError, count, positive
from tacit.theory.isrl_dp.problem import Problem
from tacit.theory.isrl_dp.published_noise import resampled_noise_std, smallest_batch
from tacit.theory.soteriafl.checks import ROUND_OFF, below_one, not_negative


@dataclass(frozen=True, kw_only=True)
class Silo:
    """One silo's records and what it asks for."""

    records: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        count("records", self.records)
        positive("epsilon", self.epsilon)
        below_one("delta", self.delta)

    def noise_std(self, *, lipschitz: float, rounds: int) -> float:
        """s_i of Theorem H.1: the noise of Theorem D.1 with the silo's own n_i, epsilon_i and delta_i."""
        return resampled_noise_std(
            lipschitz=lipschitz, records=self.records, rounds=rounds, epsilon=self.epsilon, delta=self.delta
        )

    def privacy_weight(self, rounds: int) -> float:
        """xi_i of appendix H.1: ln(2.5 R/delta_i) ln(2/delta_i) / (n_i epsilon_i)^2, so s_i^2 = 256 L^2 R xi_i.

        >>> round(Silo(records=100, epsilon=1.0, delta=1e-5).privacy_weight(50), 6)
        0.019946
        """
        logs = math.log(2.5 * count("rounds", rounds) / self.delta) * math.log(2 / self.delta)
        return logs / (self.records * self.epsilon) ** 2


def silo_batches(silos: Sequence[Silo], *, rounds: int) -> tuple[int, ...]:
    """K_i of Theorem H.1: the same share of every silo's records, large enough for each silo's own guarantee.

    The theorem prints K_i >= epsilon_i n/(4 sqrt(2 R ln(2/delta_i))); as in Theorem D.1 it is n_i.

    >>> silo_batches([Silo(records=n, epsilon=1.0, delta=1e-5) for n in (100, 1000)], rounds=50)
    (1, 8)
    """
    _some(silos)
    share = max(
        smallest_batch(records=s.records, rounds=rounds, epsilon=s.epsilon, delta=s.delta) / s.records
        for s in silos
    )
    if share > 1 + ROUND_OFF:
        raise RequestError(
            f"rounds must be at least {math.ceil(rounds * share**2)} for Theorem H.1, not {rounds!r}"
        )
    return tuple(min(s.records, math.ceil(share * s.records)) for s in silos)


def noise_load(silos: Sequence[Silo], *, rounds: int, cohort_law: Mapping[int, float] | None = None) -> float:
    """min{ Xi/M', xi_max/M } of Theorem H.1: the silos' privacy weights, as the risk bound sees them.

    `cohort_law` gives the probability of each number of reporting silos, by default all of them always.
    1/M = E 1/M_r, 1/M'^2 = E 1/M_r^2, Xi^2 = E (mean of the M_r largest xi_i)^2.

    >>> p = [Silo(records=100, epsilon=1.0, delta=1e-5)] * 4
    >>> round(noise_load(p, rounds=50), 6)
    0.004987
    """
    law = _law(len(_some(silos)), cohort_law)
    weights = sorted((s.privacy_weight(rounds) for s in silos), reverse=True)
    average = math.sqrt(sum(p * (sum(weights[:m]) / m) ** 2 for m, p in law.items()))
    by_average = average * math.sqrt(sum(p / m**2 for m, p in law.items()))
    return min(by_average, weights[0] * sum(p / m for m, p in law.items()))


def mean_noise_load(
    silos: Sequence[Silo], *, rounds: int, cohort_law: Mapping[int, float] | None = None
) -> float:
    """What the load really is: (mean of all xi_i)/M, never more than `noise_load`.

    A cohort is uniformly random (Assumption 2), so on average a reporting silo is an average silo. The paper
    takes the noisiest M_r instead.

    >>> p = [Silo(records=n, epsilon=1.0, delta=1e-5) for n in (100, 1000)]
    >>> mean_noise_load(p, rounds=50, cohort_law={1: 1.0}) < 0.51 * noise_load(p, rounds=50, cohort_law={1: 1.0})
    True
    """
    law = _law(len(_some(silos)), cohort_law)
    mean = sum(s.privacy_weight(rounds) for s in silos) / len(silos)
    return mean * sum(p / m for m, p in law.items())


def unbalanced_rounds(problem: Problem, *, load: float) -> float:
    """R of Theorem H.1, as a real number, for a load x.

    Convex: (beta D/L) min{sqrt(nM), 1/sqrt(d x)} + min{nM, 1/(d x)}, where the paper prints sqrt(d x) in the
    first minimum: the larger the noise the fewer rounds are worth it, as in the second. Strongly convex:
    2 kappa ln(beta mu D^2/(L^2 d x)) + nM.

    >>> p = Problem(clients=4, records=25, dim=4, epsilon=1.0, delta=0.1, smoothness=1.0)
    >>> unbalanced_rounds(p, load=0.01)
    30.0
    """
    pooled = problem.records * problem.reporting
    noise = problem.dim * positive("load", load)
    if problem.is_strongly_convex:
        gain = problem.smooth * problem.strong_convexity * (problem.diameter / problem.lipschitz) ** 2 / noise
        return max(0.0, 2 * problem.condition_number * math.log(gain)) + pooled
    useful = min(math.sqrt(pooled), 1 / math.sqrt(noise))
    return problem.smooth * problem.diameter / problem.lipschitz * useful + useful**2


def unbalanced_upper_bound(problem: Problem, *, load: float) -> float:
    """The order of the excess risk of Theorem H.1: L D (1/sqrt(nM) + sqrt(d x)), or (L^2/mu) (1/(nM) + d x).

    >>> p = Problem(clients=4, records=25, dim=4, epsilon=1.0, delta=0.1)
    >>> unbalanced_upper_bound(p, load=0.01)
    0.30000000000000004
    """
    statistical = 1 / (problem.records * problem.reporting)
    noise = problem.dim * not_negative("load", load)
    if problem.is_strongly_convex:
        return problem.lipschitz**2 / problem.strong_convexity * (statistical + noise)
    return problem.trivial_risk * (math.sqrt(statistical) + math.sqrt(noise))


def _some(silos: Sequence[Silo]) -> Sequence[Silo]:
    if not silos:
        raise RequestError("silos must hold at least one silo")
    return silos


def _law(clients: int, cohort_law: Mapping[int, float] | None) -> Mapping[int, float]:
    if cohort_law is None:
        return {clients: 1.0}
    for size, share in cohort_law.items():
        if count("cohort", size) > clients or not_negative("cohort_law", share) > 1:
            raise RequestError(
                f"cohort_law must map sizes from 1 to {clients} to probabilities, not {size!r} to {share!r}"
            )
    if abs(sum(cohort_law.values()) - 1) > ROUND_OFF:
        raise RequestError(f"cohort_law must add up to 1, not {sum(cohort_law.values())!r}")
    return cohort_law
