"""The exact epsilon of a paper's noise under each reading: Poisson or fixed-size batches, remove or replace."""

from __future__ import annotations

import math

import numpy as np

from tacit._deferred import stats
from tacit.errors import count, positive
from tacit.privacy import Adjacency, calibrate_noise, epsilon
from tacit.privacy.accountant.accounting import check_delta
from tacit.privacy.accountant.dominate import Direction
from tacit.privacy.accountant.grids import EpsilonAt, worst
from tacit.privacy.accountant.pairs import MixturePair
from tacit.privacy.events import gaussian, poisson, repeated, with_replacement, without_replacement

POISSON_ADD_REMOVE = "Poisson, add-remove"
POISSON_REPLACE_ONE = "Poisson, replace-one"
WITHOUT_REPLACEMENT = "without replacement"
WITH_REPLACEMENT = "with replacement, at most"
WITH_REPLACEMENT_ATTAINED = "with replacement, at least"

_LOG_NEGLIGIBLE = -9.0


def true_epsilons(
    *, records: int, batch: int, rounds: int, noise_multiplier: float, delta: float
) -> dict[str, float]:
    """The exact epsilon of a plain minibatch mechanism, by sampling scheme and adjacency.

    >>> found = true_epsilons(records=3256, batch=10, rounds=25, noise_multiplier=0.1398, delta=1e-3)
    >>> [round(value) for value in found.values()]  # SoteriaFL's "epsilon 1" on a9a
    [43, 43, 200, 202]
    """
    coins = repeated(poisson(batch / records, noise_multiplier), rounds)
    return {
        POISSON_ADD_REMOVE: epsilon(coins, delta, Adjacency.ADD_REMOVE),
        POISSON_REPLACE_ONE: epsilon(coins, delta),
        WITHOUT_REPLACEMENT: epsilon(
            repeated(without_replacement(records, batch, noise_multiplier), rounds), delta
        ),
        WITH_REPLACEMENT: epsilon(repeated(with_replacement(records, batch, noise_multiplier), rounds), delta),
    }


def attained_with_replacement(
    *, records: int, batch: int, rounds: int, noise_multiplier: float, delta: float
) -> float:
    """A lower bound on the epsilon of batches with replacement, attained to within 0.5% by two given data sets.

    All other records contribute -C; one contributes +C in the first data set and -C in the second. The number of
    its draws is J ~ Binomial(b, 1/n), so one round is sum_j P(J = j) N(2 j C) against N(0), and the rounds are
    independent (Fact C of docs/privacy.md).

    >>> round(attained_with_replacement(
    ...     records=1238, batch=443, rounds=35, noise_multiplier=3.766, delta=1238**-2), 1)
    8.1
    """
    log_tail = math.log(check_delta(delta)) + _LOG_NEGLIGIBLE
    draws = stats.binom(count("batch", batch), 1 / count("records", records))
    most = int(np.argmax(draws.logsf(np.arange(batch + 1)) <= log_tail - math.log(count("rounds", rounds))))
    levels = np.arange(most + 1)
    weights = tuple(float(w) for w in draws.pmf(levels))
    shifts = tuple(float(s) for s in 2 * levels / positive("noise_multiplier", noise_multiplier))
    given_up, nobody = float(draws.sf(most)), ((1.0,), (0.0,))
    orders = (
        MixturePair(weights, shifts, *nobody, unbounded=given_up),
        MixturePair(*nobody, weights, shifts),
    )
    return worst([Direction(0.0, ((pair, rounds),)) for pair in orders], log_tail, EpsilonAt(delta))


def full_batch_noise_std(*, records: int, rounds: int, epsilon: float, delta: float) -> float:
    """The least noise on the mean, in bounds, that makes a label true for full batches and replace-one.

    >>> round(full_batch_noise_std(records=3256, rounds=25, epsilon=1.0, delta=1e-3), 4)
    0.0079
    """
    noise = calibrate_noise(lambda z: repeated(gaussian(z), rounds), epsilon=epsilon, delta=delta)
    return noise / count("records", records)
