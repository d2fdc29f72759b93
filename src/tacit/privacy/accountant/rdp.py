"""A second opinion: the same dominating pairs, accounted for by Renyi divergence.

It shares no arithmetic with `accounting`: moments are integrals over outcomes, and nothing is discretised or
transformed. The bound is looser, so its epsilon is never below the other one; tests and audits rely on that.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from dp_accounting import DpEvent
from scipy.special import logsumexp

from tacit._deferred import optimize
from tacit.privacy.accountant.accounting import check_delta, separate
from tacit.privacy.accountant.averages import AveragePair
from tacit.privacy.accountant.dominate import Direction, dominate, is_private, splits_noise
from tacit.privacy.accountant.inexact import Surcharge
from tacit.privacy.accountant.pairs import Array, FixedSizePair, MixturePair, Pair, RevealedPair
from tacit.privacy.promises.terms import Adjacency

_LOG_NEGLIGIBLE = -9.0
_FAR = 40.0
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(16)
_MOST_PANELS = 20_000


def rdp_epsilon(event: DpEvent, delta: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> float:
    """An upper bound on the event's epsilon by Renyi differential privacy; infinite if there is none.

    For a Renyi divergence r at order a, epsilon = r + log(1 - 1/a) - log(a delta)/(a - 1), at the best a
    (Canonne, Kamath & Steinke 2020, Prop. 12).

    >>> from tacit.privacy.events import poisson, repeated
    >>> round(rdp_epsilon(repeated(poisson(0.01, 1.0), 1000), 1e-5, Adjacency.ADD_REMOVE), 2)
    2.1
    """
    coins, rest = separate(event, adjacency)
    if coins:
        # The bound for coins already uses Renyi divergences.
        each = check_delta(delta) / (len(coins) + (rest is not None))
        others = 0.0 if rest is None else rdp_epsilon(rest, each, adjacency)
        return sum(noise.epsilon(each) for noise in coins) + others
    surcharge = Surcharge.of(event)
    ideal = _ideal_epsilon(event, surcharge.ideal_delta(check_delta(delta)), Adjacency(adjacency))
    return surcharge.real_epsilon(ideal, delta)


def _ideal_epsilon(event: DpEvent, delta: float, adjacency: Adjacency) -> float:
    if not is_private(event):
        return math.inf
    log_tail = math.log(delta) + _LOG_NEGLIGIBLE

    def at(split: float) -> float:
        directions = dominate(event, adjacency, log_tail=log_tail, split=split)
        return max(_best_order(direction, delta) for direction in directions)

    if not splits_noise(event):
        return at(0.0)
    return float(optimize.minimize_scalar(at, bounds=(-5.0, 0.5), method="bounded", options={"xatol": 0.1}).fun)


def log_moment(pair: Pair, order: float) -> float:
    """log E_P exp((order - 1) L) over the finite losses L: (order - 1) times the Renyi divergence."""
    match pair:
        case MixturePair():
            return _mixture_moment(pair, order - 1)
        case FixedSizePair():
            return _fixed_size_moment(pair, order - 1)
        case RevealedPair():
            exponents = order * (order - 1) * np.append(pair.shifts, 0.0) ** 2 / 2
            return float(logsumexp(exponents, b=np.append(pair.weights, pair.atom)))
        case AveragePair():
            losses, masses, _ = pair.outcomes()
            return float(logsumexp((order - 1) * losses, b=masses))
        case _:
            raise TypeError(f"no moments for {pair!r}")


def _best_order(direction: Direction, delta: float) -> float:
    finite = delta - sum(times * pair.unbounded for pair, times in direction.pairs)

    def bound(log_above_one: float) -> float:
        above_one = math.exp(log_above_one)
        order = 1 + above_one
        total = direction.shift**2 * order * above_one / 2
        total += sum(times * log_moment(pair, order) for pair, times in direction.pairs)
        return (total - math.log(finite) - math.log(order)) / above_one + math.log(above_one / order)

    grid = np.linspace(math.log(1e-3), math.log(5000.0), 30)
    values = [bound(x) for x in grid]
    best = int(np.nanargmin(values))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    if not all(map(math.isfinite, map(bound, around))):
        return max(0.0, values[best])
    polished = optimize.minimize_scalar(bound, bounds=around, method="bounded", options={"xatol": 1e-3})
    return max(0.0, min(float(polished.fun), values[best]))


def _mixture_moment(pair: MixturePair, tilt: float) -> float:
    """log of the integral of P^(1 + t) Q^(-t).

    Left of zero the integrand is below P; on the right its last peak is at (1 + t) c + t e.
    """

    def log_integrand(x: Array) -> Array:
        upper = _log_density(x, pair.upper_weights, pair.upper_shifts)
        lower = _log_density(-x, pair.lower_weights, pair.lower_shifts)
        return (1 + tilt) * upper - tilt * lower

    reach = (1 + tilt) * max(pair.upper_shifts) + tilt * max(pair.lower_shifts)
    return _log_integral(log_integrand, -_FAR, reach + _FAR, max(pair.upper_shifts + pair.lower_shifts))


def _fixed_size_moment(pair: FixedSizePair, tilt: float) -> float:
    """log of the atom plus the integral, over all numbers of draws, of exp(t L) where the loss L is positive.

    It is taken once for P, and once for the mirror image, where P and Q change places and the loss is -L.
    """

    def log_integrand(x: Array) -> Array:
        hidden, parts = pair.loss(x), []
        for shift, weight in zip((0.0, *pair.shifts), (1 - pair.drawn, *pair.weights), strict=True):
            if weight > 0:
                # Where the number of draws is revealed, its own loss is the smaller one.
                losses = np.minimum(hidden, shift * x - shift**2 / 2) if shift else hidden
                here = _log_density(x, (1.0,), (shift,)) + tilt * losses
                mirrored = _log_density(x, (1.0,), (0.0,)) - tilt * losses
                parts.append(np.where(losses > 0, math.log(weight) + np.logaddexp(here, mirrored), -np.inf))
        return np.asarray(np.logaddexp.reduce(parts))

    # The loss at a number of draws becomes positive at half its shift, where the integrand jumps.
    steepest, starts = max(pair.shifts), sorted(shift / 2 for shift in pair.shifts)
    ends = [*starts[1:], (1 + max(tilt, -1 - tilt, 0.0)) * steepest + _FAR]
    parts = [_log_integral(log_integrand, low, high, steepest) for low, high in zip(starts, ends, strict=True)]
    return float(logsumexp([*parts, math.log(pair.atom) if pair.atom > 0 else -math.inf]))


def _log_density(x: Array, weights: tuple[float, ...], shifts: tuple[float, ...]) -> Array:
    terms = [
        math.log(weight) - (x - shift) ** 2 / 2
        for weight, shift in zip(weights, shifts, strict=True)
        if weight > 0
    ]
    return np.asarray(np.logaddexp.reduce(terms)) - math.log(2 * math.pi) / 2


def _log_integral(log_integrand: Callable[[Array], Array], low: float, high: float, slope: float) -> float:
    """log of an integral, by panels narrow enough for a unit Gaussian and for kinks of width 1/slope."""
    panels = math.ceil((high - low) * max(1.0, slope / 2))
    if panels > _MOST_PANELS:
        return math.inf
    edges = np.linspace(low, high, panels + 1)
    half = (edges[1] - edges[0]) / 2
    x = (edges[:-1, None] + half + half * _NODES).ravel()
    return float(logsumexp(log_integrand(x), b=np.tile(half * _NODE_WEIGHTS, panels)))
