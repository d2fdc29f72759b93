"""Lower bounds on epsilon and delta from the number of right guesses.

In both games a fair coin decides, for every canary, which of two records a client holds. The guesser then sees
what the client sent and says which of the two it was, or abstains.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from tacit.errors import RequestError, count, probability
from tacit.privacy.accountant.pairs import Array

_TINY = 1e-300

_ON_THE_RATE = 0.25
"""The part of the error that is spent on how often anything was guessed; it matters only where delta is large."""


def clopper_pearson_lower(successes: ArrayLike, trials: ArrayLike, confidence: float) -> Array:
    """The exact lower confidence limit of a probability (Clopper & Pearson 1934).

    >>> clopper_pearson_lower([0, 5, 10], 10, 0.95).round(3).tolist()
    [0.0, 0.222, 0.741]
    """
    k, n = np.broadcast_arrays(np.asarray(successes, dtype=float), np.asarray(trials, dtype=float))
    limit = stats.beta.ppf(1 - confidence, np.maximum(k, _TINY), n - k + 1)
    return np.where(k > 0, limit, 0.0)


def repeated_runs_epsilon(
    right: ArrayLike, guesses: ArrayLike, trials: int, *, delta: float, confidence: float, sides: int
) -> Array:
    """The largest epsilon that guesses in independent runs rule out at `delta`; one canary and one coin per run.

    `sides` is 1 if only one of the two worlds is ever guessed, and 2 for both. A result below zero rules out
    nothing.

    Guarantee: if the guesses are a fixed function of what was seen and the mechanism is (e, delta)-private, the
    result exceeds e with probability at most 1 - `confidence`. Proof: let P, Q be the laws in the two worlds
    and A the set on which P is guessed. Then Pr[right] = P(A)/2 <= (exp(e) Q(A) + delta)/2, which is
    exp(e) Pr[wrong] + delta/2, and as much again for a set on which Q is guessed. So with
    p = Pr[right | guessed] and r = Pr[guessed]

        exp(e) >= (p - sides delta / (2 r)) / (1 - p),

    which grows in p and in r; both are proportions of independent trials and get their Clopper-Pearson limit.

    >>> round(float(repeated_runs_epsilon(900, 1000, 1000, delta=1e-5, confidence=0.95, sides=2)), 2)
    2.01
    """
    _check(trials, guesses, right, delta, confidence)
    p, rate = _limits(right, guesses, trials, confidence)
    numerator = p - sides * delta / (2 * np.maximum(rate, _TINY))
    return np.log(np.maximum(numerator, _TINY) / (1 - p))


def repeated_runs_delta(
    right: ArrayLike, guesses: ArrayLike, trials: int, *, epsilon: float, confidence: float, sides: int
) -> Array:
    """The largest delta that guesses in independent runs rule out at `epsilon`: the same bound, solved for delta.

        delta >= (2 r / sides) (p - exp(epsilon) (1 - p))

    >>> round(float(repeated_runs_delta(900, 1000, 1000, epsilon=1.0, confidence=0.95, sides=2)), 2)
    0.56
    """
    _check(trials, guesses, right, 0.0, confidence)
    p, rate = _limits(right, guesses, trials, confidence)
    return np.asarray(np.maximum(2 * rate / sides * (p - np.exp(epsilon) * (1 - p)), 0.0))


def _limits(right: ArrayLike, guesses: ArrayLike, trials: int, confidence: float) -> tuple[Array, Array]:
    """Lower limits of Pr[right | guessed] and Pr[guessed], which hold together at this confidence."""
    error = 1 - confidence
    return (
        clopper_pearson_lower(right, guesses, 1 - (1 - _ON_THE_RATE) * error),
        clopper_pearson_lower(guesses, trials, 1 - _ON_THE_RATE * error),
    )


def one_run_p_value(canaries: int, guesses: int, right: int, *, epsilon: float, delta: float) -> float:
    """The chance that an (epsilon, delta)-private run allows this many right guesses; many canaries in one run.

    Steinke, Nasr & Jagielski 2023, Corollary 5.4. With W ~ Binomial(guesses, 1/(1 + exp(-epsilon))) it is at most

        Pr[W >= right] + 2 canaries delta max_i Pr[right > W >= right - i] / i.

    The guesses may depend on each other. The bound requires one independent fair coin per canary, and that
    flipping one coin gives a neighbouring data set: a record becomes its replacement (replace-one), or one that
    adds nothing (add/remove). For delta = 0: given what was seen and all other coins, a coin's odds are at most
    exp(epsilon), so by induction over the coins the number of right guesses is stochastically at most W.
    """
    _check(canaries, guesses, right, delta, 0.5)
    if right == 0:
        return 1.0
    law = stats.binom(guesses, 1 / (1 + np.exp(-epsilon)))
    steps = np.arange(1, right + 1)
    just_below = (law.cdf(right - 1) - law.cdf(right - 1 - steps)) / steps
    return min(1.0, float(law.sf(right - 1) + 2 * canaries * delta * just_below.max()))


def one_run_epsilon(canaries: int, guesses: int, right: int, *, delta: float, confidence: float) -> float:
    """The largest epsilon that guesses about many canaries of one run rule out at `delta`.

    >>> round(one_run_epsilon(1000, 100, 75, delta=1e-4, confidence=0.95), 3)
    0.673
    """
    probability("confidence", confidence)

    def ruled_out(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, right, epsilon=epsilon, delta=delta) < 1 - confidence

    if not ruled_out(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while ruled_out(high):
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if ruled_out(middle) else (low, middle)
    return low


def _check(trials: int, guesses: ArrayLike, right: ArrayLike, delta: float, confidence: float) -> None:
    count("trials", trials)
    if not (np.all(np.asarray(right) <= np.asarray(guesses)) and np.all(np.asarray(guesses) <= trials)):
        raise RequestError(f"0 <= right <= guesses <= trials must hold, not {right!r}, {guesses!r}, {trials!r}")
    if not 0 <= delta < 1:
        raise RequestError(f"delta must be at least 0 and below 1, not {delta!r}")
    if not 0 < confidence < 1:
        raise RequestError(f"confidence must be above 0 and below 1, such as 0.95, not {confidence!r}")
