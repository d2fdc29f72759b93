"""The privacy cost of choosing the best of several private runs (after Papernot & Steinke 2022).

A random number of runs is made, each at a random point of a grid, and only the best one is shown. Two
consequences are easily overlooked:

- The score by which runs are compared must be part of what a run releases, or depend on public records only. No
  theorem covers a loss on the private records that is compared without noise.
- The bound holds only against someone who sees *nothing but* the chosen model. An untrusted server sees the
  messages of every run, so against it all runs add up: that is `accounting.epsilon` of the repeated event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from dp_accounting import DpEvent

from tacit._deferred import optimize, stats
from tacit.errors import RequestError
from tacit.privacy.accountant.accounting import check_delta
from tacit.privacy.accountant.accounting import delta as delta_of
from tacit.privacy.accountant.accounting import epsilon as epsilon_of
from tacit.privacy.events import from_dict, to_dict
from tacit.privacy.promises.terms import Adjacency

_HALVINGS = 12
"""How often the search for the best e halves its interval."""

_MOST_NOISE = math.log(1e3)


@dataclass(frozen=True)
class RandomTrials:
    """The number of runs K >= 1: P(K = k) = (1 - g)^k / (k log(1/g)), so that E K = (1/g - 1) / log(1/g) = mean.

    This is the truncated negative binomial distribution of shape 0 (Papernot & Steinke 2022, Def. 1). The cost
    does not grow with K because K is random and secret.

    >>> round(RandomTrials(10.0).stop, 3)
    0.027
    """

    mean: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and self.mean > 1):
            raise RequestError(
                f"the mean number of trials must be above 1, not {self.mean}; one run needs no choice"
            )

    @cached_property
    def stop(self) -> float:
        """The parameter g; smaller values mean more runs."""

        def excess(log_stop: float) -> float:
            return math.log(math.expm1(-log_stop) / -log_stop / self.mean)

        return math.exp(optimize.brentq(excess, -700.0, -1e-9))

    def quantile(self, chance: float) -> int:
        """A number of runs that is exceeded with at most this probability.

        >>> RandomTrials(10.0).quantile(1e-3)
        148
        """
        return int(stats.logser.isf(chance, 1 - self.stop))

    def draw(self, generator: np.random.Generator) -> int:
        """Draw a number of runs."""
        return int(generator.logseries(1 - self.stop))


def selection_epsilon(
    event: DpEvent, trials: RandomTrials, delta: float, adjacency: Adjacency = Adjacency.REPLACE_ONE
) -> float:
    """The epsilon of showing only the best of several runs, each of which is `event`.

    Guarantee: it protects the records that the runs protect, against someone who sees the chosen run alone, if
    the score is part of the run or depends on public records only. Infinite for runs that are not private.

        delta'(epsilon) <= E K delta(epsilon - log r),   r = 1 / (g + (1-g) (1 - delta(e)) exp(-e))
                                                         or 1 + (1/g - 1) delta(e), if that is more; for any e

    Proof. Let q and q' be the densities of a run on two neighbouring data sets, u and u' the chances that a run
    is better than the outcome y (ties are broken by a random number drawn with the outcome). The best of K
    runs has the density q f(u) with f(u) = c/(g + (1-g) u), and q' f(u') on the other data set. As u' is at most
    1 and at most exp(e) u + delta(e), f(u)/f(u') is largest where u = 0 or u' = 1, and at most r. So
    q f(u) - exp(epsilon) q' f(u') <= f(u) (q - exp(epsilon)/r q'), and f(u) <= f(0) = E K. QED

    Papernot & Steinke (2022, Theorem 2) have the same bound for Renyi divergences, which cost up to a third more:

    >>> from tacit.privacy.events import gaussian, repeated
    >>> from tacit.privacy.accountant.accounting import epsilon
    >>> run = repeated(gaussian(30.0), 10)
    >>> round(epsilon(run, 1e-5), 2), round(selection_epsilon(run, RandomTrials(10.0), 1e-5), 2)
    (0.77, 1.17)
    """
    alone = epsilon_of(event, check_delta(delta) / trials.mean, adjacency)
    return alone + _log_ratio(event, trials, adjacency, alone) if math.isfinite(alone) else alone


def _log_ratio(event: DpEvent, trials: RandomTrials, adjacency: Adjacency, most: float) -> float:
    """log r at about the best e, which is where the two terms are equal; every e gives a valid bound."""
    stop = trials.stop

    def terms(e: float) -> tuple[float, float]:
        missed = delta_of(event, e, adjacency)
        return 1 + (1 / stop - 1) * missed, 1 / (stop + (1 - stop) * (1 - missed) * math.exp(-e))

    low, high, best = 0.0, most, math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        rare, common = terms(middle)
        best = min(best, max(rare, common))
        low, high = (middle, high) if rare > common else (low, middle)
    return math.log(best)


def run_epsilon(
    event: DpEvent,
    trials: RandomTrials,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
) -> float:
    """The epsilon that one run may have, so that showing the best of several has `epsilon`.

    Guarantee: runs like `event`, all of whose noise grows together, have a `selection_epsilon` of at most
    `epsilon` if they have the epsilon that is returned or less.

    >>> from tacit.privacy.events import gaussian, repeated
    >>> run = repeated(gaussian(30.0), 10)
    >>> allowed = run_epsilon(run, RandomTrials(10.0), 0.77, 1e-5)
    >>> round(allowed, 2)
    0.5
    """

    def excess(log_factor: float) -> float:
        return selection_epsilon(_noisier(event, math.exp(log_factor)), trials, delta, adjacency) - epsilon

    if excess(0.0) <= 0:
        return epsilon_of(event, delta, adjacency)
    if excess(_MOST_NOISE) > 0:
        raise RequestError(
            f"no run is private enough for the best of {trials.mean:g} to have epsilon {epsilon:g}"
        )
    # Increased by the tolerance, so that the excess is not above zero.
    factor = math.exp(optimize.brentq(excess, 0.0, _MOST_NOISE, xtol=1e-4) + 2e-4)
    return epsilon_of(_noisier(event, factor), delta, adjacency)


def _noisier(event: DpEvent, factor: float) -> DpEvent:
    """The same releases with the noise multiplied by a factor."""

    def scaled(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: factor * inner if key == "noise_multiplier" else scaled(inner)
                for key, inner in value.items()
            }
        return [scaled(inner) for inner in value] if isinstance(value, list) else value

    return from_dict(scaled(to_dict(event)))
