"""Lemma 5 of Fed-SPA (Hu et al., after Wang, Balle & Kasiviswanathan 2019): subsampled Renyi privacy.

The letters of the formulas are those of `tacit.theory.fed_spa`. S = sigma'^2 is the noise's variance over the
squared sensitivity: z^2/4 for a replaced record (`squared_sensitivity`), z^2/2 as printed.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, logsumexp

from tacit.errors import count, positive, probability
from tacit.privacy.accounting import check_delta
from tacit.privacy.plain_numbers import batch_of

_MOST_ORDER = 512


def subsampled_rdp(order: int, *, rate: float, spread: float) -> float:
    """The Renyi divergence of one step at a whole order, by the sum of Lemma 5; no condition needed.

    ln(1 + q^2 C(a,2) min{4 (e^r(2) - 1), 2 e^r(2)} + sum_{j=3..a} q^j C(a,j) 2 e^{(j-1) r(j)}) / (a - 1) with
    r(j) = j/(2S), for batches of a fixed size without replacement and one replaced record.

    >>> round(subsampled_rdp(2, rate=0.01, spread=4.0), 7)
    0.0001136
    """
    a, q = count("order", order, at_least=2), probability("rate", rate)
    second = 1 / positive("spread", spread)
    j = np.arange(3, a + 1)
    log_binomials = gammaln(a + 1) - gammaln(j + 1) - gammaln(a - j + 1)
    tail = math.log(2) + j * math.log(q) + log_binomials + (j - 1) * j / (2 * spread)
    log_four, log_two = math.log(4) + _log_expm1(second), math.log(2) + second
    pair = 2 * math.log(q) + math.log(a * (a - 1) / 2) + min(log_four, log_two)
    return float(logsumexp([0.0, pair, *tail])) / (a - 1)


def closed_form_rdp(order: float, *, rate: float, spread: float) -> float:
    """What Theorem 1 uses in place of the sum: 3.5 q^2 alpha / S. Only where the condition of Theorem 1 holds.

    >>> closed_form_rdp(2, rate=0.01, spread=3.5)
    0.0002
    """
    return 3.5 * probability("rate", rate) ** 2 * order / positive("spread", spread)


def rdp_epsilon(noise_multiplier: float, *, records: int, batch: int, steps: int, delta: float) -> float:
    """Theorem 1 as corrected: I tau `subsampled_rdp` at S = z^2/4, plus ln1d/(alpha - 1), at the best alpha.

    Proved for every noise, replace-one and batches of a fixed size, but loose: its terms from q^3 on do not
    vanish as the noise grows. So what Theorem 1 prints is not what its method proves in the paper's settings.
    At the printed noise for epsilon 1 it gives 1.38 on MNIST and 4.57 on CIFAR-10, there at least 4.45 whatever
    the noise; the exact epsilons of the same noise are 0.33 and 0.30 (`tacit.privacy.epsilon`).

    >>> round(rdp_epsilon(9.2911, records=600, batch=10, steps=1500, delta=1e-3), 2)
    1.38
    """
    records, batch = batch_of(records, batch, replacement=False)
    spread, log_term = positive("noise_multiplier", noise_multiplier) ** 2 / 4, -math.log(check_delta(delta))
    rate, times = batch / records, count("steps", steps)
    # Every order is looked at: as a bound, the sum need not grow with it.
    return min(
        times * subsampled_rdp(order, rate=rate, spread=spread) + log_term / (order - 1)
        for order in range(2, _MOST_ORDER + 1)
    )


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))
