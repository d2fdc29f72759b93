"""The noise of ISRL-DP (Lowy & Razaviyayn 2023) as published: for comparison only.

tacit derives its noise by exact accounting, which needs much less. The letters of the formulas are those of
`tacit.theory.isrl_dp`.
"""

from __future__ import annotations

import math

from tacit.errors import RequestError, count, positive
from tacit.theory.checks import ROUND_OFF, below_one


def _at_most(epsilon: float, limit: float, theorem: str) -> float:
    if positive("epsilon", epsilon) > limit * (1 + ROUND_OFF):
        raise RequestError(f"epsilon must be at most {limit:.6g} at this delta ({theorem}), not {epsilon!r}")
    return epsilon


def resampled_noise_std(*, lipschitz: float, records: int, rounds: int, epsilon: float, delta: float) -> float:
    """The noise of Theorems D.1 (Noisy MB-SGD) and F.1 (Accelerated Noisy MB-SGD on empirical risk).

    s^2 = 256 L^2 R ln(2.5 R/delta) ln(2/delta) / (n epsilon)^2, for epsilon <= 2 ln(2/delta) and a batch of at
    least `smallest_batch`. It is safe, with 16 to 36 times the standard deviation that is needed.

    >>> round(resampled_noise_std(lipschitz=1.0, records=1000, rounds=50, epsilon=1.0, delta=1e-5), 3)
    1.598
    """
    below_one("delta", delta)
    _at_most(epsilon, 2 * math.log(2 / delta), "Theorem D.1")
    logs = math.log(2.5 * count("rounds", rounds) / delta) * math.log(2 / delta)
    return (
        16 * positive("lipschitz", lipschitz) * math.sqrt(rounds * logs) / (count("records", records) * epsilon)
    )


def smallest_batch(*, records: int, rounds: int, epsilon: float, delta: float) -> float:
    """The smallest batch of Theorems D.1 and F.1, as a real number: epsilon n / (4 sqrt(2 R ln(2/delta))).

    It exceeds `records` if there are fewer than epsilon^2 / (32 ln(2/delta)) rounds.

    >>> round(smallest_batch(records=1000, rounds=50, epsilon=1.0, delta=1e-5), 2)
    7.16
    """
    root = math.sqrt(2 * count("rounds", rounds) * math.log(2 / below_one("delta", delta)))
    return positive("epsilon", epsilon) * count("records", records) / (4 * root)


def experiment_noise_std(
    *, lipschitz: float, records: int, rounds: int, epsilon: float, delta: float, local_steps: int = 1
) -> float:
    """The noise of the authors' experiments (appendix I). NOT private as labelled: for comparison only.

    s^2 = 8 L^2 R ln(1/delta) / (n epsilon)^2; for Local SGD, which takes K steps per round, R K replaces R. The
    label is false for the scheme it was used with (batches with replacement, one record replaced) from epsilon 6
    on MNIST, 3 on the insurance data, and 9 on the obesity data.

    >>> round(experiment_noise_std(lipschitz=1.0, records=1000, rounds=50, epsilon=1.0, delta=1e-5), 4)
    0.0679
    """
    steps = count("rounds", rounds) * count("local_steps", local_steps)
    scale = positive("lipschitz", lipschitz) / (count("records", records) * positive("epsilon", epsilon))
    return scale * math.sqrt(-8 * steps * math.log(below_one("delta", delta)))


def experiment_batch(*, records: int, rounds: int, epsilon: float) -> float:
    """The batch of the authors' experiments (appendix I), as a real number: n sqrt(epsilon) / (2 sqrt(R)).

    >>> experiment_batch(records=1000, rounds=25, epsilon=1.0)
    100.0
    """
    return count("records", records) * math.sqrt(positive("epsilon", epsilon) / (4 * count("rounds", rounds)))
