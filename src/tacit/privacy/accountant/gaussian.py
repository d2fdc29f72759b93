"""The Gaussian mechanism in closed form: exact for full batches and for a single pass over the data.

A shift is the distance by which the record moves the mean, in standard deviations of the noise. Several Gaussian
releases equal one release whose squared shift is the sum of theirs. If the shift is random and revealed to the
adversary, delta is the average of the deltas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr

_SAFE_SIDE = 1e-12
"""Relative amount by which epsilon is rounded up, well above the error of `log_ndtr`."""


def log_delta(shifts: Sequence[float], weights: Sequence[float], epsilon: float) -> float:
    """log of the mean over the shifts of Phi(s/2 - e/s) - exp(e) Phi(-s/2 - e/s) (Balle & Wang 2018, Thm 8).

    >>> round(math.exp(log_delta([1.0], [1.0], 1.0)), 6)
    0.126937
    """
    s, w = np.asarray(shifts, dtype=float), np.asarray(weights, dtype=float)
    s, w = s[(s > 0) & (w > 0)], w[(s > 0) & (w > 0)]
    if not len(s):
        return -math.inf
    upper = log_ndtr(s / 2 - epsilon / s)
    lower = epsilon + log_ndtr(-s / 2 - epsilon / s)
    with np.errstate(divide="ignore"):
        return float(np.logaddexp.reduce(np.log(w) + upper + np.log(-np.expm1(np.minimum(lower - upper, 0.0)))))


def epsilon(shifts: Sequence[float], weights: Sequence[float], log_target: float) -> float:
    """The smallest epsilon whose delta is at most exp(`log_target`), rounded up.

    >>> round(epsilon([0.5], [1.0], math.log(1e-5)), 4)
    1.9931
    """
    if log_delta(shifts, weights, 0.0) <= log_target:
        return 0.0
    low, high = 0.0, max(shifts) * (1 + max(shifts) / 2)
    while log_delta(shifts, weights, high) > log_target:
        low, high = high, 2 * high
    while high - low > _SAFE_SIDE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if log_delta(shifts, weights, middle) > log_target else (low, middle)
    return high * (1 + _SAFE_SIDE)
