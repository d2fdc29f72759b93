"""Chooses a client's sampling rate: the cheapest one whose noise is close to the least possible."""

from __future__ import annotations

import math
from functools import lru_cache

from tacit.privacy import Target, calibrate_noise
from tacit.privacy.events import gaussian, poisson, repeated

RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The sampling rates to choose from."""

_NEXT_TO_LEAST = 1.02


@lru_cache(maxsize=256)
def thrifty_rate(records: int, rounds: int, target: Target) -> float:
    """The smallest sampling rate whose noise on the mean is within 2% of the least: more records gain nothing.

    Guarantee: the noise at each rate is the exact accountant's for `rounds` rounds of Poisson samples.

    >>> thrifty_rate(6000, 150, Target(1.0, 1e-3))
    0.05
    """
    least, chosen = math.inf, RATES[-1]
    for rate in reversed(RATES):
        noise = mean_noise(rate, records, rounds, target)
        if noise > _NEXT_TO_LEAST * least:
            # The fewer records are drawn, the more noise their mean needs: smaller rates are not asked for.
            break
        least, chosen = min(least, noise), rate
    return chosen


@lru_cache(maxsize=256)
def mean_noise(rate: float, records: int, rounds: int, target: Target) -> float:
    """The noise on the mean of Poisson samples of `records` records, relative to the bound on one."""
    noise = calibrate_noise(
        lambda z: repeated(poisson(rate, z) if rate < 1 else gaussian(z), rounds),
        epsilon=target.epsilon,
        delta=target.delta,
        adjacency=target.adjacency,
    )
    return noise / (rate * records)
