"""Theorem 3 of DP-NormFedAvg (Das et al.): how much noise client-level privacy takes, its constant made explicit.

The letters of the formulas are those of `tacit.theory.normfedavg`.
"""

from __future__ import annotations

import math

from tacit.errors import RequestError, count, positive
from tacit.privacy import Adjacency, calibrate_noise
from tacit.privacy.accounting import check_delta
from tacit.privacy.events import poisson, repeated


def participation_rate(clients: int, participants: float) -> float:
    """The chance r/n that a client takes part in a round, if r is a possible expected number of clients."""
    if positive("participants", participants) > count("clients", clients):
        raise RequestError(f"participants must be at most the {clients} clients, not {participants!r}")
    return participants / clients


def exact_noise_multiplier(
    *,
    clients: int,
    participants: float,
    rounds: int,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
) -> float:
    """The least z for which K sums of clipped or normalised updates keep (epsilon, delta) for every client.

    z C is the noise on the *sum* of a round, so that s = z C / r and each of r participants adds z C / sqrt(r).
    It holds for those who see the sums, but neither a single message nor who took part, and only if the noise
    on the sum really is z C: with shares from as many clients as happen to come, it is less in small cohorts. A
    client joins with a coin of its own; `add-remove` compares with a run to which it contributes nothing, the
    reading under which the paper's source proves Theorem 3, `replace-one` with any other update of its, twice
    as far away.

    >>> setting = dict(clients=3000, participants=600, rounds=500, epsilon=5.0, delta=1e-5)
    >>> round(exact_noise_multiplier(**setting, adjacency=Adjacency.ADD_REMOVE), 2)  # appendix G
    4.1
    >>> round(exact_noise_multiplier(**setting), 2)
    7.97
    """
    rate = participation_rate(clients, participants)
    return calibrate_noise(
        lambda z: repeated(poisson(rate, z), rounds), epsilon=epsilon, delta=delta, adjacency=adjacency
    )


def theorem_3_noise_std(
    constant: float, *, clip_norm: float, clients: int, rounds: int, epsilon: float, delta: float
) -> float:
    """Theorem 3 as printed, s = C sqrt(q K ln1d) / (n epsilon), with the q that the paper leaves open given.

    NOT private by itself: `theorem_3_constant` says which q makes it so, and it is not one number.

    >>> s = theorem_3_noise_std(1.822, clip_norm=1.0, clients=3000, rounds=500, epsilon=5.0, delta=1e-5)
    >>> round(600 * s, 2)
    4.1
    """
    scale = positive("clip_norm", clip_norm) / (count("clients", clients) * positive("epsilon", epsilon))
    product = positive("constant", constant) * count("rounds", rounds) * -math.log(check_delta(delta))
    return scale * math.sqrt(product)


def theorem_3_constant(
    noise_multiplier: float, *, clients: int, participants: float, rounds: int, epsilon: float, delta: float
) -> float:
    """The q at which Theorem 3's formula gives this noise: (z epsilon n / r)^2 / (K ln1d).

    The paper calls q an absolute constant. With the exact z it lies between 0.8 and 2.3 (add-remove) and between
    3.2 and 7.0 (replace-one) for r/n from 0.01 to 1, epsilon from 0.1 to 5, delta of 1e-5 or 1e-6 and a
    `condition_excess` of at most 2; most at the largest epsilon. Beyond the condition there is no such number: at
    r/n = 1/1000, epsilon 1 and delta 1e-5 it is 36 after 1,000 rounds and 2,231 after 10 (add-remove).

    >>> setting = dict(clients=3000, participants=600, rounds=500, epsilon=5.0, delta=1e-5)
    >>> round(theorem_3_constant(exact_noise_multiplier(**setting), **setting), 2)
    6.89
    """
    rate = participation_rate(clients, participants)
    square = (positive("noise_multiplier", noise_multiplier) * positive("epsilon", epsilon) / rate) ** 2
    return square / (count("rounds", rounds) * -math.log(check_delta(delta)))


def condition_excess(epsilon: float, *, clients: int, participants: float, rounds: int) -> float:
    """epsilon / ((r/n)^2 K), which Theorem 3 wants below some constant that it does not name.

    >>> round(condition_excess(5.0, clients=3000, participants=600, rounds=500), 2)
    0.25
    """
    rate = participation_rate(clients, participants)
    return positive("epsilon", epsilon) / (rate**2 * count("rounds", rounds))


def rho(*, constant: float, dim: int, clients: int, epsilon: float, delta: float) -> float:
    """Eq. 1 as printed: sqrt(q d ln1d) / (n epsilon), the scale of every bound of the paper."""
    return theorem_3_noise_std(
        constant, clip_norm=math.sqrt(count("dim", dim)), clients=clients, rounds=1, epsilon=epsilon, delta=delta
    )


def rho_of_noise(noise_multiplier: float, *, participants: float, dim: int, rounds: int) -> float:
    """Eq. 1 for the noise that is really added: (z/r) sqrt(d/K), which is s sqrt(d/K) / C.

    It equals `rho` at `theorem_3_constant`, and needs neither q nor a formula for z.

    >>> setting = dict(clients=100, participants=20, rounds=50, epsilon=1.0, delta=1e-5)
    >>> q = theorem_3_constant(3.0, **setting)
    >>> round(rho(constant=q, dim=8, clients=100, epsilon=1.0, delta=1e-5), 6)
    0.06
    >>> round(rho_of_noise(3.0, participants=20, dim=8, rounds=50), 6)
    0.06
    """
    share = positive("noise_multiplier", noise_multiplier) / positive("participants", participants)
    return share * math.sqrt(count("dim", dim) / count("rounds", rounds))
