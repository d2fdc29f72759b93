"""Proof that coins on randomly rounded numbers are as good as Gaussian noise.

A number v is rounded to one of its two whole neighbours, without bias, and the heads of m fair coins are added.
Let b and F be masses and distribution function of the heads, I(u) = phi(Phi^-1(u)), and

    kappa(m) = max over c of b(c) / min(I(F(c-1)), I(F(c))),

about 1/std = 2/sqrt(m). Claim: for all v and t, no test tells v from v + t better than it tells N(0, 1) from
N(kappa t, 1). So rounding costs nothing: a record's reach is that of the numbers before they are rounded.

Proof. What comes out for v = n + f has the distribution function F_v(c) = (1-f) F(c-n) + f F(c-n-1). Heads are
log-concave, so b(x-1)/b(x) grows with x; the likelihood ratio between v and a larger v' is a monotone function of
it while both lie between the same whole numbers, and such ratios multiply along a chain of them. By Neyman and
Pearson the best tests are then thresholds, and the two errors of the threshold c are F_v'(c) and 1 - F_v(c). The
Gaussian pair with shift mu has a test with the same first error and no larger second one if and only if
Phi^-1(F_v(c)) - Phi^-1(F_v'(c)) <= mu; other tests are mixtures of thresholds, and Gaussian errors are convex.
Along v, Phi^-1(F_v(c)) falls at the rate b(c-n)/I(F_v(c)), where F_v(c) lies between F(c-n-1) and F(c-n), and I
is concave: at most kappa. QED

Far out, coins end where a Gaussian does not. There the heads are compared with ones whose masses go on below some
c_0 (and above m - c_0) as a geometric series, b(c_0) r^j with r = b(c_0)/b(c_0 + 1): log-concave as well, and the
ratio in kappa falls with j, since b(c)/F(c-1) stays the same and u/I(u) grows with u. The two laws differ by at
most the mass of the series, `tail` for both ends together: real draws have at most 1 + tail times their ideal
probability, and ideal ones at most that of real ones plus tail. What that costs is in `inexact`.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from tacit._deferred import stats

_SAFE_SIDE = 1 + 1e-9
"""Relative allowance for floating point, orders of magnitude above its errors."""

_LEAST_MASS = 1e-200
"""Masses below about 1e-300 underflow to zero; tails that small are not needed."""


def gaussian_shift(coins: int, log_tail: float) -> float:
    """kappa of an even number of coins, if both ends together may differ by exp(`log_tail`).

    Infinite if there are too few coins for such a small tail.

    >>> round(gaussian_shift(10_000, math.log(1e-8)) * math.sqrt(10_000) / 2, 3)
    1.053
    """
    # The upper half mirrors the lower one. Beyond `far` the remaining mass is negligible.
    far = 1.5 * -float(special.ndtri_exp(log_tail)) + 8
    heads = np.arange(max(0, math.floor(coins / 2 - far * math.sqrt(coins) / 2)), coins // 2 + 1)
    masses = stats.binom.pmf(heads, coins, 0.5)
    ratios = heads[1:] / (coins - heads[1:] + 1)
    series = masses[:-1] * ratios / (1 - ratios)
    enough = np.flatnonzero((series <= math.exp(log_tail) / 2) & (masses[:-1] > _LEAST_MASS))
    if not len(enough):
        return math.inf
    first = int(enough[-1])
    below = series[first] + np.concatenate(([0.0], np.cumsum(masses[first:-1])))
    isoperimetric = np.exp(-(special.ndtri(below) ** 2) / 2) / math.sqrt(2 * math.pi)
    return float((masses[first:] / isoperimetric).max()) * _SAFE_SIDE
