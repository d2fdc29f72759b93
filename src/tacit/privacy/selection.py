"""What it costs to choose the best of several private runs (Papernot & Steinke 2022).

A random number of runs, each at a random point of a grid, and only the best of them is shown. Two things follow
that are easily overlooked:

- The score by which runs are compared has to be part of what a run releases, or look at public records alone. A
  loss on the private records, compared without noise, is covered by no theorem.
- The bound is against who sees the chosen model *alone*. A server that nobody trusts sees the messages of every
  run, so against it all runs add up: that is `accounting.epsilon` of the repeated event.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from dp_accounting import DpEvent
from scipy import optimize, stats

from tacit.errors import RequestError
from tacit.privacy.accounting import check_delta
from tacit.privacy.accounting import epsilon as epsilon_of
from tacit.privacy.events import from_dict, to_dict
from tacit.privacy.rdp import renyi_divergence
from tacit.privacy.terms import Adjacency

_ORDERS = np.exp(np.linspace(math.log(0.02), math.log(500.0), 60)) + 1
"""Orders above one that are tried; every one gives a valid bound."""

_MOST_NOISE = math.log(1e3)


@dataclass(frozen=True)
class RandomTrials:
    """How many runs: K >= 1 with P(K = k) = (1 - g)^k / (k log(1/g)), so that E K = (1/g - 1) / log(1/g) = mean.

    The truncated negative binomial distribution of shape 0 (Papernot & Steinke 2022, Def. 1). That K is random
    and secret is what keeps the cost from growing with it.

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
        """g, the smaller the more runs."""

        def excess(log_stop: float) -> float:
            return math.log(math.expm1(-log_stop) / -log_stop / self.mean)

        return math.exp(optimize.brentq(excess, -700.0, -1e-9))

    def quantile(self, chance: float) -> int:
        """The number of runs that is exceeded with at most this probability.

        >>> RandomTrials(10.0).quantile(1e-3)
        148
        """
        return int(stats.logser.isf(chance, 1 - self.stop))

    def draw(self, generator: np.random.Generator) -> int:
        """A number of runs."""
        return int(generator.logseries(1 - self.stop))


def selection_divergence(base: Callable[[float], float], order: float, trials: RandomTrials) -> float:
    """The Renyi divergence of the best of `trials` runs, from that of one run by order.

        r'(a) = r(a) + (1 - 1/b) r(b) + log(1/g)/b + log(E K)/(a - 1)    for any b >= 1

    (Papernot & Steinke 2022, Theorem 2, shape 0), at the best b that is tried.
    """
    others = min((1 - 1 / b) * base(b) - math.log(trials.stop) / b for b in map(float, _ORDERS))
    return base(order) + others + math.log(trials.mean) / (order - 1)


def selection_epsilon(
    event: DpEvent, trials: RandomTrials, delta: float, adjacency: Adjacency = Adjacency.REPLACE_ONE
) -> float:
    """The epsilon of showing the best of several runs, each of which is `event`, and nothing else of them.

    Guarantee: holds for the records that the runs are private about, against who sees the chosen run alone, if
    the score is part of the run or looks at public records. Refused for an event that has no Renyi curve.

    >>> from tacit.privacy.events import gaussian, repeated
    >>> from tacit.privacy.accounting import epsilon
    >>> run = repeated(gaussian(30.0), 10)
    >>> round(epsilon(run, 1e-5), 2), round(selection_epsilon(run, RandomTrials(10.0), 1e-5), 2)
    (0.77, 1.5)
    """
    check_delta(delta)
    known: dict[float, float] = {}

    def base(order: float) -> float:
        if order not in known:
            known[order] = renyi_divergence(event, order, adjacency)
        return known[order]

    def bound(order: float) -> float:
        above_one = order - 1
        divergence = selection_divergence(base, order, trials)
        # Canonne, Kamath & Steinke 2020, Prop. 12.
        return divergence + math.log(above_one / order) - math.log(order * delta) / above_one

    return max(0.0, min(bound(order) for order in map(float, _ORDERS)))


def run_epsilon(
    event: DpEvent,
    trials: RandomTrials,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
) -> float:
    """What one run may have, so that showing the best of several has `epsilon`: the event with more noise.

    Guarantee: runs like `event`, all of whose noise grows together, have a `selection_epsilon` of at most
    `epsilon` if they have the epsilon that is returned or less.

    >>> from tacit.privacy.events import gaussian, repeated
    >>> run = repeated(gaussian(30.0), 10)
    >>> allowed = run_epsilon(run, RandomTrials(10.0), 0.77, 1e-5)
    >>> round(allowed, 2)
    0.38
    """

    def excess(log_factor: float) -> float:
        return selection_epsilon(_noisier(event, math.exp(log_factor)), trials, delta, adjacency) - epsilon

    if excess(0.0) <= 0:
        return epsilon_of(event, delta, adjacency)
    if excess(_MOST_NOISE) > 0:
        raise RequestError(
            f"no run is private enough for the best of {trials.mean:g} to have epsilon {epsilon:g}"
        )
    # Rounded up by the tolerance, so that the excess is not above zero.
    factor = math.exp(optimize.brentq(excess, 0.0, _MOST_NOISE, xtol=1e-4) + 2e-4)
    return epsilon_of(_noisier(event, factor), delta, adjacency)


def _noisier(event: DpEvent, factor: float) -> DpEvent:
    """The same releases with noise that is larger by a factor."""

    def scaled(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: factor * inner if key == "noise_multiplier" else scaled(inner)
                for key, inner in value.items()
            }
        return [scaled(inner) for inner in value] if isinstance(value, list) else value

    return from_dict(scaled(to_dict(event)))
