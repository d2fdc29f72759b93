"""The privacy cost of events: the smallest epsilon that can be proved for them, rounded up.

Events that consist only of Gaussian releases have a closed form. All others are composed numerically from the
dominating pairs of their releases.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from dp_accounting import DpEvent

from tacit._deferred import optimize
from tacit.errors import RequestError
from tacit.privacy.accountant.coins import CoinNoise
from tacit.privacy.accountant.composition import CannotAnswerError
from tacit.privacy.accountant.dominate import dominate, is_private, leaves, splits_noise
from tacit.privacy.accountant.grids import EpsilonAt, LogDeltaAt, Question, settled, worst
from tacit.privacy.accountant.inexact import Surcharge
from tacit.privacy.accountant.mixed import is_mixed, mixed_epsilon, mixed_log_delta
from tacit.privacy.events import composed, from_dict, repeated, to_dict
from tacit.privacy.events.crowds import CoinSumDpEvent
from tacit.privacy.events.plain_numbers import check_delta as check_delta
from tacit.privacy.events.runs import ChosenRunsDpEvent
from tacit.privacy.promises.terms import Adjacency

_LOG_NEGLIGIBLE = -9.0
"""log of the part of delta that may be spent on the far ends of the loss."""

_ROUNDING = 1e-7
"""Relative allowance for floating point, orders of magnitude above its errors."""

_TYPICAL_SPLIT = -1.0
_FIRST_LOG_FLOOR, _LAST_LOG_FLOOR = math.log(1e-9), math.log(1e-300)


def epsilon(event: DpEvent, delta: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> float:
    """An epsilon that is proved for the event at `delta`; infinite if there is none.

    It exceeds the epsilon of the event's dominating pairs by at most 0.5% (of 0.01, if it is smaller than
    that).

    >>> from tacit.privacy.events import poisson, repeated
    >>> round(epsilon(repeated(poisson(0.01, 1.0), 1000), 1e-5, Adjacency.ADD_REMOVE), 2)
    1.83
    >>> round(epsilon(repeated(poisson(0.01, 1.0), 1000), 1e-5), 2)
    2.84
    """
    if isinstance(event, ChosenRunsDpEvent):
        # Imported here because the filter imports this module.
        from tacit.privacy.accountant.filter import chosen_epsilon

        return chosen_epsilon(event, check_delta(delta), Adjacency(adjacency))
    surcharge, at_delta = Surcharge.of(event), check_delta(delta)
    ideal = _epsilon(json.dumps(to_dict(event)), surcharge.ideal_delta(at_delta), Adjacency(adjacency))
    return surcharge.real_epsilon(ideal, at_delta)


def delta(event: DpEvent, epsilon: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> float:
    """A delta that is proved for the event at `epsilon`; one if there is none.

    It is never below the true delta, and as tight as an error of 0.5% in epsilon allows.

    >>> from tacit.privacy.events import gaussian
    >>> round(delta(gaussian(2.0), 1.0), 4)
    0.1269
    """
    # How much may be cut away depends on the answer: start with a large cut, and reduce it if delta is smaller.
    log_floor, found = _FIRST_LOG_FLOOR, math.inf
    while True:
        found = min(found, log_delta(event, epsilon, adjacency, log_floor=log_floor))
        if found >= log_floor or log_floor <= _LAST_LOG_FLOOR:
            return math.exp(min(0.0, max(found, _LAST_LOG_FLOOR)))
        log_floor = max(1.1 * max(found, 2 * log_floor) - 2, _LAST_LOG_FLOOR)


def log_delta(
    event: DpEvent,
    epsilon: float,
    adjacency: Adjacency,
    *,
    log_floor: float,
    split: float | None = None,
    rough: bool = False,
) -> float:
    """An upper bound on log(delta), tight above `log_floor`; `rough` computes it on a coarse grid only.

    `split` is passed to `dominate`; None searches for the best one.
    """
    _check_epsilon(epsilon)
    surcharge = Surcharge.of(event)
    if surcharge.epsilon > epsilon:
        return 0.0
    text, ideal = json.dumps(to_dict(event)), float(epsilon) - surcharge.epsilon
    found = _log_delta(text, ideal, Adjacency(adjacency), float(log_floor), split, rough)
    return surcharge.real_log_delta(found, epsilon)


def best_split(event: DpEvent, epsilon: float, adjacency: Adjacency, *, log_floor: float) -> float:
    """The division of the noise that makes `log_delta` smallest. The bound holds for every division."""
    question = LogDeltaAt(_check_epsilon(epsilon))
    with _number_or_refusal():
        return _best_split(event, adjacency, log_floor + _LOG_NEGLIGIBLE, question)


def _check_epsilon(value: float) -> float:
    if isinstance(value, bool) or not (math.isfinite(value) and value >= 0):
        raise RequestError(f"epsilon must be a finite number of at least 0, not {value!r}")
    return value


@lru_cache(maxsize=4096)
def _epsilon(text: str, at_delta: float, adjacency: Adjacency) -> float:
    event = from_dict(json.loads(text))
    if not is_private(event):
        return math.inf
    coins, rest = separate(event, adjacency)
    if coins:
        # Different kinds of noise compose by basic composition: epsilons and deltas add up.
        each = at_delta / (len(coins) + (rest is not None))
        others = 0.0 if rest is None else _epsilon(json.dumps(to_dict(rest)), each, adjacency)
        with _number_or_refusal():
            return sum(noise.epsilon(each) for noise in coins) + others
    log_tail, question = math.log(at_delta) + _LOG_NEGLIGIBLE, EpsilonAt(at_delta)
    with _number_or_refusal():
        split = _best_split(event, adjacency, log_tail, question)
        directions = dominate(event, adjacency, log_tail=log_tail, split=split)
        local = _number(worst(directions, log_tail, question)) * (1 + _ROUNDING)
        return mixed_epsilon(event, at_delta, adjacency, local=local) if is_mixed(event) else local


@lru_cache(maxsize=4096)
def _log_delta(
    text: str, at_epsilon: float, adjacency: Adjacency, log_floor: float, split: float | None, rough: bool
) -> float:
    event = from_dict(json.loads(text))
    if not is_private(event):
        return 0.0
    coins, rest = separate(event, adjacency)
    if coins:
        if len(coins) > 1 or rest is not None:
            raise CannotAnswerError("delta at a given epsilon, for sums with coins among other releases")
        with _number_or_refusal():
            return coins[0].log_delta(at_epsilon, log_floor)
    log_tail, question = log_floor + _LOG_NEGLIGIBLE, LogDeltaAt(at_epsilon)
    with _number_or_refusal():
        if split is None:
            split = _best_split(event, adjacency, log_tail, question)
        directions = dominate(event, adjacency, log_tail=log_tail, split=split, rough=rough)
        local = _number(worst(directions, log_tail, question, rough=rough)) + _ROUNDING
        if not is_mixed(event):
            return local
        return mixed_log_delta(event, at_epsilon, adjacency, log_floor=log_floor, local=local, rough=rough)


def separate(event: DpEvent, adjacency: Adjacency) -> tuple[tuple[CoinNoise, ...], DpEvent | None]:
    """Split an event into its sums with coins, each kind with its number of rounds, and the rest, if any."""
    sides = 1.0 if Adjacency(adjacency) is Adjacency.REPLACE_ONE else 0.5
    sums: dict[CoinSumDpEvent, int] = {}
    others = []
    for leaf, times in leaves(event):
        if isinstance(leaf, CoinSumDpEvent):
            sums[leaf] = sums.get(leaf, 0) + times
        else:
            others.append(repeated(leaf, times))
    coins = tuple(
        CoinNoise(leaf.dim, leaf.clients * leaf.coins, sides * leaf.reach, times) for leaf, times in sums.items()
    )
    return coins, (event if not coins else composed(others)) if others else None


@contextmanager
def _number_or_refusal() -> Iterator[None]:
    """Refuse events whose numbers are too extreme to compute with (noise of 1e-300, 1e20 rounds)."""
    try:
        yield
    except RequestError:
        raise
    except (ValueError, TypeError, ArithmeticError, MemoryError) as error:
        raise CannotAnswerError(f"its numbers are out of range ({type(error).__name__})") from error


def _number(found: float) -> float:
    """Refuse NaN: comparisons with it are false, so it must not pass for an answer."""
    if math.isnan(found):
        raise CannotAnswerError("its numbers are out of range")
    return found


def _best_split(event: DpEvent, adjacency: Adjacency, log_tail: float, question: Question) -> float:
    if not splits_noise(event):
        return _TYPICAL_SPLIT
    search = optimize.minimize_scalar(
        lambda split: settled(dominate(event, adjacency, log_tail=log_tail, split=split), log_tail, question),
        bounds=(-5.0, 0.5),
        method="bounded",
        options={"xatol": 0.1, "maxiter": 8},
    )
    return float(search.x)
