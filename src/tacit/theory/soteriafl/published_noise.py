"""The noise of SoteriaFL (Li et al. 2022) as published, Theorems 2 and 4: for comparison only.

The letters of the formulas are those of `tacit.theory.soteriafl`.
"""

from __future__ import annotations

import math

from tacit.errors import count, positive, unknown_name
from tacit.theory.checks import batch_size, below_one

AS_PUBLISHED = {
    "cdp-sgd": (8.0, 1.0),
    "ldp-sgd": (8.0, 1.0),
    "soteriafl-gd": (48.0, 0.25),
    "soteriafl-sgd": (48.0, 0.25),
    "soteriafl-svrg": (48.0, 2.0),
    "soteriafl-saga": (48.0, 2.0),
    "ldp-svrg": (48.0, 2.0),
}
"""For each algorithm, the open constant c as set in the authors' experiments, and noise_gain / G^2."""


def published_noise_std(
    algorithm: str,
    *,
    gradient_bound: float,
    records: int,
    rounds: int,
    epsilon: float,
    delta: float,
) -> float:
    """The noise of Theorems 2 and 4 as published. NOT private as labelled: for comparison only.

    s^2 = c g T ln1d / (m epsilon)^2 with g = G^2 for CDP-SGD and LDP-SGD (Theorem 4) and g = G_A^2/4 + G_B^2
    for the others (Theorem 2, eq. 4). The paper leaves c open; here it is that of the authors'
    experiments, 8 and 48: s^2 is 8, 12 (SoteriaFL-SGD) or 96 (the SVRG kind) times
    G^2 T ln1d / (m epsilon)^2. This is what the proofs give with lambda (lambda + 1) <= 2 lambda^2 and every
    higher-order term dropped, which needs `amplification_excess` below 1; the experiments had 15 to 4,000.

    >>> s = published_noise_std(
    ...     "soteriafl-sgd", gradient_bound=1.0, records=10, rounds=1, epsilon=1.0, delta=math.exp(-1))
    >>> round(s**2, 6)
    0.12
    """
    if algorithm not in AS_PUBLISHED:
        raise unknown_name("algorithm", algorithm, AS_PUBLISHED)
    constant, gain = AS_PUBLISHED[algorithm]
    log_term = -math.log(below_one("delta", delta))
    scale = positive("gradient_bound", gradient_bound) / (
        count("records", records) * positive("epsilon", epsilon)
    )
    return scale * math.sqrt(constant * gain * count("rounds", rounds) * log_term)


def amplification_excess(epsilon: float, *, batch: int, records: int, rounds: int) -> float:
    """The factor by which a setting violates the condition of Theorems 2 and 4, epsilon < c' q^2 T.

    At 1 and above, the theorems promise nothing. The paper leaves c' open; here it is 1.

    >>> round(amplification_excess(1.0, batch=10, records=3256, rounds=25))  # the paper's a9a, epsilon 1
    4241
    """
    q = batch_size(batch, records) / records
    return positive("epsilon", epsilon) / (q**2 * count("rounds", rounds))
